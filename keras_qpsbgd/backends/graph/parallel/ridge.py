"""The ridge solution by conjugate gradients, for GPUs."""

import numpy as np
import tensorflow as tf

from keras_qpsbgd import products
from keras_qpsbgd.backends.graph.parallel import forms

RHO = 0.1
# Added to the ridge, so that it is positive even if Q is zero.
MIN_RIDGE = 1e-30


def solution(problem, sizes, iterations, rho=RHO):
    """Approximates the ridge solution without a factorization.

    Runs a fixed number of conjugate gradient iterations for all columns of all
    layers at once. See `relaxed.ridge_solution` for the formula.

    Args:
        problem: A stack of `ops.Problem`, padded with zeros.
        sizes: List of integers. Number of inputs of each layer.
        iterations: Integer.
        rho: Float. Ridge, relative to the mean diagonal of Q. Defaults to
            `0.1`.

    Returns:
        Tensor of shape `(layers, m, n)`, up to a positive factor per column.
    """
    trace = tf.linalg.trace(problem.couplings)
    ridge = trace * (rho / np.float32(sizes)) + MIN_RIDGE
    ridge = ridge[:, None, None]
    matrix = products.rounded(problem.couplings)
    target = forms.lanes_first(-problem.fields)
    # The squares of small numbers would underflow.
    largest = tf.reduce_max(tf.abs(target), axis=-1, keepdims=True)
    target = tf.math.divide_no_nan(target, largest)
    return _conjugate_gradients(
        lambda x: products.matmul(products.rounded(x), matrix),
        ridge,
        target,
        iterations,
    )


def _conjugate_gradients(multiply, ridge, target, iterations):
    """Solves for each row of `target`, starting from zero.

    Args:
        multiply: Function that multiplies rows by a symmetric matrix Q.
        ridge: Tensor. The matrix of the equations is Q + ridge.
        target: Tensor of shape `(layers, lanes, size)`.
        iterations: Integer.
    """
    found = tf.zeros_like(target)
    residual = direction = target
    image = multiply(target)
    square = _dot(residual, residual)
    for step in range(iterations):
        change = image + ridge * direction
        size = tf.math.divide_no_nan(square, _dot(change, direction))
        found += size * direction
        if step == iterations - 1:
            break
        residual -= size * change
        before = square
        square = _dot(residual, residual)
        ratio = tf.math.divide_no_nan(square, before)
        direction = residual + ratio * direction
        image = multiply(residual) + ratio * image
    return found


def _dot(a, b):
    return tf.reduce_sum(a * b, axis=-1, keepdims=True)
