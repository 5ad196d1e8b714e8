"""Callback that shows and logs the progress of a solver on the host."""

import contextlib
import logging
import math
import os
import shutil
import sys
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

    The callback adds two things to the progress bar of Keras.

    - The metric `solver_s` is the mean number of seconds per step that the
      solver took in the epoch. A terminal with fewer than 100 columns shows it
      only at the end of the epoch, because every update of a bar that does not
      fit on one line starts a new line.
    - If the solver takes longer than `after` seconds for a step, a status line
      shows the current layer, the elapsed time and the number of solved
      columns. It is updated every second and removed when the solver returns.

    The status line looks like this:

    ```text
    Solving for 12 s: layer dense_1 (2 of 3), 14 of 64 columns
    ```

    With `qpu_budget_seconds`, the status line also shows how much of the budget
    is left, and the progress bar shows the metric `solver_budget_s` beside
    `solver_s`. When training starts, an estimate of the QPU time of the whole
    `fit` is written to the log `keras_qpsbgd`, at the level `INFO`. If the
    budget is not enough, a warning states after how many steps it will be used
    up. See `QPSBGD.estimate`.

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
    shows a bar. The status line requires `verbose=1` or `verbose="auto"`. In a
    terminal, it is below the bar. In a notebook, where the cursor cannot move
    between lines, it follows the bar. If the output is a file or a pipe, there
    is no status line, because it could not be removed.

    With a backend that solves in the graph, such as `native`, the callback only
    prints that the first step compiles the solver, above the first bar. With
    another optimizer it does nothing.

    Args:
        after: Float. The number of seconds before the status line appears. It
            can appear up to one second later. Defaults to `2.0`.

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
        self._progress: Any = None
        self._display: Any = None
        self._optimizer: Any = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        optimizer = self.model.optimizer
        # Mixed precision wraps the optimizer in a `LossScaleOptimizer`.
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        self._progress = None
        if not isinstance(optimizer, QPSBGD):
            return
        if isinstance(optimizer.backend, GraphBackend):
            self._announce_compilation(optimizer)
        else:
            self._optimizer = optimizer
            self._progress = optimizer.host_progress
            self._display = _display(self.params.get("verbose"))
            if self._display is not None:
                self._display.remaining = self._remaining
            self._watch()
            self._confirm_cost()

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._progress is not None:
            self._before = self._progress.finished, self._progress.seconds
            self._report = self._optimizer.solver_report()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if not isinstance(self._display, _Terminal) or _columns() >= _WIDE:
            self._log(logs)
        self._watch()  # a failed solve stops the display

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._log(logs)
        self._log_report(logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._progress is not None:
            self._progress.watch(None)

    def _watch(self):
        if self._progress is not None:
            self._progress.watch(self._display, self.after)

    def _announce_compilation(self, optimizer):
        """Says why the first bar shows a long time, unless it does not."""
        is_first = not optimizer._checked  # set when a step is traced
        if (
            is_first
            and optimizer.backend.compiled
            and _has_bar(self.params.get("verbose"))
        ):
            print("The first step compiles the solver. The others are faster.")

    def _remaining(self):
        return _remaining(self._optimizer)

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
        if self._progress is None or logs is None:
            return
        steps, seconds = self._before
        steps = self._progress.finished - steps
        if steps:
            logs["solver_s"] = (self._progress.seconds - seconds) / steps
        remaining = self._remaining()
        if remaining is not None:
            logs["solver_budget_s"] = remaining

    def _log_report(self, logs):
        """Adds the figures of an epoch, with the same keys in all epochs."""
        if self._progress is None or logs is None:
            return
        logs.setdefault("solver_s", math.nan)
        logs.update(figures_of_epoch(self._optimizer, self._report))


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


def _has_bar(verbose):
    """Returns whether `fit` shows a progress bar, and not a log."""
    return (
        verbose in (1, "auto") and keras.utils.is_interactive_logging_enabled()
    )


def _display(verbose):
    """Returns the display of the status line, or `None`."""
    if not _has_bar(verbose):
        return None
    if "ipykernel" in sys.modules:  # the same test as in Keras
        return _Notebook()
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        return _Terminal()
    return None


class _Display:
    """Writes the status line, with what is left of the QPU budget."""

    def remaining(self):
        return None

    def show(self, text):
        left = self.remaining()
        if left is not None:
            # After the time and before the rest, which may be cut off.
            time, _, rest = text.partition(": ")
            text = f"{time}, {left:.4g} s of QPU budget left: {rest}"
        self.write(text)


class _Terminal(_Display):
    """Shows the status line below the bar.

    The bar may fill its own line. The cursor returns to where Keras left it, so
    that the next bar overwrites the previous one.
    """

    SAVE, RESTORE = "\x1b7", "\x1b8"
    BELOW = "\r\n\x1b[K"  # goes to the next line and clears it
    MAKE_ROOM = "\x1bD\x1b[A"  # scrolls if the bar is in the last line

    def write(self, text):
        text = text[: _columns() - 1]
        _write(self.MAKE_ROOM + self.SAVE + self.BELOW + text + self.RESTORE)

    def clear(self):
        _write(self.SAVE + self.BELOW + self.RESTORE)


class _Notebook(_Display):
    """Shows the status after the bar and removes it with backspaces."""

    width = 0

    def write(self, text):
        self.clear()
        self.width = len(text) + 3
        _write(" - " + text)

    def clear(self):
        back = "\b" * self.width
        _write(back + " " * self.width + back)
        self.width = 0


def _columns():
    return shutil.get_terminal_size().columns


def _write(text):
    # A closed terminal must not end training.
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(text)
        sys.stdout.flush()
