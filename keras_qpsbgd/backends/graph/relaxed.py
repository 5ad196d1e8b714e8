"""Backends without a search: the relaxed QUBO, and only its linear part."""

from typing import Any

import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd.backends.graph.graph_backend import GraphBackend
from keras_qpsbgd.backends.graph.parallel import ridge as iterated_ridge
from keras_qpsbgd.backends.graph.parallel import stacks

RHO = iterated_ridge.RHO
MIN_RIDGE = iterated_ridge.MIN_RIDGE
# Iterations of conjugate gradients in place of a factorization.
ITERATIONS = 8


def ridge_solution(problem, rho=RHO):
    r"""Returns the minimum (n, m) of the QUBO relaxed to real numbers.

    $$x_j = -\tfrac12 (Q + \rho \tfrac{\mathrm{tr} Q}{n} I)^{-1} s_j$$

    One Cholesky factorization serves all columns.
    """
    n = problem.fields.shape[0]
    diagonal = tf.linalg.diag_part(problem.couplings)
    ridge = tf.reduce_sum(diagonal) * (rho / n) + MIN_RIDGE
    factor = tf.linalg.cholesky(
        tf.linalg.set_diag(problem.couplings, diagonal + ridge)
    )
    return tf.linalg.cholesky_solve(factor, -0.5 * problem.fields)


class RidgeBackend(GraphBackend):
    r"""Solves the QUBO relaxed to real numbers and rounds the solution.

    $$g_j = \mathrm{sign}\left(-\tfrac12
      (Q + \rho \tfrac{\mathrm{tr} Q}{n} I)^{-1} s_j\right)$$

    One Cholesky factorization per layer serves all columns. The backend is
    deterministic and independent of the scale of the fields, so `kappa` has no
    effect. It is the baseline that any QUBO solver should beat.

    Args:
        rho: Float. Ridge, relative to the mean diagonal of Q. Defaults to
            `0.1`.
        search: String. One of `"sequential"` (factorizations),
            `"parallel"` (conjugate gradient iterations, for all layers
            together) and `"auto"`, which means `"parallel"` if TensorFlow uses
            a GPU, else `"sequential"`. Defaults to `"auto"`.
    """

    name = "ridge"

    def __init__(self, rho: float = RHO, search: str = "auto") -> None:
        super().__init__()
        if not rho > 0:
            raise ValueError(f"`rho` must be positive. Received: rho={rho}")
        self.rho = rho
        self.search_kind = stacks.check_kind(search)

    @property
    def compiled(self) -> bool:  # type: ignore[override]
        # XLA factorizes a matrix slowly on a CPU.
        return stacks.is_parallel(self.search_kind)

    def search(self, problem: ops.Problem, seed: tf.Tensor) -> tf.Tensor:
        del seed
        return ops.sign(ridge_solution(problem, self.rho))

    def _unrounded(self, problem, seed):
        del seed
        return ridge_solution(problem, self.rho)

    def _groups(self, shapes):
        if self.compiled:
            return [list(range(len(shapes)))]
        return super()._groups(shapes)

    def _search_all(self, layers, seeds, is_warm):
        del is_warm

        def solve(stack, sizes, seeds):
            del seeds
            return ops.sign(
                iterated_ridge.solution(stack, sizes, ITERATIONS, self.rho)
            )

        return stacks.in_batches(layers, seeds, solve, self._finished)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = {"rho": self.rho}
        if self.search_kind != "auto":
            config["search"] = self.search_kind
        return config


class SignBackend(GraphBackend):
    """Returns sign(-s), the solution of the QUBO without its couplings."""

    name = "sign"
    compiled = False
    uses_couplings = False
    can_ascend = False

    def search(self, problem: ops.Problem, seed: tf.Tensor) -> tf.Tensor:
        del seed
        return ops.sign(-problem.fields)

    def _unrounded(self, problem, seed):
        del seed
        return -problem.fields
