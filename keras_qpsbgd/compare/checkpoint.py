"""Checkpoints from which an interrupted run resumes."""

import io
import json
import pathlib
import time

import numpy as np

from keras_qpsbgd import disk

EVERY_SECONDS = 60.0


class Checkpoint:
    """The variables and the curves of an unfinished run, in one file.

    Args:
        path: path of the file. It is replaced atomically.
        key: dict that identifies the run. A file of another run is ignored.
    """

    def __init__(self, path, key):
        self._path = pathlib.Path(path)
        self._key = key
        self._saved = time.monotonic()
        self._start = time.process_time()
        self._seconds_before = 0.0

    def seconds(self):
        """Returns the CPU seconds of the run, including those before a kill."""
        return self._seconds_before + time.process_time() - self._start

    def restore(self, variables, curves):
        """Restores variables and curves.

        Returns:
            The number of evaluations that are done, `0` without a checkpoint.
        """
        content = disk.read_with_checksum(self._path)
        # With a damaged file, the run starts again.
        if content is None:
            return 0
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            header = json.loads(str(arrays["header"]))
            if header["key"] != self._key:
                return 0
            for position, variable in enumerate(variables):
                variable.assign(arrays[f"v{position}"])
        curves.clear()
        curves.update(header["curves"])
        self._seconds_before = header["seconds"]
        return header["done"]

    def save(self, variables, curves, done):
        """Saves the run, at most once a minute."""
        if time.monotonic() - self._saved < EVERY_SECONDS:
            return
        header = {
            "key": self._key,
            "curves": curves,
            "done": done,
            "seconds": self.seconds(),
        }
        arrays = {f"v{k}": v.numpy() for k, v in enumerate(variables)}
        content = io.BytesIO()
        np.savez(content, header=json.dumps(header), **arrays)
        disk.write_with_checksum(self._path, content.getvalue())
        self._saved = time.monotonic()

    def remove(self):
        """Removes the file. Call this when the record is written."""
        self._path.unlink(missing_ok=True)
