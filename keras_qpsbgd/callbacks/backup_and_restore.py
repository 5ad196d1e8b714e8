"""Callback that backs up a training run."""

import os
import pathlib
import secrets
import shutil
from typing import Any

from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd import disk


class BackupAndRestore(keras.callbacks.BackupAndRestore):
    """Callback that backs up and restores the training state atomically.

    It is a `keras.callbacks.BackupAndRestore` whose backup is complete at all
    times. If training is killed, for example by a job scheduler or a power
    failure, run the same script again to resume after the last complete epoch.

    Keras 3 overwrites its backup. If the process is killed during the write,
    the backup may be unreadable, so that every later `fit` fails. The backup
    may also contain the weights of one epoch and the number of another, so that
    `fit` silently trains one epoch too many or too few.
    `double_checkpoint=True` does not prevent this. With this callback, Keras
    writes to a separate folder, which then replaces the backup in one step.
    Legacy Keras already does this.

    A resumed run ends with the same weights as an uninterrupted one if the data
    of an epoch depend only on the number of the epoch, for example with
    `shuffle=False`. The argument `save_freq` is not supported, because Keras
    cannot resume in the middle of an epoch.

    Args:
        backup_dir: String or path. The folder of the backup, on a local disk.
            Use a separate folder for each training run.
        delete_checkpoint: Boolean. Whether to delete the folder at the end of
            training. Defaults to `True`.

    Raises:
        ValueError: If `backup_dir` is not the name of a folder.

    Example:
        ```python
        import numpy as np
        from tensorflow import keras

        import keras_qpsbgd as kq

        x = np.random.default_rng(0).normal(size=(64, 4))
        y = x @ [[1.0], [-1.0], [1.0], [1.0]]
        model = keras.Sequential([keras.Input((4,)), kq.layers.BinaryDense(1)])
        model.compile(kq.QPSBGD(0.02), "mse")
        backup = kq.callbacks.BackupAndRestore("backup")
        model.fit(x, y, epochs=10, shuffle=False, callbacks=[backup])
        ```
    """

    def __init__(
        self, backup_dir: str | os.PathLike, delete_checkpoint: bool = True
    ) -> None:
        self._folder = pathlib.Path(backup_dir)
        # `on_train_end` deletes this folder.
        if not self._folder.name:
            raise ValueError(
                "`backup_dir` must be the name of a folder. "
                f"Received: backup_dir={str(backup_dir)!r}"
            )
        self._delete = delete_checkpoint
        written = self._folder / "written" if _keras.KERAS_3 else self._folder
        super().__init__(str(written), delete_checkpoint=False)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        disk.remove_leftovers(self._folder.parent, self._deleted_name("*"))
        if _keras.KERAS_3:
            # A killed run may have left part of a backup or of a copy.
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
            # Rename first, so that a kill cannot leave part of a backup.
            name = self._deleted_name(secrets.token_hex(8))
            deleted = self._folder.with_name(name)
            os.rename(self._folder, deleted)
            shutil.rmtree(deleted)

    def _backups(self):
        """Returns the backups by epoch. All but the last may be incomplete."""
        return sorted(self._folder.glob("epoch-*"))

    def _deleted_name(self, mark):
        return f".{self._folder.name}-{mark}.tmp"
