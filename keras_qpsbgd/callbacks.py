"""What a solver is doing, at Keras's progress bar; backups of a training."""

import contextlib
import os
import pathlib
import secrets
import shutil
import sys
from typing import Any

from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd import disk
from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.optimizers import QPSBGD

__all__ = ["BackupAndRestore", "SolverProgress"]

# Keras's bar with loss and accuracy takes some 75 columns.
_WIDE = 100


class SolverProgress(keras.callbacks.Callback):
    """Shows in Keras's progress bar what the solver on the host is doing.

    Two things:

    - `solver_s`, the seconds per step in the solver, mean over the epoch, is
      one more entry of the bar and of `History`. A terminal of less than 100
      columns has it at the end of the epoch only: a bar that does not fit into
      its line is repeated line by line.
    - While the solver works on a step for longer than `after` seconds, a line
      at the bar says on which layer, for how long and how many columns are
      done. It is rewritten every second and removed when the solver answers.

        Solving for 12 s: layer dense_1 (2 of 3), 14 of 64 columns

    It has to be passed to `fit`: Keras tells callbacks alone whether a bar is
    wanted. The line is there with `verbose=1` (or `"auto"`) only, below the bar
    in a terminal and behind it in a notebook, where lines cannot be reached.
    What goes to a file or a pipe has no line, as nothing can be removed there.
    With a backend that solves in the graph, or another optimizer, the callback
    does nothing.

    Args:
        after: seconds that a step is solved before the line appears (up to one
            second later).

    Example:

    ```python
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
        # What mixed precision wraps it in.
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
        self._watch()  # a failed solve has ended it

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


class BackupAndRestore(keras.callbacks.BackupAndRestore):
    """Keras's `BackupAndRestore`, with a backup that is whole at any moment.

    A training that is killed, by a full queue or a power switch, goes on after
    the last whole epoch when the same script runs again.

    Keras 3 writes over its backup. A process that is killed while it does so
    leaves a file that cannot be read, and every later `fit` fails; or weights
    of one epoch with the number of another, and `fit` trains one epoch too
    many or too few silently. `double_checkpoint=True` does not prevent
    that. Here Keras writes beside the backup, and what it has written takes the
    place of the backup in one step. Legacy Keras does so by itself.

    To end with the same weights as a training that was not killed, the data of
    an epoch must depend on the number of the epoch alone, e.g. with
    `shuffle=False`. There is no `save_freq`: Keras cannot go on in the middle
    of an epoch.

    Args:
        backup_dir: folder of the backup, on a disk of this machine. Use one for
            each training.
        delete_checkpoint: whether to remove the folder at the end of the
            training.

    Example:

    ```python
    backup = kq.callbacks.BackupAndRestore("backup")
    model.fit(x, y, epochs=100, shuffle=False, callbacks=[backup])
    ```
    """

    def __init__(
        self, backup_dir: str | os.PathLike, delete_checkpoint: bool = True
    ) -> None:
        self._folder = pathlib.Path(backup_dir)
        # It is removed in the end.
        if not self._folder.name:
            raise ValueError(
                "`backup_dir` must be the name of a folder. "
                f"Received: backup_dir={str(backup_dir)!r}"
            )
        self._delete = delete_checkpoint
        written = self._folder / "written" if _keras.KERAS_3 else self._folder
        super().__init__(str(written), delete_checkpoint=False)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        disk.remove_leftovers(self._folder.parent, self._gone("*"))
        if _keras.KERAS_3:
            # A kill may have left a part of a backup, or of a copy.
            shutil.rmtree(self.backup_dir, ignore_errors=True)
            for backup in self._backups()[-1:]:
                shutil.copytree(backup, self.backup_dir)
        super().on_train_begin(logs)

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        super().on_epoch_end(epoch, logs)
        if _keras.KERAS_3:
            before = self._backups()
            os.rename(self.backup_dir, self._folder / f"epoch-{epoch + 1:08}")
            for backup in before:
                shutil.rmtree(backup)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_end(logs)
        if self._delete and self._folder.exists():
            # A part of the backup must not be taken for all of it.
            gone = self._folder.with_name(self._gone(secrets.token_hex(8)))
            os.rename(self._folder, gone)
            shutil.rmtree(gone)

    def _backups(self):
        """By epoch; the last is whole, a kill may have left parts of others."""
        return sorted(self._folder.glob("epoch-*"))

    def _gone(self, mark):
        return f".{self._folder.name}-{mark}.tmp"


def _display(verbose):
    """Where the line is shown, `None` for nowhere."""
    if verbose not in (1, "auto"):
        return None
    if not keras.utils.is_interactive_logging_enabled():
        return None  # the bar goes into a log
    if "ipykernel" in sys.modules:  # Keras asks the same
        return _Notebook()
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        return _Terminal()
    return None


class _Terminal:
    """A line below the bar.

    The bar itself may fill its line. The cursor stays where Keras left it, so
    that the next bar is written over the last one.
    """

    SAVE, RESTORE = "\x1b7", "\x1b8"
    BELOW = "\r\n\x1b[K"  # at the start of the next line, which is emptied
    MAKE_ROOM = "\x1bD\x1b[A"  # scrolls if the bar is the last line

    def show(self, text):
        text = text[: _columns() - 1]
        _write(self.MAKE_ROOM + self.SAVE + self.BELOW + text + self.RESTORE)

    def clear(self):
        _write(self.SAVE + self.BELOW + self.RESTORE)


class _Notebook:
    """Behind the bar, taken back with backspaces, as Keras does itself."""

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
    # A terminal that is gone must not end the training.
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(text)
        sys.stdout.flush()
