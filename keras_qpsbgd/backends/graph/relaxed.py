"""Backends that do not search: the relaxed QUBO, and its linear part alone."""

from typing import Any

import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd.backends.graph.graph_backend import GraphBackend

RHO = 0.1
# Added to the ridge, so that there is one if Q is zero.
LEAST_RIDGE = 1e-30
# For so few inputs a choice between two ways costs more than it saves.
ALWAYS_BY_INPUTS = 32


def ridge_solution(problem, rho=RHO):
    r"""The minimum (n, m) of the QUBO relaxed to real numbers.

    $$x_j = -\tfrac12 (Q + \rho \tfrac{\mathrm{tr} Q}{n} I)^{-1} s_j$$

    One Cholesky factorisation serves all columns. It is of size B where rows
    are at hand and there are fewer of them than inputs,

    $$(Z^T Z + r I)^{-1} Z^T V = Z^T (Z Z^T + r I)^{-1} V .$$
    """
    n = problem.fields.shape[0]
    trace = tf.reduce_sum(ops.coupling_diagonal(problem))
    ridge = trace * (rho / n) + LEAST_RIDGE
    z = problem.normalized_rows

    def by_inputs():
        couplings = problem.couplings
        if couplings is None:
            couplings = tf.matmul(z, z, transpose_a=True)
        factor = _factor(couplings, ridge)
        return tf.linalg.cholesky_solve(factor, -0.5 * problem.fields)

    def by_rows():
        factor = _factor(tf.matmul(z, z, transpose_b=True), ridge)
        weights = tf.linalg.cholesky_solve(factor, problem.row_gradients)
        return tf.matmul(z, weights, transpose_a=True)

    if z is None or (problem.couplings is not None and n <= ALWAYS_BY_INPUTS):
        return by_inputs()
    if z.shape[0] is not None:
        return by_rows() if z.shape[0] < n else by_inputs()
    solution = tf.cond(tf.shape(z)[0] < n, by_rows, by_inputs)
    return tf.ensure_shape(solution, problem.fields.shape)


def _factor(matrix, ridge):
    diagonal = tf.linalg.diag_part(matrix) + ridge
    return tf.linalg.cholesky(tf.linalg.set_diag(matrix, diagonal))


class RidgeBackend(GraphBackend):
    r"""The QUBO relaxed to real numbers, solved and rounded.

    $$g_j = \mathrm{sign}\left(-\tfrac12
      (Q + \rho \tfrac{\mathrm{tr} Q}{n} I)^{-1} s_j\right)$$

    One Cholesky factorisation per layer serves all columns, of the size of the
    batch where that is less than the number of inputs. Deterministic, and
    independent of the gradient scale. Any claim about solving the QUBO should
    beat it.

    Args:
        rho: ridge, relative to the mean diagonal of Q.
    """

    name = "ridge"
    compiled = False
    scale_matters = False

    def __init__(self, rho: float = RHO) -> None:
        super().__init__()
        if not rho > 0:
            raise ValueError(f"`rho` must be positive. Received: rho={rho}")
        self.rho = rho

    def search(self, problem: ops.Problem, seed: tf.Tensor) -> tf.Tensor:
        del seed
        return ops.sign(ridge_solution(problem, self.rho))

    def get_config(self) -> dict[str, Any]:
        return {"rho": self.rho}


class SignBackend(GraphBackend):
    """sign(-s): what remains of the QUBO without its couplings."""

    name = "sign"
    compiled = False
    scale_matters = False

    def search(self, problem: ops.Problem, seed: tf.Tensor) -> tf.Tensor:
        del seed
        return ops.sign(-problem.fields)
