"""Solves the columns of a layer as integer programs with Gurobi."""

import contextlib
from typing import Any

import numpy as np

from keras_qpsbgd.backends.base import Backend
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.errors import TransientError
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.qubo import Qubo

# Number of variables that the license of `pip install gurobipy` allows.
PIP_LICENSE = 200
# Gap to the bound at which a column counts as solved, relative to the gap
# between the best state and a random one.
MIP_GAP = 1e-6


class GurobiBackend(Backend):
    r"""Finds the optimum of each column with Gurobi, within a work limit.

    With $g = 2x - 1$, $x \in \{0, 1\}^n$, the energy of a column is

    $$4 x^T Q x + (2 s - 4 Q 1)^T x + \mathrm{const}.$$

    The backend keeps one environment, and one model per number of inputs. It
    sets the quadratic part once per layer and step. Only the linear part
    changes from column to column.

    `Solution.info["proven_optimal"]` states for each column whether the optimum
    was proven, and `Solution.info["work"]` is the total work. A proof becomes
    more expensive as the layer gets wider and the gradient smaller. At the work
    limit, Gurobi returns the best state found so far.

    The license that comes with `pip install gurobipy` allows 200 inputs. Set
    `block_size` to at most 200 to solve wider layers in blocks.

    Args:
        work_limit: Float (optional). Maximum work per column, in Gurobi's work
            units of about one second. Deterministic, unlike a time limit.
            `None` searches until the optimum is proven. Defaults to `1.0`.
        **options: Arguments of `Backend`.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        ```python
        optimizer = kq.QPSBGD(backend={"name": "gurobi", "work_limit": 0.5})
        ```
    """

    name = "gurobi"
    package = "gurobipy"
    install = "keras_qpsbgd[gurobi]"
    is_local = True

    def __init__(self, work_limit: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        check_number("work_limit", work_limit, above=0, optional=True)
        self.work_limit = work_limit

    def check(self, num_variables: int, num_columns: int) -> None:
        super().check(num_variables, num_columns)
        num_variables = self.block_size_for(num_variables)
        with self._lock, _translate_errors():
            # Gurobi checks the license when it first optimizes a model.
            model, _ = self._model(num_variables)
            identity = np.eye(num_variables)
            model.setMObjective(identity, np.ones(num_variables), 0.0)
            model.optimize()

    def sample(
        self, qubo: Qubo, seed: int
    ) -> tuple[np.ndarray, dict[str, Any]]:
        with self._lock, _translate_errors():
            return self._sample(qubo, seed)

    def _sample(self, qubo, seed):
        from gurobipy import GRB

        n, m = qubo.num_variables, qubo.num_columns
        couplings = np.asarray(qubo.couplings, dtype=np.float64)
        fields = np.asarray(qubo.fields, dtype=np.float64)
        # Gurobi's tolerances are absolute, so scale the energies. The scale
        # depends only on the couplings, which do not change if the columns are
        # split into parts.
        largest = np.abs(couplings).max()
        scale = 1.0 / largest if largest > 0 else 1.0
        model, x = self._model(n)
        model.Params.Seed = seed % 2_000_000_000
        model.setMObjective(4 * scale * couplings, np.zeros(n), 0.0)
        linear = scale * (2 * fields - 4 * couplings.sum(axis=1, keepdims=True))
        # Shift the energies so that a random state has energy 0. Gurobi's
        # relative gap is then (E - E_best) / (E_rand - E_best). With a large
        # offset it would be small for any state.
        pairs = couplings.sum() - np.trace(couplings)
        constant = scale * (pairs - fields.sum(axis=0))
        samples = np.empty((1, n, m), np.int8)
        proven = np.empty(m, bool)
        work = 0.0
        for column in range(m):
            # Without a reset, the answer would depend on previous columns.
            model.reset()
            x.Obj = linear[:, column]
            model.ObjCon = constant[column]
            model.optimize()
            if not model.SolCount:
                raise SolverError(
                    f"Gurobi found no solution (status {model.Status}). "
                    f"Received: work_limit={self.work_limit}"
                )
            samples[0, :, column] = np.where(x.X > 0.5, 1, -1)
            proven[column] = model.Status == GRB.OPTIMAL
            work += model.Work
        return samples, {"proven_optimal": proven, "work": work, "calls": m}

    def _model(self, n):
        """Returns the model for n inputs and its variables."""
        import gurobipy

        if self._handle is None:
            env = gurobipy.Env(empty=True)
            env.setParam("OutputFlag", 0)
            env.start()
            self._handle = env, {}
        env, models = self._handle
        if n not in models:
            model = gurobipy.Model(env=env)
            if self.work_limit is not None:
                model.Params.WorkLimit = self.work_limit
            model.Params.MIPGap = MIP_GAP
            model.Params.Threads = 1  # an executor solves columns at once
            models[n] = model, model.addMVar(n, vtype=gurobipy.GRB.BINARY)
        return models[n]

    def close(self) -> None:
        with self._lock:
            if self._handle is not None:
                env, models = self._handle
                for model, _ in models.values():
                    model.dispose()
                env.dispose()
            super().close()

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "work_limit": self.work_limit}


@contextlib.contextmanager
def _translate_errors():
    """Converts Gurobi's exceptions to those of the backends."""
    import gurobipy

    codes = gurobipy.GRB.Error
    try:
        yield
    except gurobipy.GurobiError as error:
        text = f"Gurobi error {error.errno}: {error}"
        if error.errno == codes.SIZE_LIMIT_EXCEEDED:
            raise BackendUnavailable(
                "The layer is too wide for the Gurobi license. The license "
                f"that comes with pip allows {PIP_LICENSE} inputs. Install a "
                "full license (free for academics), set `block_size` to at "
                f"most {PIP_LICENSE}, or use the backend `native`. "
                f"Received: {text}"
            ) from error
        if error.errno == codes.NO_LICENSE:
            raise BackendUnavailable(
                "Gurobi found no valid license. Install one "
                "(https://www.gurobi.com/solutions/licensing/), or remove an "
                "expired license file to use the license that comes with pip. "
                f"Received: {text}"
            ) from error
        if error.errno in (codes.NETWORK, codes.JOB_REJECTED, codes.CSWORKER):
            raise TransientError(text) from error
        raise SolverError(text) from error
