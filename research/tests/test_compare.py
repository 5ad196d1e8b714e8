"""`python -m research compare`, and its default grids."""

import math

import numpy as np
import pytest
from tensorflow import keras

from research import __main__ as command
from research.engine import compare
from research.engine import plan
from research.engine import records
from research.engine.methods import METHODS
from research.engine.methods import default_grids

pytestmark = pytest.mark.once
FILE = """
import numpy as np
from tensorflow import keras
import keras_qpsbgd as kq

x = np.random.default_rng(0).normal(size=(120, 6))
y = (x[:, 0] > x[:, 1]).astype(int)
train, validation, test = (
    (x[part], y[part])
    for part in (slice(80), slice(80, 100), slice(100, 120))
)
epochs, batch_size = 1, 20
grids = {"adam": [{"rate": 0.01}, {"rate": 0.1}], "signum": [{"rate": 0.1}]}


def build_model():
    return keras.Sequential(
        [
            keras.layers.InputLayer((6,)),
            kq.layers.BinaryDense(4, activation="hard_tanh"),
            keras.layers.Dropout(0.3),
            kq.layers.BinaryDense(2),
        ]
    )
"""
METHODS_OF_FILE = ["signum", "adam"]


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "mine.py"
    path.write_text(FILE)
    return path, compare.read(path)


def test_command(setup, tmp_path, monkeypatch, capsys):
    """Best on validation data, same seeds, resumed without a run."""
    path, _ = setup
    words = ["compare", str(path), "--seeds", "2", "--processes", "1"]
    words += ["--output", str(tmp_path), "--methods", *METHODS_OF_FILE]
    assert command.main(words) == 0
    assert "BinaryConnect (Adam)" in capsys.readouterr().out
    runs = records.read(tmp_path)
    kinds = [(run["stage"], run["method"]) for run in runs]
    adam, signum = (METHODS[key].label for key in ("adam", "signum"))
    for kind, number in (
        (("tuning", adam), 6),
        (("fresh", adam), 2),
        (("fresh", signum), 2),
    ):
        assert kinds.count(kind) == number
    for run in runs:
        tested = any(name.startswith("test_") for name in run["result"])
        assert tested == (run["stage"] == "fresh")
    assert adam in (tmp_path / "table.md").read_text()
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(plan.Work, "__call__", None)
    assert command.main(words) == 0


def test_wrong_files(setup, tmp_path):
    path, found = setup
    (tmp_path / "empty.py").write_text("train = None")
    with pytest.raises(ValueError, match="define .* without build_model, val"):
        compare.read(tmp_path / "empty.py")
    x, y = found["train"]
    for change, message in (
        ({"train": (x, y[:-1])}, "same length"),
        ({"train": (x, y / 2)}, "integers from 0"),
        ({"train": (x * np.nan, y)}, "finite"),
        ({"test": (found["test"][0], found["test"][1] + 2)}, "one logit per"),
        ({"build_model": lambda: _real()}, "trainable layers of"),
        ({"build_model": lambda: _softmax(found)}, "softmax"),
    ):
        with pytest.raises(ValueError, match=f"{message}.*Received: "):
            compare.compare({**found, **change}, ["adam"], 1, tmp_path / "no")


def _real():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])


def _softmax(found):
    model = found["build_model"]()
    model.add(keras.layers.Softmax())
    return model


def test_regression_and_other_settings(setup, tmp_path):
    _, found = setup
    found = {
        **found,
        "loss": "mse",
        "grids": {"adam": [{"rate": 0.01}]},
        **{
            name: (found[name][0], found[name][0][:, :2])
            for name in compare.PARTS
        },
    }
    text = compare.compare(found, ["adam"], 2, tmp_path, verbose=0)
    assert "test loss" in text and "accuracy" not in text
    with pytest.raises(ValueError, match="Received: other epochs"):
        compare.compare({**found, "epochs": 2}, ["adam"], 2, tmp_path)


def test_all_methods_get_four():
    for scale, layers, steps in ((1.2, 1, 1), (0.05, 20, 10**6)):
        grids = default_grids(scale, layers, steps, True)
        assert {*grids} == {*METHODS} - {"gurobi", "dwave"}
        assert grids.pop("constant") == [{}]
        for grid in grids.values():
            assert len({records.text_of(one) for one in grid}) == 4
            for one in grid:
                assert all(0 < value < math.inf for value in one.values())
    assert default_grids(1.0, 1, 1, False)["frozen"] == [{}]
