"""Stores the runs of a task, in one file once it is complete."""

import gzip
import json
import pathlib

import numpy as np

from keras_qpsbgd import disk

# Seeds of the choice of a configuration. Those of the results start at zero.
FIRST_TUNING_SEED = 1000

# The key of the smallest losses, found by enumeration.
OPTIMUM = "optimum"


def key(method, configuration):
    """Returns the key of the runs of one configuration."""
    return f"{method}_" + "-".join(f"{number:g}" for number in configuration)


def best_position(runs, count):
    """Returns the position of the configuration with the best tuning runs.

    It has the lowest mean validation loss.

    Args:
        runs: List of the runs of each configuration.
        count: Integer. Number of updates.
    """

    def loss(position):
        losses = [
            run["results"][str(count)]["validation_loss"]
            for run in runs[position]
            if run["seed"] >= FIRST_TUNING_SEED
        ]
        mean = np.mean(losses)
        return mean if np.isfinite(mean) else np.inf

    return min(range(len(runs)), key=loss)


def best_positions(runs, chosen_at=None):
    """Returns a set of the best positions for all numbers of updates.

    Args:
        runs: List of the runs of each configuration.
        chosen_at: Integer (optional). The only number of updates that counts.
    """
    counts = runs[0][0]["results"]
    if str(chosen_at) in counts:
        counts = [chosen_at]
    return {best_position(runs, count) for count in counts}


def write(out, task, name, value):
    """Writes the runs of one configuration, before the task is complete."""
    path = pathlib.Path(out) / task / f"{name}.json"
    disk.write(path, json.dumps(value))


def read(out, task):
    """Returns a dictionary of all runs of a task, by their keys."""
    found = {}
    packed = _packed(out, task)
    if packed.exists():
        found = json.loads(gzip.decompress(packed.read_bytes()))
    for path in sorted((pathlib.Path(out) / task).glob("*.json")):
        found[path.stem] = json.loads(path.read_text())
    return found


def pack(out, task):
    """Moves all runs of a task into one compressed file."""
    text = json.dumps(read(out, task), sort_keys=True)
    # Without the time, equal runs give equal files.
    disk.write(_packed(out, task), gzip.compress(text.encode(), 9, mtime=0))
    folder = pathlib.Path(out) / task
    for path in folder.glob("*.json"):
        path.unlink()
    if folder.exists():
        folder.rmdir()


def _packed(out, task):
    return pathlib.Path(out) / f"{task}.json.gz"
