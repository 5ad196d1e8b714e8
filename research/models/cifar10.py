"""Networks for CIFAR-10 that a GPU trained, see `research/cifar10`.

`research.cifar10.train --weights FOLDER` stores the weights of a run in a file
of NumPy arrays, and appends the record of the run to `runs.jsonl`. These two
are enough to write a packed file on a machine without a GPU.
"""

import json
import pathlib

import numpy as np

from keras_qpsbgd.layers.statistics import mark_of
from research import datasets
from research.cifar10 import export

CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()


def load(data_dir=None):
    """Returns `(x, y)` to test, pixels in [-1, 1], from `cifar10.npz`."""
    with np.load(datasets.find("cifar10.npz", data_dir)) as file:
        x, y = file["x_test"], file["y_test"]
    return x.astype("float32") / 127.5 - 1.0, y.ravel().astype("int32")


def rebuild(weights, run):
    """Returns the model of a run.

    Args:
        weights: Path of the stored weights.
        run: Dictionary. The record of the run.
    """
    model = export.network(run["width"], run["activation"], run["network"])
    with np.load(weights) as file:
        arrays = [file[key] for key in sorted(file.files)]
    if len(arrays) != len(model.weights):
        raise ValueError(
            f"`weights` must have {len(model.weights)} arrays, as the network "
            f"of the run. Received: {len(arrays)} in {weights}"
        )
    for variable, array in zip(model.weights, arrays):
        if mark_of(variable) is not None:
            bits = np.unpackbits(array, count=int(np.prod(variable.shape)))
            array = (2.0 * bits - 1.0).reshape(variable.shape)
        variable.assign(array)
    return model


def run(weights, record):
    """Rebuilds a network, and describes its training.

    Args:
        weights: Path of the stored weights.
        record: Path of a file with one line of `runs.jsonl`.

    Returns:
        The model, and a dictionary for its record.
    """
    found = json.loads(pathlib.Path(record).read_text())
    return rebuild(weights, found), {
        "images": found["images"]["train"],
        **{k: found[k] for k in ("optimizer", "epochs", "batch", "rate")},
        **{k: found[k] for k in ("real_rate", "seed", "settings", "device")},
        "seconds": round(sum(found["seconds_by_epoch"])),
    }
