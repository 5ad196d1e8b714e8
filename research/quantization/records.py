"""Records of the experiment: one line of JSON for each run.

    OUT/runs.jsonl.gz                  records of finished commands
    OUT/runs/<task>-<seed>.jsonl       records of the command in progress
    OUT/models/<task>-<seed>.npz       weights of the float networks

Every record has a `key`, made of the task, the seed, the kind of run and its
settings, and is written when the run has finished. Runs whose key exists are
not repeated.
"""

import io
import json
import pathlib

import numpy as np

from keras_qpsbgd import disk
from keras_qpsbgd.compare import records

FILE = records.PACKED_RUNS
PARTS = "runs"


def key(*parts):
    """Returns the key of a record."""
    return "/".join(map(str, parts))


def read(out):
    """Returns all records by key, sorted."""
    out = pathlib.Path(out)
    paths = [out / FILE, *sorted((out / PARTS).glob("*.jsonl"))]
    found = {}
    for path in paths:
        if path.exists():
            for record in records.read_lines(path):
                found.setdefault(record["key"], record)
    return dict(sorted(found.items()))


def pack(out):
    """Moves all records to one file."""
    out = pathlib.Path(out)
    found = read(out)
    if not found:
        return
    lines = [json.dumps(record).encode() + b"\n" for record in found.values()]
    records.write_packed(out / FILE, lines)
    for path in (out / PARTS).glob("*.jsonl"):
        path.unlink()
    if (out / PARTS).exists():
        (out / PARTS).rmdir()


class Journal:
    """The records of one task and seed.

    Args:
        out: Folder of the experiment.
        task: Name of the task.
        seed: Integer.
        show: Function (optional) that is called with the key of each new
            record.
    """

    def __init__(self, out, task, seed, show=lambda text: None):
        self._out = pathlib.Path(out)
        self._task, self._seed, self._show = task, seed, show
        self._known = set(read(out))

    def has(self, *parts):
        """Returns whether a run has finished. `parts` end its key."""
        return key(self._task, self._seed, *parts) in self._known

    def add(self, *parts, **values):
        """Writes the record of a run."""
        name = key(self._task, self._seed, *parts)
        record = {"key": name, "task": self._task, "seed": self._seed, **values}
        path = self._out / PARTS / f"{self._task}-{self._seed}.jsonl"
        records.append_line(path, record)
        self._known.add(name)
        self._show(name)

    # The float network

    @property
    def _weights(self):
        return self._out / "models" / f"{self._task}-{self._seed}.npz"

    def save_weights(self, model):
        content = io.BytesIO()
        np.savez(content, *model.get_weights())
        disk.write(self._weights, content.getvalue())

    def load_weights(self, model):
        """Returns whether saved weights were found."""
        if not self._weights.exists():
            return False
        with np.load(self._weights) as found:
            model.set_weights([found[name] for name in found.files])
        return True
