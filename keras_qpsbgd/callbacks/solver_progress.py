"""Callback that shows and logs the progress of a solver on the host."""

import contextlib
import os
import shutil
import sys
from typing import Any

from tensorflow import keras

from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.optimizers import QPSBGD

# The progress bar of Keras with loss and accuracy takes about 75 columns.
_WIDE = 100


class SolverProgress(keras.callbacks.Callback):
    """Callback that shows the progress of a solver on the host.

    The callback adds two things to the progress bar of Keras.

    - The metric `solver_s` is the mean number of seconds per step that the
      solver took in the epoch. It is in the bar and in `History`. A terminal
      with fewer than 100 columns shows it only at the end of the epoch, because
      every update of a bar that does not fit into one line starts a new line.
    - If the solver takes longer than `after` seconds for a step, a status line
      shows the current layer, the elapsed time and the number of solved
      columns. It is updated every second and removed when the solver returns.

    The status line looks like this:

    ```text
    Solving for 12 s: layer dense_1 (2 of 3), 14 of 64 columns
    ```

    Pass the callback to `fit`, because only callbacks can see whether `fit`
    shows a bar. The status line requires `verbose=1` or `verbose="auto"`. In a
    terminal, it is below the bar. In a notebook, where the cursor cannot move
    between lines, it follows the bar. If the output is a file or a pipe, there
    is no status line, because it could not be removed. The callback does
    nothing with another optimizer or with a backend that solves in the graph.

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

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        optimizer = self.model.optimizer
        # Mixed precision wraps the optimizer in a `LossScaleOptimizer`.
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        self._progress = None
        if isinstance(optimizer, QPSBGD):
            self._progress = optimizer.host_progress
            self._display = _display(self.params.get("verbose"))
            self._watch()

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._progress is not None:
            self._before = self._progress.finished, self._progress.seconds

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

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._progress is not None:
            self._progress.watch(None)

    def _watch(self):
        if self._progress is not None:
            self._progress.watch(self._display, self.after)

    def _log(self, logs):
        if self._progress is None or logs is None:
            return
        steps, seconds = self._before
        steps = self._progress.finished - steps
        if steps:
            logs["solver_s"] = (self._progress.seconds - seconds) / steps


def _display(verbose):
    """Returns the display of the status line, or `None`."""
    if verbose not in (1, "auto"):
        return None
    if not keras.utils.is_interactive_logging_enabled():
        return None  # Keras writes the bar to a log
    if "ipykernel" in sys.modules:  # the same test as in Keras
        return _Notebook()
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        return _Terminal()
    return None


class _Terminal:
    """Shows the status line below the bar.

    The bar may fill its own line. The cursor returns to where Keras left it, so
    that the next bar overwrites the previous one.
    """

    SAVE, RESTORE = "\x1b7", "\x1b8"
    BELOW = "\r\n\x1b[K"  # goes to the next line and clears it
    MAKE_ROOM = "\x1bD\x1b[A"  # scrolls if the bar is in the last line

    def show(self, text):
        text = text[: _columns() - 1]
        _write(self.MAKE_ROOM + self.SAVE + self.BELOW + text + self.RESTORE)

    def clear(self):
        _write(self.SAVE + self.BELOW + self.RESTORE)


class _Notebook:
    """Shows the status after the bar and removes it with backspaces."""

    width = 0

    def show(self, text):
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
