"""Blocks of couplings in layers with many inputs.

Couplings between different blocks are left out, so a layer has one problem for
each block. Block k of K has the inputs k, k + K, k + 2K and so on. In a
convolution whose number of channels is a multiple of K, all positions of a
channel are then in the same block. The couplings between them matter most.

All blocks have the same width. The last one is padded with inputs that are
zero.
"""

import tensorflow as tf

from keras_qpsbgd.qubo import ops


def block_shape(num_variables, widest):
    """Returns the number and the width of the blocks of a layer.

    Args:
        num_variables: Integer. The number of inputs of the layer.
        widest: Integer. The maximum width of a block.
    """
    count = -(-num_variables // widest)
    return count, -(-num_variables // count)


def block_sizes(num_variables, num_columns, widest):
    """Returns the numbers of inputs and outputs of the QUBOs of a layer."""
    count, width = block_shape(num_variables, widest)
    return [(width, num_columns)] * count


def second_moments(rows, shape):
    """Returns X'X, or its diagonal blocks.

    Args:
        rows: Tensor of shape `(B, n)`.
        shape: Triple of integers, `(blocks, width, width)`.

    Returns:
        Tensor of shape `shape`.
    """
    count, width, _ = shape
    if count == 1:
        return tf.matmul(rows, rows, transpose_a=True)[None]
    rows = tf.pad(rows, [(0, 0), (0, count * width - rows.shape[1])])
    rows = tf.transpose(tf.reshape(rows, (-1, width, count)), (2, 0, 1))
    return tf.matmul(rows, rows, transpose_a=True)


def split(tensor, shape):
    """Returns the blocks of a tensor of shape `(n, m)`, padded with zeros.

    Args:
        tensor: Tensor of shape `(n, m)`.
        shape: Shape of the couplings, `(blocks, width, width)`.

    Returns:
        Tensor of shape `(blocks, width, m)`.
    """
    count, width = shape[:2]
    if count == 1:
        return tensor[None]
    tensor = ops.padded(tensor, 0, count * width)
    tensor = tf.reshape(tensor, (width, count, tensor.shape[1]))
    return tf.transpose(tensor, (1, 0, 2))


def join(states, n):
    """Returns the states of a layer with n inputs from those of its blocks.

    Args:
        states: List of tensors of shape `(width, m)`.
        n: Integer.
    """
    if len(states) == 1:
        return states[0]
    columns = states[0].shape[1]
    states = tf.transpose(tf.stack(states), (1, 0, 2))
    return tf.reshape(states, (-1, columns))[:n]


def join_vector(values, n):
    """Returns one value per input from values of shape `(blocks, width)`."""
    return tf.reshape(tf.transpose(values), (-1,))[:n]


def block_names(layer, count):
    """Returns the names of the blocks of a layer: `dense[0]`, `dense[1]`."""
    return [layer] if count == 1 else [f"{layer}[{i}]" for i in range(count)]


def layer_name(name):
    """Returns the name of the layer of a block."""
    head, bracket, tail = name.rpartition("[")
    return head if bracket and tail[:-1].isdigit() else name
