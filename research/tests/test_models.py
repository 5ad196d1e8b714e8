"""The networks of `models/`: training, records, cards, stored weights."""

import json

import numpy as np
import pytest
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.layers.statistics import mark_of
from research.__main__ import main
from research.cifar10 import export
from research.models import cards
from research.models import cifar10
from research.models import mnist

pytestmark = pytest.mark.once


@pytest.fixture
def small(monkeypatch):
    """A small network and few images, drawn from two classes."""
    random = np.random.default_rng(0)
    y = np.arange(600) % 2
    x = random.integers(0, 100, (600, 28, 28)).astype("uint8")
    x[y == 1, :14] += 100
    monkeypatch.setattr(mnist, "FILTERS", (4,))
    monkeypatch.setattr(mnist, "RATES", (0.02,))
    monkeypatch.setattr(
        mnist.datasets, "mnist", lambda *_, **__: ((x, y), (x, y))
    )


def test_command_writes_the_files_and_the_card(small, tmp_path):
    path = tmp_path / cards.FOLDER
    assert main(["models", "mnist-relu", "--quick", "--output", str(path)]) == 0
    record = json.loads((path / "mnist-relu.json").read_text())
    # Validation images are not among those of the tuning.
    tuning = record["training"]["tuning"]
    assert tuning["images"] + tuning["validation_images"] == mnist.QUICK
    assert record["training"]["images"] == mnist.QUICK
    (_, _), (x, y) = mnist.load(quick=True)
    model = kq.export.load_packed(path / "mnist-relu.kq")
    assert record["accuracy"] == mnist.accuracy(model, x, y)
    assert len(record["wrong"]) == round((1 - record["accuracy"]) * len(x))
    assert record["float_bytes"] == 4 * model.count_params()
    with_pictures = {file.name for file in (path / "pictures").iterdir()}
    assert with_pictures == {"mnist-0.png", "mnist-1.png"}
    blocks = cards.blocks(tmp_path)
    assert set(blocks) == {"models/overview", "models/mnist-relu"}
    assert f"{100 * record['accuracy']:.2f} %" in blocks["models/overview"]
    assert "of 64 validation images" in blocks["models/mnist-relu"]


@pytest.mark.parametrize(
    ("kind", "binary"),
    [("vgg", 5), ("vgg-binary", 7), ("vgg-float", 0), ("pooled", 7)],
)
def test_kernels_of_the_networks_that_are_binary(kind, binary):
    weights = export.network(4, "relu", kind).trainable_variables
    kernels = [v for v in weights if v.path.endswith("kernel")]
    assert len(kernels) == 7
    assert sum(mark_of(v) is not None for v in kernels) == binary


def test_weights_of_the_gpu_give_the_same_network(tmp_path, monkeypatch):
    """The file has what `research.cifar10.program.Program.weights` returns."""
    keras.utils.set_random_seed(0)
    shape = {"width": 4, "activation": "binary", "network": "vgg"}
    model = export.network(4, "binary", "vgg")
    arrays = {}
    for number, variable in enumerate(model.weights):
        value = variable.numpy()
        if mark_of(variable) is not None:
            value = np.packbits(value >= 0)
        arrays[f"{number:03}"] = value
    np.savez(tmp_path / "weights.npz", **arrays)
    run = {
        **shape,
        "optimizer": "QPSBGD",
        "images": {"train": 50_000, "validation": 0, "test": 10_000},
        **{"epochs": 2, "batch": 128, "rate": 0.01, "real_rate": 0.01},
        **{"seed": 30, "settings": {"kappa": 10.0}, "device": "H200"},
        "seconds_by_epoch": [1.4, 1.2],
    }
    (tmp_path / "run.json").write_text(json.dumps(run) + "\n")
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (20, 32, 32, 3)).astype("uint8")
    y = np.arange(20) % 10
    np.savez(tmp_path / "cifar10.npz", x_test=x, y_test=y[:, None])
    words = ["models", "cifar10-vgg-binary", "--data-dir", str(tmp_path)]
    words += ["--output", str(tmp_path / "models")]
    assert main(words) != 0  # without the files
    words += ["--weights", str(tmp_path / "weights.npz")]
    assert main([*words, "--run", str(tmp_path / "run.json")]) == 0
    loaded = kq.export.load_packed(tmp_path / "models/cifar10-vgg-binary.kq")
    inputs, _ = cifar10.load(tmp_path)
    expected = model.predict(inputs, verbose=0)
    np.testing.assert_array_equal(loaded.predict(inputs, verbose=0), expected)
    card = cards.blocks(tmp_path)["models/cifar10-vgg-binary"]
    assert "`QPSBGD`, kappa=10" in card and "3 s on H200" in card
    # A network of another shape.
    (tmp_path / "run.json").write_text(json.dumps({**run, "network": "pooled"}))
    with pytest.raises(ValueError, match="`weights` must have .* Received"):
        cifar10.run(tmp_path / "weights.npz", tmp_path / "run.json")
