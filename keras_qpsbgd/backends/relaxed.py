"""Backends that do not search: the relaxed QUBO, and its linear part alone."""

import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd.backends.backend import GraphBackend


class RidgeBackend(GraphBackend):
    r"""The QUBO relaxed to real numbers, solved and rounded.

    $$g_j = \mathrm{sign}\left(-\tfrac12
      (Q + \rho \tfrac{\mathrm{tr} Q}{n} I)^{-1} s_j\right)$$

    One Cholesky factorisation per layer serves all columns (of the size of the
    batch where rows are kept). Deterministic, and independent of the gradient
    scale. Any claim about solving the QUBO should beat it.

    Args:
        rho: ridge, relative to the mean diagonal of Q.
    """

    name = "ridge"

    def __init__(self, rho=0.1):
        if not rho > 0:
            raise ValueError(f"`rho` must be positive. Received: rho={rho}")
        self.rho = rho

    def search(self, problem, seed):
        del seed
        n = problem.fields.shape[0]
        trace = tf.reduce_sum(ops.coupling_diagonal(problem))
        ridge = tf.where(trace > 0, self.rho * trace / n, 1.0)
        if problem.couplings is not None:
            matrix = problem.couplings + ridge * tf.eye(n)
            factor = tf.linalg.cholesky(matrix)
            return ops.sign(-tf.linalg.cholesky_solve(factor, problem.fields))
        # (Z'Z + r I)^-1 Z'V = Z' (ZZ' + r I)^-1 V
        z = problem.normalized_rows
        kernel = tf.matmul(z, z, transpose_b=True)
        kernel += ridge * tf.eye(tf.shape(z)[0])
        factor = tf.linalg.cholesky(kernel)
        weights = tf.linalg.cholesky_solve(factor, problem.row_gradients)
        return ops.sign(tf.matmul(z, weights, transpose_a=True))

    def get_config(self):
        return {"rho": self.rho}


class SignBackend(GraphBackend):
    """sign(-s): what remains of the QUBO without its couplings."""

    name = "sign"

    def search(self, problem, seed):
        del seed
        return ops.sign(-problem.fields)
