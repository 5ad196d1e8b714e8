"""The files of `models/`: packed networks, their records, and the page.

models/NAME.kq          the network
models/NAME.json        its record
models/pictures/        a test image of each class
models/README.md        the model cards, with tables from the records
"""

import json
import pathlib

import numpy as np
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import disk
from keras_qpsbgd._version import __version__
from research.engine.tables import markdown_table

FOLDER = "models"


def store(folder, name, model, test, classes, training, command):
    """Writes the packed file and the record of a network, and pictures.

    The accuracy is that of the packed file in `Predictor`.

    Args:
        folder: Path of the folder.
        name: String. Name of the network. Up to the first hyphen, it is the
            name of the data.
        model: Keras model.
        test: Tuple `(x, y)`, the test images.
        classes: List of strings.
        training: Dictionary that describes the training.
        command: String.

    Returns:
        The record.
    """
    folder = pathlib.Path(folder)
    path = folder / f"{name}.kq"
    kq.export.packed(model, path)
    x, y = test
    found = kq.inference.Predictor(path).predict(x).argmax(axis=1)
    summary = kq.summary(model, print_fn=None)
    record = {
        "name": name,
        "classes": classes,
        "shape": list(x.shape[1:]),
        "test_images": len(x),
        "accuracy": float((found == y).mean()),
        "wrong": np.flatnonzero(found != y).tolist(),
        "bytes": path.stat().st_size,
        "float_bytes": 4 * model.count_params(),
        "binary_weights": sum(each.binary_params for each in summary.layers),
        "training": training,
        "command": command,
        "versions": {
            "keras_qpsbgd": __version__,
            "TensorFlow": tf.__version__,
            "Keras": keras.__version__,
        },
    }
    lines = ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in record.items())
    disk.write(folder / f"{name}.json", f"{{\n{lines}\n}}\n")
    _store_pictures(folder / "pictures", name, x, y, classes)
    return record


def _store_pictures(folder, name, x, y, classes):
    """Writes the first test image of each class."""
    folder.mkdir(parents=True, exist_ok=True)
    data, *_ = name.split("-")
    for index, label in enumerate(classes):
        pixels = np.round((x[np.flatnonzero(y == index)[:1]] + 1) * 127.5)
        for image in pixels:  # a quick run may have no image of a class
            path = folder / f"{data}-{label}.png"
            keras.utils.save_img(path, image, scale=False)


# The page


def blocks(root):
    """Returns the tables of a checkout by name, for `pages.fill`."""
    records = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(pathlib.Path(root, FOLDER).glob("*.json"))
    ]
    if not records:
        return {}
    found = {record["name"]: card(record) for record in records}
    found["overview"] = overview(records)
    return {f"{FOLDER}/{name}": text for name, text in found.items()}


def overview(records):
    """Returns a table with a line for each network."""
    lines = [
        [
            f"[`{record['name']}`](#{record['name']})",
            _accuracy(record),
            f"{record['binary_weights']:,}",
            _kilobytes(record["bytes"]),
            _kilobytes(record["float_bytes"]),
        ]
        for record in records
    ]
    head = ["network", "test accuracy", "binary weights", "file"]
    return markdown_table([*head, "weights as float32"], lines)


def card(record):
    """Returns a table with everything about a network."""
    file = f"{record['name']}.kq"
    versions = [" ".join(pair) for pair in record["versions"].items()]
    lines = {
        "test accuracy": f"{_accuracy(record)} of all "
        f"{record['test_images']:,} test images",
        "file": f"[{file}]({file}), {_kilobytes(record['bytes'])}. The weights "
        f"as float32 would be {_kilobytes(record['float_bytes'])}",
        **_training(record["training"]),
        "command": f"`{record['command']}`",
        "made with": ", ".join(versions),
    }
    return markdown_table(["", ""], [[*line] for line in lines.items()])


def _training(training):
    """Returns the lines about the training."""
    rates = f"{training['rate']:g} for the binary kernels"
    if training["real_rate"] is not None:
        rates += f", {training['real_rate']:g} for all other weights"
    settings = [
        f"{name}={value:g}"
        for name, value in training.get("settings", {}).items()
        if name != "real_rate"  # one of the rates
    ]
    found = {
        "training": f"{training['images']:,} images, {training['epochs']} "
        f"epochs, batches of {training['batch']}, seed {training['seed']}"
        f"{_time(training)}",
        "optimizer": ", ".join([f"`{training['optimizer']}`", *settings]),
        "learning rates": f"{rates}. They decay to zero along a cosine",
    }
    if "tuning" in training:
        tuning = training["tuning"]
        tried = ", ".join(
            f"{100 * value:.2f} % with {rate}"
            for rate, value in tuning["validation"].items()
        )
        found["choice of the rate"] = (
            f"{tried} of {tuning['validation_images']:,} validation images, "
            f"epochs of tuning: {tuning['epochs']}, on the other "
            f"{tuning['images']:,} images"
        )
    return found


def _time(training):
    """Returns the time, unless other work was running on the machine."""
    if "device" not in training:
        return ""
    return f", {training['seconds']:,} s on {training['device']}"


def _accuracy(record):
    return f"{100 * record['accuracy']:.2f} %"


def _kilobytes(count):
    return f"{count / 1000:,.1f} kB"
