"""Blocks of variables.

A search divides the variables of each layer into `COUNT` blocks. Blocks are
padded to the same width when layers are stacked. The blocks of a layer, and so
its states, do not depend on the other layers.
"""

import numpy as np
import tensorflow as tf

from keras_qpsbgd import ops

COUNT = 16


def width(n):
    """Returns the number of variables per block of a layer with n inputs."""
    return -(-n // COUNT)


def spread(tensor, axis, new_width):
    """Pads an axis of n variables so that each block has `new_width`."""
    n = tensor.shape[axis]
    old_width = width(n)
    tensor = ops.padded(tensor, axis, COUNT * old_width)
    if old_width == new_width:
        return tensor
    shape = [-1 if size is None else size for size in tensor.shape]
    blocks = shape[:axis] + [COUNT, old_width] + shape[axis + 1 :]
    tensor = tf.reshape(tensor, blocks)
    tensor = ops.padded(tensor, axis + 1, new_width)
    shape[axis] = COUNT * new_width
    return tf.reshape(tensor, shape)


def gather(states, n):
    """Returns the n variables of a layer from padded states (_, m)."""
    padded, m = states.shape
    states = tf.reshape(states, (COUNT, padded // COUNT, m))
    return tf.reshape(states[:, : width(n)], (-1, m))[:n]


def positions(sizes, new_width):
    """Returns the original index of each padded variable, for all layers.

    Args:
        sizes: List of integers. Number of inputs of each layer.
        new_width: Integer. Width of the padded blocks.

    Returns:
        Array of shape `(layers, COUNT * new_width)`.
    """
    block, place = np.divmod(np.arange(COUNT * new_width), new_width)
    return np.array([block * width(n) + place for n in sizes])


def first(x):
    """Reshapes (layers, lanes, n) to (layers, COUNT, lanes, n / COUNT)."""
    layers, lanes, n = x.shape
    x = tf.reshape(x, (layers, lanes, COUNT, n // COUNT))
    return tf.transpose(x, (0, 2, 1, 3))
