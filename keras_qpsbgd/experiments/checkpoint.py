"""A long run goes on where it was killed."""

import json
import os
import pathlib
import time

import numpy as np

EVERY_SECONDS = 60.0


class Checkpoint:
    """All variables of a run and its curves so far, in one file.

    Args:
        path: the file; it is replaced at once and whole.
        key: what identifies the run. A file of another run is not read.
    """

    def __init__(self, path, key):
        self._path = pathlib.Path(path)
        self._temporary = self._path.with_suffix(".tmp.npz")
        self._key = key
        self._saved = time.monotonic()
        self._start = time.process_time()
        self._seconds_before = 0.0

    def seconds(self):
        """CPU seconds that the run has taken, those before a kill included."""
        return self._seconds_before + time.process_time() - self._start

    def restore(self, variables, curves):
        """Sets variables and curves; returns the evaluations made."""
        if not self._path.is_file():
            return 0
        with np.load(self._path, allow_pickle=False) as arrays:
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
        # It may be the first file of an experiment.
        self._path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(self._temporary, header=json.dumps(header), **arrays)
        os.replace(self._temporary, self._path)
        self._saved = time.monotonic()

    def remove(self):
        """The run is over, and its record written."""
        self._path.unlink(missing_ok=True)
        self._temporary.unlink(missing_ok=True)
