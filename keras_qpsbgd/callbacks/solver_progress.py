"""Callback that shows and logs the progress of a solver on the host."""

import logging
import math
import shutil
import warnings
from typing import Any

from tensorflow import keras

from keras_qpsbgd.backends import GraphBackend
from keras_qpsbgd.backends.errors import check_number
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

    If the solver takes longer than `after` seconds for a step, the callback
    prints a line with the elapsed time, the layer and the number of solved
    columns, at most every five seconds:

    ```text
    Solving for 12 s: layer dense_1 (2 of 3), 14 of 64 columns
    ```

    With `qpu_budget_seconds`, the progress bar also shows the metric
    `solver_budget_s`, what is left of the budget. When training starts, an
    estimate of the QPU time of the whole `fit` is written to the log
    `keras_qpsbgd`, at the level `INFO`. If the budget is not enough, a warning
    states after how many steps it will be used up. See `QPSBGD.estimate`.

    At the end of each epoch, the callback adds these figures of the epoch to
    the logs. They appear in `History`, and in `CSVLogger` and `TensorBoard` if
    these come later in the list of callbacks.

    - `solver_s`: Mean number of seconds per step.
    - `solver_energy`: Mean energy of a column, over all layers and updates.
    - `solver_retries`: Number of repeated calls.
    - `solver_fallbacks`: Number of solves by the `on_failure` backend.
    - `solver_qpu_s`: QPU access time in seconds, for `dwave`, `leap_hybrid` and
      all samplers whose answers contain it.
    - `solver_budget_s`: Seconds of `qpu_budget_seconds` that are left.
    - `solver_chain_breaks`: Mean fraction of broken chains, for `dwave` and all
      backends whose answers contain it.

    A mean is NaN if there was no solve in the epoch. See
    `optimizer.solver_report()` for the figures of each layer.

    Pass the callback to `fit`, because only callbacks can see whether `fit`
    shows a bar. The lines are printed with `verbose=1` or `verbose="auto"`.

    With a backend that solves in the graph, such as `native`, the callback only
    prints that the first step compiles the solver, above the first bar. With
    another optimizer it does nothing.

    Args:
        after: Float. The number of seconds of a step before its first line. A
            line is printed when the solver reports a layer or a column.
            Defaults to `2.0`.

    Raises:
        ValueError: If `after` is negative or not a number.

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

    def __init__(self, after: float = 2.0) -> None:
        super().__init__()
        check_number("after", after, at_least=0)
        self.after = after
        self._optimizer: Any = None

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
            self._watch()
            self._confirm_cost()

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._optimizer is not None:
            progress = self._optimizer.host_progress
            self._before = progress.finished, progress.seconds
            self._report = self._optimizer.solver_report()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._optimizer is not None:
            if shutil.get_terminal_size((_WIDE, 24)).columns >= _WIDE:
                self._log(logs)
            self._watch()  # a failed solve ends it

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._optimizer is not None and logs is not None:
            logs["solver_s"] = math.nan
            self._log(logs)
            logs.update(figures_of_epoch(self._optimizer, self._report))

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._optimizer is not None:
            self._optimizer.host_progress.watch(None)

    def _watch(self):
        if self._has_bar():
            self._optimizer.host_progress.watch(_print, self.after)

    def _has_bar(self):
        """Returns whether `fit` shows a progress bar, and not a log."""
        return (
            self.params.get("verbose") in (1, "auto")
            and keras.utils.is_interactive_logging_enabled()
        )

    def _announce_compilation(self, optimizer):
        """Says why the first bar shows a long time, unless it does not."""
        is_first = not optimizer._solver.is_checked  # set in the first step
        if is_first and optimizer.backend.compiled and self._has_bar():
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
        """Adds what the bar shows."""
        progress = self._optimizer.host_progress
        steps, seconds = self._before
        steps = progress.finished - steps
        if logs is None:
            return
        if steps:
            logs["solver_s"] = (progress.seconds - seconds) / steps
        remaining = _remaining(self._optimizer)
        if remaining is not None:
            logs["solver_budget_s"] = remaining


def _print(text):
    print(f"\n{text}", flush=True)  # ends the line of the progress bar


def figures_of_epoch(optimizer: QPSBGD, before: SolverReport) -> dict[str, Any]:
    """Returns what the solver did after an earlier report, as logs.

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
    """Returns what is left of the QPU budget, or `None` without a budget."""
    budget = optimizer.backend.budget
    left = None if budget is None else budget.remaining()
    return None if left is None else float(left)


def _or_nan(value):
    return math.nan if value is None else value
