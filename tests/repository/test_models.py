"""The networks of `models/` have the accuracy that their cards state."""

import json
import os
import pathlib

import numpy as np
import pytest

from keras_qpsbgd.inference import Predictor

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
MODELS = ROOT / "models"
FOLDERS = (
    os.environ.get("KERAS_QPSBGD_DATA"),
    ROOT.parent / "shared" / "data",
    pathlib.Path("~/.keras/datasets").expanduser(),
)
IMAGES = 2_000
NAMES = sorted(path.stem for path in MODELS.glob("*.kq"))


def record_of(name):
    return json.loads((MODELS / f"{name}.json").read_text())


def test_every_network_has_a_record_and_a_card():
    assert NAMES == [
        f"{data}-{activation}"
        for data in ("cifar10-vgg", "mnist")
        for activation in ("binary", "relu")
    ]
    assert NAMES == sorted(path.stem for path in MODELS.glob("*.json"))
    page = (MODELS / "README.md").read_text()
    for name in NAMES:
        assert f"\n### {name}\n" in page


@pytest.mark.parametrize("name", NAMES)
def test_record(name):
    record = record_of(name)
    path = MODELS / f"{name}.kq"
    assert path.stat().st_size == record["bytes"]
    assert Predictor(path).input_shape == (None, *record["shape"])
    right = record["test_images"] - len(record["wrong"])
    assert record["accuracy"] == right / record["test_images"]


@pytest.mark.parametrize("name", NAMES)
def test_accuracy(name):
    """A rounding error can change the class of an image now and then."""
    data, *_ = name.split("-")
    found = [
        path
        for folder in FOLDERS
        if folder and (path := pathlib.Path(folder, f"{data}.npz")).exists()
    ]
    if not found:
        pytest.skip(f"requires {data}.npz")
    record = record_of(name)
    with np.load(found[0]) as file:
        x, y = file["x_test"][:IMAGES], file["y_test"][:IMAGES].ravel()
    x = x.reshape(-1, *record["shape"]).astype("float32") / 127.5 - 1
    classes = Predictor(MODELS / f"{name}.kq").predict(x).argmax(axis=1)
    wrong = set(np.flatnonzero(classes != y))
    assert len(wrong ^ {i for i in record["wrong"] if i < IMAGES}) <= 2
