"""Callback that shows and logs the progress of a solver on the host."""

import logging
import math
import shutil
import warnings
from typing import Any

from tensorflow import keras

from keras_qpsbgd.backends import GraphBackend
from keras_qpsbgd.backends.host.solver_report import SolverReport
from keras_qpsbgd.optimizers import QPSBGD

_logger = logging.getLogger("keras_qpsbgd")

# The progress bar of Keras with loss and accuracy takes about 75 columns.
_WIDE = 100


class SolverProgress(keras.callbacks.Callback):
    """Callback that shows and logs the progress of a solver on the host.

    The progress bar of Keras shows the metric `solver_s`, the mean number of
    seconds per step that the solver took in the epoch. A terminal with fewer
    than 100 columns shows it only at the end of the epoch, because every update
    of a bar that does not fit on one line starts a new line.

    With `qpu_budget_seconds`, the progress bar also shows the metric
    `solver_budget_s`, the remaining seconds of the budget. When training
    starts, the callback logs an estimate of the QPU time of the whole `fit` to
    the logger `keras_qpsbgd`, at the level `INFO`. If the budget is too small,
    a warning states after how many steps it will be spent. See
    `QPSBGD.estimate`.

    At the end of each epoch, the callback adds these figures of the epoch to
    the logs. They appear in `History`, and in `CSVLogger` and `TensorBoard` if
    these come later in the list of callbacks.

    - `solver_s`: Mean number of seconds per step.
    - `solver_energy`: Mean energy of a column, over all layers and updates.
    - `solver_retries`: Number of repeated calls.
    - `solver_fallbacks`: Number of solves by the `on_failure` backend.
    - `solver_qpu_s`: QPU access time in seconds, for `dwave`, `leap_hybrid` and
      all samplers whose answers contain it.
    - `solver_budget_s`: Remaining seconds of `qpu_budget_seconds`.
    - `solver_chain_breaks`: Mean fraction of broken chains, for `dwave` and all
      backends whose answers contain it.

    A mean is NaN if there was no solve in the epoch. See
    `optimizer.solver_report()` for the figures of each layer.

    With a backend that solves in the graph, such as `native`, the callback only
    prints, above the first progress bar, that the first step compiles the
    solver. With other optimizers, it does nothing.

    Example:
        ```python
        import dimod
        import numpy as np
        from tensorflow import keras

        import keras_qpsbgd as kq

        x = np.random.default_rng(0).normal(size=(64, 4))
        y = x @ [[1.0], [-1.0], [1.0], [1.0]]
        model = keras.Sequential([kq.layers.BinaryDense(1)])
        model.compile(kq.QPSBGD(0.02, dimod.ExactSolver()), "mse")
        model.fit(x, y, callbacks=[kq.callbacks.SolverProgress()])
        ```
    """

    _optimizer: Any = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        optimizer = self.model.optimizer
        # Mixed precision wraps the optimizer in a `LossScaleOptimizer`.
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        self._optimizer = None
        if not isinstance(optimizer, QPSBGD):
            return
        if isinstance(optimizer.backend, GraphBackend):
            self._announce_compilation(optimizer)
        else:
            self._optimizer = optimizer
            self._confirm_cost()

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._optimizer is not None:
            self._report = self._optimizer.solver_report()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        is_wide = shutil.get_terminal_size((_WIDE, 24)).columns >= _WIDE
        if self._optimizer is not None and logs is not None and is_wide:
            self._log(logs)

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._optimizer is not None and logs is not None:
            logs["solver_s"] = math.nan
            self._log(logs)
            logs.update(figures_of_epoch(self._optimizer, self._report))

    def _announce_compilation(self, optimizer):
        """Explains why the first step is slow, if a progress bar shows it."""
        is_first = not optimizer._solver.is_checked  # set when a step is traced
        has_bar = (
            self.params.get("verbose") in (1, "auto")
            and keras.utils.is_interactive_logging_enabled()
        )
        if is_first and optimizer.backend.compiled and has_bar:
            print("The first step compiles the solver. The others are faster.")

    def _confirm_cost(self):
        """Logs the estimate for this `fit`, and warns if it is too high."""
        batches = self.params.get("steps")
        # Legacy Keras builds some models in the first step. The steps of a
        # generator are unknown.
        if not batches or not self.model.built:
            return
        epochs = self.params.get("epochs", 1)
        if "qpu_access_time" not in self._optimizer.backend.info_entries:
            return
        found = self._optimizer.estimate(self.model, int(batches * epochs))
        _logger.info("Estimate for this fit:\n%s", found)
        if not found.fits:
            warnings.warn(
                f"Training could take {found.seconds:.4g} s of QPU time, but "
                f"only {found.budget_seconds:.4g} s of `qpu_budget_seconds` "
                "are left. The budget will be used up after "
                f"{found.affordable_steps:,} of {found.steps:,} steps. Then "
                "`on_failure` decides what happens. Received: "
                f"qpu_budget_seconds={self._optimizer.backend.budget.seconds:g}"
                f", on_failure={self._optimizer.on_failure!r}",
                stacklevel=2,
            )

    def _log(self, logs):
        """Adds the metrics that the progress bar shows."""
        found = self._optimizer.solver_report().since(self._report)
        if found.steps:
            logs["solver_s"] = found.step_seconds / found.steps
        remaining = _remaining(self._optimizer)
        if remaining is not None:
            logs["solver_budget_s"] = remaining


def figures_of_epoch(optimizer: QPSBGD, before: SolverReport) -> dict[str, Any]:
    """Returns the figures of the solver since an earlier report, as logs.

    Args:
        optimizer: `QPSBGD` with a backend on the host.
        before: `SolverReport` at the beginning of the epoch.
    """
    report = optimizer.solver_report()
    whole, epoch = report.total, report.since(before).total
    reported = optimizer.backend.info_entries
    logs = {
        "solver_energy": _or_nan(epoch.mean_energy),
        "solver_retries": epoch.retries,
        "solver_fallbacks": epoch.fallbacks,
    }
    if "qpu_access_time" in reported or whole.qpu_seconds:
        logs["solver_qpu_s"] = epoch.qpu_seconds
    remaining = _remaining(optimizer)
    if remaining is not None:
        logs["solver_budget_s"] = remaining
    has_chains = whole.mean_chain_breaks is not None
    if "chain_break_fraction" in reported or has_chains:
        logs["solver_chain_breaks"] = _or_nan(epoch.mean_chain_breaks)
    return logs


def _remaining(optimizer):
    """Returns the remaining QPU budget, or `None` without a budget."""
    budget = optimizer.backend.budget
    left = None if budget is None else budget.remaining()
    return None if left is None else float(left)


def _or_nan(value):
    return math.nan if value is None else value
