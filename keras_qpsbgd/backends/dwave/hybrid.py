"""Solves all columns of a layer in one call of Leap's hybrid solver."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_qpsbgd.backends import remote
from keras_qpsbgd.backends.base import Backend
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.backends.errors import reject_secrets
from keras_qpsbgd.backends.solution import StepCost
from keras_qpsbgd.qubo import Qubo


class LeapHybridBackend(Backend):
    """Solves with D-Wave's hybrid solver for binary quadratic models.

    Each call takes at least three seconds, so all columns of a layer are sent
    as one problem, or as few problems as the solver's limits allow.

    Configure access with D-Wave's own tools. See `DWaveBackend`.

    Args:
        solver: String or dictionary (optional). Name of the solver, or its
            features. Defaults to `None`, which uses D-Wave's configuration.
        time_limit: Float (optional). Seconds per call. Defaults to `None`,
            which uses the minimum that the solver accepts for the problem size.
        sampler: An open `LeapHybridSampler` (optional). It is not saved.
            Defaults to `None`, which connects to Leap.
        **options: Arguments of `Backend`.

    Raises:
        ValueError: If an argument is invalid.

    Example:
        ```python
        optimizer = kq.QPSBGD(backend={"name": "leap_hybrid", "time_limit": 5})
        ```
    """

    name = "leap_hybrid"
    package = "dwave.system"
    install = "keras_qpsbgd[dwave]"
    info_entries = ("qpu_access_time",)

    def __init__(
        self,
        solver: Any = None,
        time_limit: float | None = None,
        sampler: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        reject_secrets({"solver": solver})
        check_number("time_limit", time_limit, above=0, optional=True)
        self.solver = solver
        self.time_limit = time_limit
        self.sampler = sampler

    @classmethod
    def unconfigured(cls) -> str:
        return remote.token_missing("LeapHybridSampler")

    def check(self, num_variables: int, num_columns: int) -> None:
        """Checks the layer and connects to Leap, before training."""
        super().check(num_variables, num_columns)
        self.open()

    def open(self) -> Any:
        """Returns the sampler, which is opened on first use."""
        with self._lock:
            if self._handle is None:
                self._handle = self.sampler or remote.connect(
                    "LeapHybridSampler", self.timeout_seconds, [self.solver]
                )
            return self._handle

    def _plan_calls(self, qubo):
        num_variables = qubo.num_variables
        properties = self.open().properties
        variables = properties.get("maximum_number_of_variables", np.inf)
        biases = properties.get("maximum_number_of_biases", np.inf)
        per_column = num_variables * (num_variables + 1) / 2
        fitting = min(variables / num_variables, biases / per_column)
        return int(min(qubo.num_columns, max(1, fitting))), {}

    def sample(
        self, qubo: Qubo, seed: int
    ) -> tuple[np.ndarray, dict[str, Any]]:
        del seed  # the solver has none
        n, m = qubo.num_variables, qubo.num_columns
        found = remote.sample(
            self.open(),
            qubo.to_union_bqm(),
            self.timeout_seconds,
            time_limit=self.time_limit,
        )
        samples = remote.ordered_samples(found, list(range(n * m)), self.open())
        samples = samples.reshape(-1, m, n)
        names = ("qpu_access_time", "run_time", "charge_time")
        reported = found.info or {}
        info = {k: reported[k] for k in names if k in reported}
        info.update(calls=1, reads=len(samples))
        return samples.swapaxes(1, 2), info

    def step_cost(self, sizes: Sequence[tuple[int, int]]) -> StepCost:
        del sizes
        return StepCost(
            0.0,
            0,
            "Leap charges the hybrid solver for the run time of a call, at "
            "least three seconds or `time_limit`, not for QPU time.",
        )

    def close(self) -> None:
        with self._lock:
            if self._handle is not None and self.sampler is None:
                self._handle.close()
            super().close()

    def get_config(self) -> dict[str, Any]:
        config = {"solver": self.solver, "time_limit": self.time_limit}
        given = {k: v for k, v in config.items() if v is not None}
        return {**super().get_config(), **given}
