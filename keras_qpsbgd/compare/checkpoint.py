"""Checkpoints of long runs, from which an interrupted one resumes."""

import io
import json
import pathlib
import time

import numpy as np

from keras_qpsbgd import disk

EVERY_SECONDS = 60.0


class Checkpoint:
    """All variables of a run and its curves so far, in one file.

    Args:
        path: the file; it is replaced at once and whole.
        key: what identifies the run. A file of another run is not read.
    """

    def __init__(self, path, key):
        self._path = pathlib.Path(path)
        self._key = key
        self._saved = time.monotonic()
        self._start = time.process_time()
        self._seconds_before = 0.0

    def seconds(self):
        """CPU seconds that the run has taken, those before a kill included."""
        return self._seconds_before + time.process_time() - self._start

    def restore(self, variables, curves):
        """Sets variables and curves; returns the evaluations made."""
        content = disk.read_sealed(self._path)
        # A damaged file costs the time of the run, not the run.
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
        """Saves, unless that was done a moment ago."""
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
        disk.write_sealed(self._path, content.getvalue())
        self._saved = time.monotonic()

    def remove(self):
        """The run is over, and its record written."""
        self._path.unlink(missing_ok=True)
