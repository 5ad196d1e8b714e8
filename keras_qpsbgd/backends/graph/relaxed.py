"""Backends without a search, for the relaxed QUBO and for its linear part."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_qpsbgd.backends.graph import batches
from keras_qpsbgd.backends.graph import products
from keras_qpsbgd.backends.graph.graph_backend import GraphBackend
from keras_qpsbgd.qubo import ops

RHO = 0.1
# Added to the ridge, so that it is positive even if Q is zero.
MIN_RIDGE = 1e-30
# Iterations of conjugate gradients in place of a factorization.
ITERATIONS = 8


def ridge_solution(problem, rho=RHO):
    r"""Returns the minimum (n, m) of the QUBO relaxed to real numbers.

    $$x_j = -\tfrac12 (Q + \rho \tfrac{\mathrm{tr} Q}{n} I)^{-1} s_j$$

    One Cholesky factorization serves all columns.
    """
    couplings = problem.couplings
    ridge = _ridge(couplings, problem.fields.shape[0], rho)
    diagonal = tf.linalg.diag_part(couplings) + ridge
    factor = tf.linalg.cholesky(tf.linalg.set_diag(couplings, diagonal))
    return tf.linalg.cholesky_solve(factor, -0.5 * problem.fields)


def iterated_solution(problem, sizes, iterations, rho=RHO):
    """Approximates `ridge_solution` without a factorization.

    Runs a fixed number of conjugate gradient iterations for all columns of all
    layers at once.

    Args:
        problem: A stack of `ops.Problem`, padded with zeros.
        sizes: List of integers. Number of inputs of each layer.
        iterations: Integer.
        rho: Float. Ridge, relative to the mean diagonal of Q. Defaults to
            `0.1`.

    Returns:
        Tensor of shape `(layers, m, n)`, up to a positive factor per column.
    """
    ridge = _ridge(problem.couplings, np.float32(sizes), rho)[:, None, None]
    matrix = products.rounded(problem.couplings)
    target = tf.linalg.matrix_transpose(-problem.fields)
    # The squares of small numbers would underflow.
    largest = tf.reduce_max(tf.abs(target), axis=-1, keepdims=True)
    target = tf.math.divide_no_nan(target, largest)

    def multiply(x):
        return tf.matmul(products.rounded(x), matrix)

    found = tf.zeros_like(target)
    residual = direction = target
    image = multiply(target)
    square = _dot(residual, residual)
    for iteration in range(iterations):
        change = image + ridge * direction
        size = tf.math.divide_no_nan(square, _dot(change, direction))
        found += size * direction
        if iteration == iterations - 1:
            break
        residual -= size * change
        before = square
        square = _dot(residual, residual)
        ratio = tf.math.divide_no_nan(square, before)
        direction = residual + ratio * direction
        image = multiply(residual) + ratio * image
    return found


def _ridge(couplings, n, rho):
    return tf.linalg.trace(couplings) * (rho / n) + MIN_RIDGE


def _dot(a, b):
    return tf.reduce_sum(a * b, axis=-1, keepdims=True)


class RidgeBackend(GraphBackend):
    r"""Solves the QUBO relaxed to real numbers and rounds the solution.

    $$g_j = \mathrm{sign}\left(-\tfrac12
      (Q + \rho \tfrac{\mathrm{tr} Q}{n} I)^{-1} s_j\right)$$

    One Cholesky factorization per layer serves all columns. The backend is
    deterministic and independent of the scale of the fields, so `kappa` has no
    effect. It is the baseline that any QUBO solver should beat.

    On a GPU, where factorizations are slow, conjugate gradient iterations
    replace them, for all layers at once.

    Args:
        rho: Float. Ridge, relative to the mean diagonal of Q. Defaults to
            `0.1`.

    Raises:
        ValueError: If `rho` is not positive.

    Example:
        ```python
        optimizer = kq.QPSBGD(backend={"name": "ridge", "rho": 0.1})
        ```
    """

    name = "ridge"

    def __init__(self, rho: float = RHO) -> None:
        super().__init__()
        if not rho > 0:
            raise ValueError(f"`rho` must be positive. Received: rho={rho}")
        self.rho = rho

    @property
    def compiled(self) -> bool:  # type: ignore[override]
        # XLA factorizes a matrix slowly on a CPU.
        return products.on_gpu()

    def search(self, problem: ops.Problem, seed: tf.Tensor) -> tf.Tensor:
        del seed
        return ops.sign(ridge_solution(problem, self.rho))

    def _search_all(self, layers, seeds, is_warm):
        if not products.on_gpu():
            return super()._search_all(layers, seeds, is_warm)

        def solve(stack, sizes):
            found = iterated_solution(stack, sizes, ITERATIONS, self.rho)
            return ops.sign(tf.linalg.matrix_transpose(found))

        return batches.in_batches(layers, solve, self._finished)

    def get_config(self) -> dict[str, Any]:
        return {"rho": self.rho}


class SignBackend(GraphBackend):
    """Returns sign(-s), the solution of the QUBO without its couplings.

    Example:
        ```python
        optimizer = kq.QPSBGD(backend="sign")
        ```
    """

    name = "sign"
    compiled = False
    uses_couplings = False
    can_ascend = False

    def search(self, problem: ops.Problem, seed: tf.Tensor) -> tf.Tensor:
        del seed
        return ops.sign(-problem.fields)
