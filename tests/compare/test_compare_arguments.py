"""Arguments of `kq.compare` that are refused, before anything is trained."""

import ast
import importlib.util
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq

X = np.random.default_rng(0).normal(size=(20, 3))
Y = np.arange(20) % 2
SPLIT = (X, Y)


def model(units=2):
    return keras.Sequential(
        [keras.layers.InputLayer((3,)), kq.layers.BinaryDense(units)]
    )


def dense_model():
    return keras.Sequential(
        [keras.layers.InputLayer((3,)), keras.layers.Dense(2)]
    )


def frozen_model():
    found = model()
    found.layers[-1].trainable = False
    return found


SAME = model()
ADAM = [{"rate": 0.1}, {"rate": 0.2}]
CASES = [
    ({"methods": ["adam", "sdg"]}, "`methods` must be .*proxquant.*'sdg'"),
    ({"methods": []}, "`methods` must be .*Received: methods="),
    ({"methods": "adam"}, "`methods` must be a list .*'adam'"),
    ({"methods": ["gurobi"]}, '`methods` must have "native", too'),
    ({"seeds": 0}, "`seeds` must be a positive .*Received: seeds=0"),
    ({"seeds": 1.5}, "`seeds` must be a positive .*Received: seeds=1.5"),
    ({"seeds": 2000}, "`seeds` must be at most 1000"),
    ({"epochs": 0}, "`epochs` must be .*Received: epochs=0"),
    ({"batch_size": -1}, "`batch_size` must be .*Received: batch_size=-1"),
    ({"tuning_seeds": 0}, "`tuning_seeds` must be "),
    ({"processes": 0}, "`processes` must be "),
    ({"name": "a/b"}, "`name` must be .*'a/b'"),
    ({"reference": "sgd"}, "`reference` must be one of .*adam.*'sgd'"),
    ({"grids": [1]}, "`grids` must be a dict .*Received: list"),
    ({"grids": {"adam": ADAM}}, "same number .*'adam': 2"),
    ({"grids": {"sgd": ADAM}}, "`grids` must have keys among adam, .*'sgd'"),
    ({"grids": {"adam": [0.1] * 4}}, r'`grids\["adam"\]` must be a list of '),
    ({"grids": {"adam": [{}] * 4}}, 'must have a "rate" .*Received: {}'),
    ({"grids": {"adam": [{"rate": "a"}] * 4}}, "must have numbers for .*rate"),
    ({"grids": {"adam": ADAM * 2}}, "must not have a configuration twice"),
    ({"build_model": model()}, "`build_model` must be a function"),
    ({"build_model": lambda: 3}, "`build_model` must return .*int"),
    ({"build_model": lambda: SAME}, "a new model in every call.*twice"),
    ({"build_model": dense_model}, "`build_model` must .*Received: .*'dense"),
    ({"build_model": frozen_model}, "that is not frozen"),
    ({"build_model": lambda: model(3), "loss": None}, None),
    ({"train": X}, "`train` must be .*ndarray of shape"),
    ({"train": (X, Y, Y > 0)}, "must have the same form"),
    ({"test": (X[:5], Y)}, r"`test` must have the same length.*\(5, 3\)"),
    ({"validation": (X[:0], Y[:0])}, "`validation` must not be empty"),
    ({"train": (X[:, :2], Y)}, "`validation` must have inputs .*of the same"),
    ({"train": (X, X[:, 0])}, "`y` of `train` must be integer classes"),
    ({"train": (X, np.eye(2)[Y])}, r"`y.argmax\(axis=1\)`.*Received: .*2\)"),
    (
        {"test": (np.where(np.arange(len(X))[:, None] == 2, np.nan, X), Y)},
        "`x` of `test` must be finite. Received: .*1 of .* rows, .*row 2",
    ),
    (
        {"train": (X, np.where(Y, np.inf, 0.0)), "loss": "mse"},
        "`y` of `train` must be finite",
    ),
    ({"methods": ["adam", "Adam"]}, "`methods` must be .*Received: 'Adam' in"),
    ({"train": (X, Y - 1)}, "`y` of `train` must be classes from 0 on"),
    ({"train": (X, 3 * Y)}, "one logit for each class.*4 classes"),
    ({"train": (X, Y.astype(str))}, "`y` of `train` must be numbers"),
    ({"train": (X.astype(str), Y)}, "`x` of `train` must be numbers"),
    ({"loss": "no loss"}, "`loss` must be .*Received: loss='no loss'"),
    (
        {name: (X[:, :2], Y) for name in ("train", "validation", "test")},
        "`build_model` must return a model that can be called with the `x`",
    ),
]


@pytest.mark.parametrize(
    "change, message", CASES, ids=[str(k) for k in range(len(CASES))]
)
def test_refused(change, message, monkeypatch):
    def stop(*_):
        raise StopIteration

    # Whatever passes goes no further.
    function = kq.compare
    monkeypatch.setitem(function.__globals__, "open_pool", stop)
    arguments = {
        "build_model": model,
        "train": SPLIT,
        "validation": SPLIT,
        "test": SPLIT,
        "methods": ["adam", "signsgd"],
        **change,
    }
    if message is None:
        with pytest.raises(StopIteration):
            function(**arguments)
        return
    with pytest.raises(ValueError) as caught:
        function(**arguments)
    assert re.search(message, str(caught.value)), caught.value


@pytest.mark.once
def test_graph_arguments():
    rows = np.arange(5)
    good = ((X, tf.sparse.from_dense(np.eye(20))), Y, rows)
    for bad, message in (
        ((X, Y, rows), r"`x` of `train` must be \(features, adjacency\)"),
        ((good[0], Y, [30]), "`rows` of `train` must be a mask"),
        ((good[0], Y, Y > 5), "`train` must not be empty"),
    ):
        with pytest.raises(ValueError, match=message):
            kq.compare(model, bad, good, good)


@pytest.mark.once
def test_packages_of_the_extra_are_imported_when_needed():
    heavy = {"scipy", "matplotlib", "loky", "filelock", "cloudpickle"}
    folder = pathlib.Path(kq.__file__).parent / "compare"
    for path in folder.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                names = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {node.module.split(".")[0]}
            else:
                continue
            assert not names & heavy, path


@pytest.mark.once
def test_missing_packages_are_told_before_the_runs(monkeypatch, tmp_path):
    find = importlib.util.find_spec
    for missing, arguments in (
        ("scipy", {}),
        ("filelock", {"out": tmp_path / "out"}),
        ("loky", {"processes": 2}),
    ):
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, missing=missing: (
                None if name == missing else find(name)
            ),
        )
        with pytest.raises(ImportError, match=missing) as caught:
            kq.compare(model, SPLIT, SPLIT, SPLIT, **arguments)
        assert 'pip install "keras_qpsbgd[compare]"' in str(caught.value)
    assert not (tmp_path / "out").exists()
