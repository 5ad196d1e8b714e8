"""What `QPSBGD` tells about its solver."""

from typing import Any

from keras_qpsbgd import backends
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.backends.host.solver_report import SolverReport
from keras_qpsbgd.optimizers.estimate import QpuEstimate
from keras_qpsbgd.optimizers.estimate import estimate_model


class SolverInfo:
    """The public methods and properties of `QPSBGD` about its solver."""

    _solver: Any
    _accumulation: Any
    _skipping: Any
    _sizes: Any

    @property
    def backend(self) -> backends.Backend:
        """The solver of the QUBOs."""
        return self._solver.backend

    @property
    def on_failure(self) -> BackendLike:
        """What to do if a solve fails."""
        return self._solver.on_failure

    @property
    def last_error(self) -> Exception | None:
        """The latest exception of the solver, or `None`."""
        return self._solver.last_error

    @property
    def skipped_updates(self) -> int:
        """Number of updates that were skipped because of a non-finite value."""
        return self._skipping.count

    def solver_report(self) -> SolverReport:
        """Reports the calls, time and failures of the host solver.

        The attribute `layers` of the report maps the name of each layer to its
        figures, and `total` sums them. Print the report to see a table. It is
        empty for backends that solve in the graph.

        Returns:
            A copy of the current `SolverReport`.

        Example:
            ```python
            print(model.optimizer.solver_report())
            ```
        """
        return self._solver.report.copy()

    def estimate(self, model: Any, steps: int) -> QpuEstimate:
        """Estimates the QPU time of training a model.

        It connects to the solver if necessary, but sends no problem. If the
        backend uses no QPU time, the estimate is zero, and its `note` says why.
        `callbacks.SolverProgress` logs this estimate when `fit` starts, and
        warns if it exceeds the budget.

        Args:
            model: A built `keras.Model` with binary layers.
            steps: Integer. Number of training steps, which is the number of
                batches of all epochs.

        Returns:
            A `QpuEstimate`. Print it to see a table.

        Raises:
            ValueError: If the model has no trainable binary layer or is not
                built.
            BackendUnavailable: If the solver cannot be reached.

        Example:
            ```python
            print(optimizer.estimate(model, steps=1000))
            ```
        """
        return estimate_model(
            self.backend,
            model,
            steps,
            self._accumulation.steps or 1,
            self._sizes,
        )
