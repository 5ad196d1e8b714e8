"""Random numbers for several layers at once."""

import tensorflow as tf


class Random:
    """Random numbers by hashing a seed and a position.

    Unlike those of TensorFlow's generators, the numbers of a layer do not
    depend on the padding, and those of all layers are one operation.

    Args:
        seeds: Int32 tensor of shape `(layers, 2)`.
        positions: Integer array of shape `(layers, n)`. Variables at the same
            position have the same numbers in all stacks.
    """

    def __init__(self, seeds, positions):
        seeds = tf.cast(seeds, tf.uint32)
        self._key = _hash(seeds[:, 1] + _hash(seeds[:, 0]))
        self._positions = tf.constant(positions, tf.uint32)

    def uniform(self, draw, *shape):
        """Returns numbers from 0 to 1, of shape `(layers, *shape, n)`.

        Args:
            draw: Integer or int32 scalar. Different draws are independent.
            *shape: Integers.
        """
        numbers = _hash(self._key + tf.cast(draw, tf.uint32))
        for size in shape:
            position = tf.cast(tf.range(size), tf.uint32)
            numbers = _hash(numbers[..., None] + position)
        layers, n = self._positions.shape
        position = tf.reshape(self._positions, (layers, *[1] * len(shape), n))
        numbers = _hash(numbers[..., None] + position)
        # The upper 24 bits, which float32 represents exactly.
        numbers = tf.bitwise.right_shift(numbers, tf.constant(8, tf.uint32))
        return tf.cast(numbers, tf.float32) * 2.0**-24


def _hash(x):
    """Mixes the bits of uint32 numbers (the function `lowbias32`)."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        shifted = tf.bitwise.right_shift(x, tf.constant(shift, tf.uint32))
        x = tf.bitwise.bitwise_xor(x, shifted)
        x *= tf.constant(factor, tf.uint32)
    return x
