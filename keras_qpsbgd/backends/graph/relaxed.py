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
# With at most this many inputs, the choice between the two formulas at run time
# costs more than it saves.
ALWAYS_BY_INPUTS = 32


def ridge_solution(problem, rho=RHO):
    r"""Returns the minimum (n, m) of the QUBO relaxed to real numbers.

    $$x_j = -\tfrac12 (Q + \rho \tfrac{\mathrm{tr} Q}{n} I)^{-1} s_j$$

    One Cholesky factorization serves all columns. If the rows are available and
    there are fewer rows than inputs, its size is the number of rows, since

    $$(Z^T Z + r I)^{-1} Z^T V = Z^T (Z Z^T + r I)^{-1} V .$$
    """
    n = problem.fields.shape[0]
    trace = tf.reduce_sum(ops.coupling_diagonal(problem))
    ridge = trace * (rho / n) + MIN_RIDGE
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
    """Factorizes `matrix` with `ridge` added to the diagonal."""
    diagonal = tf.linalg.diag_part(matrix) + ridge
    return tf.linalg.cholesky(tf.linalg.set_diag(matrix, diagonal))


class RidgeBackend(GraphBackend):
    r"""Solves the QUBO relaxed to real numbers and rounds the solution.

    $$g_j = \mathrm{sign}\left(-\tfrac12
      (Q + \rho \tfrac{\mathrm{tr} Q}{n} I)^{-1} s_j\right)$$

    One Cholesky factorization per layer serves all columns. Its size is the
    number of inputs or the batch size, whichever is smaller. The backend is
    deterministic and independent of the gradient scale. It is the baseline that
    any QUBO solver should beat.

    Args:
        rho: Float. Ridge, relative to the mean diagonal of Q. Defaults to
            `0.1`.
        search: String. One of `"sequential"` (factorizations),
            `"parallel"` (conjugate gradient iterations, for all layers
            together) and `"auto"`, which means `"parallel"` if TensorFlow uses
            a GPU, else `"sequential"`. Defaults to `"auto"`.
    """

    name = "ridge"
    scale_matters = False

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

    def _groups(self, problems):
        if self.compiled:
            return [list(range(len(problems)))]
        return super()._groups(problems)

    def _search_all(self, problems, seeds, finish):
        def solve(stack, sizes, seeds):
            del seeds
            return ops.sign(
                iterated_ridge.solution(stack, sizes, ITERATIONS, self.rho)
            )

        return stacks.in_batches(problems, seeds, solve, finish)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = {"rho": self.rho}
        if self.search_kind != "auto":
            config["search"] = self.search_kind
        return config


class SignBackend(GraphBackend):
    """Returns sign(-s), the solution of the QUBO without its couplings."""

    name = "sign"
    compiled = False
    scale_matters = False
    uses_couplings = False
    can_ascend = False

    def search(self, problem: ops.Problem, seed: tf.Tensor) -> tf.Tensor:
        del seed
        return ops.sign(-problem.fields)

    def _unrounded(self, problem, seed):
        del seed
        return -problem.fields
