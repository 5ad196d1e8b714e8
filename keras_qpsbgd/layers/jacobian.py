"""Rows of layers that do not define them, from the Jacobian of the product."""

import math

import tensorflow as tf


def rows(multiply, inputs, weights):
    """Returns the Jacobian of the product, one row for each of its entries.

    Args:
        multiply: Function of `inputs` and `weights`. Returns the product.
        inputs: The inputs of the product.
        weights: Tensor. The binary weights.
    """
    with tf.GradientTape() as tape:
        tape.watch(weights)
        product = multiply(inputs, weights)
    jacobian = tape.jacobian(product, weights)
    return tf.reshape(jacobian, (-1, math.prod(weights.shape)))


def kept(upstream):
    """Returns which rows are part of a problem, see `ops.kept_rows`.

    As in layers that define `rows`, a row is kept if any entry along the last
    axis has a gradient, even if its own gradient is zero.

    Args:
        upstream: Tensor. The gradient of the product.
    """
    found = tf.reduce_any(upstream != 0, axis=-1, keepdims=True)
    return tf.reshape(tf.broadcast_to(found, tf.shape(upstream)), (-1, 1))
