"""Rows of layers that do not define them, from the Jacobian of the product."""

import math

import tensorflow as tf


def jacobian_rows(multiply, inputs, weights, upstream):
    """Returns rows, gradients and kept rows of the flattened kernel.

    Every entry of the product is a separate row with its own gradient. As in
    layers that define `rows`, a row is kept if any entry along the last axis
    has a gradient, even if its own gradient is zero.

    Args:
        multiply: Function of `inputs` and `weights`. Returns the product.
        inputs: The inputs of the product.
        weights: Tensor. The binary weights.
        upstream: Tensor. The gradient of the product.
    """
    with tf.GradientTape() as tape:
        tape.watch(weights)
        product = multiply(inputs, weights)
    jacobian = tape.jacobian(product, weights)
    kept = tf.reduce_any(upstream != 0, axis=-1, keepdims=True)
    kept = tf.broadcast_to(kept, tf.shape(upstream))
    return (
        tf.reshape(jacobian, (-1, math.prod(weights.shape))),
        tf.reshape(upstream, (-1, 1)),
        tf.reshape(kept, (-1, 1)),
    )
