"""Invalid arguments of `kq.compare` raise before anything is trained."""

import ast
import importlib.util
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from research.engine import plan

X = np.random.default_rng(0).normal(size=(20, 3))
Y = np.arange(20) % 2
SPLIT = (X, Y)
LOG = tf.nn.log_softmax  # log-probabilities are logits


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


def ending_in(*layers):
    """Returns a function that builds a model with these last layers."""

    def build():
        found = model()
        found.add(keras.layers.Dense(2))
        for layer in layers:
            found.add(layer())
        return found

    return build


SOFTMAX = ending_in(lambda: keras.layers.Dense(2, activation="softmax"))
SIGMOID = ending_in(lambda: keras.layers.Dense(1, activation="sigmoid"))


def nested_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, SIGMOID()(inputs))


class SubclassedModel(keras.Model):
    """Its softmax is not in the last layer that it creates."""

    def __init__(self):
        super().__init__()
        self.last = keras.layers.Softmax()
        self.first = kq.layers.BinaryDense(2)

    def call(self, inputs):
        return self.last(self.first(inputs))


SAME = model()
ADAM = [{"rate": 0.1}, {"rate": 0.2}]
CASES = [
    ({"methods": ["adam", "sdg"]}, "`methods` must be .*proxquant.*'sdg'"),
    ({"methods": ["sign"]}, 'Use "signum".*Received: methods='),
    ({"methods": []}, "`methods` must be .*Received: methods="),
    ({"methods": "adam"}, "`methods` must be a non-empty list .*'adam'"),
    ({"methods": ["gurobi"]}, '`methods` must also contain "native"'),
    ({"seeds": 0}, "`seeds` must be a positive .*Received: seeds=0"),
    ({"seeds": 1.5}, "`seeds` must be a positive .*Received: seeds=1.5"),
    ({"seeds": 2000}, "`seeds` must be at most 1000"),
    ({"epochs": 0}, "`epochs` must be .*Received: epochs=0"),
    ({"batch_size": -1}, "`batch_size` must be .*Received: batch_size=-1"),
    ({"tuning_seeds": 0}, "`tuning_seeds` must be "),
    ({"processes": 0}, "`processes` must be "),
    ({"name": "a/b"}, "`name` must be .*'a/b'"),
    ({"reference": "sgd"}, "`reference` must be one of .*adam.*'sgd'"),
    ({"reference": "native"}, "`reference` must be one of .*adam.*'native'"),
    ({"grids": [1]}, r"`grids` must be a dict .*Received: grids=\[1\]"),
    ({"grids": {"adam": ADAM}}, "same number .*'adam': 2"),
    ({"grids": {"sgd": ADAM}}, "`grids` must be .*keys among adam, .*'sgd'"),
    ({"grids": {"adam": [0.1] * 4}}, r'`grids\["adam"\]` must be a non-empty '),
    ({"grids": {"adam": [{}] * 4}}, 'dicts with a "rate".*Received: .{}'),
    ({"build_model": model()}, "`build_model` must be a function"),
    ({"build_model": lambda: 3}, "`build_model` must return .*int"),
    ({"build_model": lambda: SAME}, "a new model in every call.*twice"),
    ({"build_model": dense_model}, "`build_model` must .*Received: .*'dense"),
    ({"build_model": frozen_model}, "at least one trainable layer"),
    ({"build_model": lambda: model(3), "loss": None}, None),
    ({"build_model": SOFTMAX}, "are logits.*Received: .*softmax"),
    ({"build_model": SIGMOID}, "are logits.*Received: .*sigmoid"),
    ({"build_model": nested_model}, "are logits.*Received: .*sigmoid"),
    ({"build_model": SubclassedModel}, "are logits.*Received: .*between"),
    (
        {"build_model": ending_in(lambda: keras.layers.Activation("softmax"))},
        "are logits.*Received: .*softmax",
    ),
    (
        {"build_model": ending_in(keras.layers.Softmax)},
        "are logits.*Received: .*softmax",
    ),
    (
        {"build_model": SOFTMAX, "loss": "sparse_categorical_crossentropy"},
        None,
    ),
    ({"build_model": SIGMOID, "loss": "binary_crossentropy"}, None),
    (
        {
            "build_model": ending_in(
                lambda: keras.layers.Dense(4, activation="softmax"),
                lambda: keras.layers.Dense(2),
            )
        },
        None,
    ),
    (
        {"build_model": ending_in(lambda: keras.layers.Activation(LOG))},
        None,
    ),
    ({"train": X}, "must all have the same form.*'train': None"),
    ({"train": (X, Y, Y > 0)}, "must all have the same form.*'train': 3"),
    ({"test": (X[:5], Y)}, r"`test` must have the same length.*\(5, 3\)"),
    ({"validation": (X[:0], Y[:0])}, "`validation` must not be empty"),
    ({"train": (X[:, :2], Y)}, "`validation` must have inputs .*of the same"),
    ({"train": (X, X[:, 0])}, "`y` of `train` must contain integer classes"),
    ({"train": (X, np.eye(2)[Y])}, r"`y.argmax\(axis=1\)`.*Received: .*2\)"),
    (
        {"test": (np.where(np.arange(len(X))[:, None] == 2, np.nan, X), Y)},
        r"`x` of `test` must be finite. Received: 3 NaNs .*\[2, 0\]",
    ),
    (
        {"train": (X, np.where(Y, np.inf, 0.0)), "loss": "mse"},
        "`y` of `train` must be finite",
    ),
    ({"methods": ["adam", "Adam"]}, "`methods` must be .*Received: .*'Adam'"),
    ({"train": (X, Y - 1)}, "`y` of `train` must .*start from 0.*class -1"),
    ({"train": (X, 3 * Y)}, "one logit for each class.*4 classes"),
    ({"train": (X, Y.astype(str))}, "`y` of `train` must be numeric"),
    ({"train": (X.astype(str), Y)}, "`x` of `train` must be numeric"),
    ({"loss": "no loss"}, "Could not interpret loss identifier: no loss"),
    (
        {name: (X[:, :2], Y) for name in ("train", "validation", "test")},
        "`build_model` must return a model that accepts the `x` of `train`",
    ),
]


@pytest.mark.parametrize(
    "change, message", CASES, ids=[str(k) for k in range(len(CASES))]
)
def test_invalid_arguments(change, message, monkeypatch):
    """Cases without a message are valid."""

    def stop(*_):
        raise StopIteration

    # Valid arguments must not start training.
    function = kq.compare
    monkeypatch.setattr(plan, "make_missing", stop)
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
        ((X, Y, rows), r"`x` of `train` must be `\(features, adjacency\)`"),
        ((good[0], Y, [30]), "`rows` of `train` must be a boolean mask"),
        ((good[0], Y, Y > 5), "`train` must not be empty"),
    ):
        with pytest.raises(ValueError, match=message):
            kq.compare(model, bad, good, good)


@pytest.mark.once
def test_optional_packages_are_imported_lazily():
    heavy = {"scipy", "matplotlib", "joblib", "filelock", "cloudpickle"}
    folder = pathlib.Path(kq.__file__).parent / "comparison"
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
def test_missing_packages_raise_before_training(monkeypatch, tmp_path):
    find = importlib.util.find_spec
    for missing, arguments in (
        ("scipy", {}),
        ("filelock", {"out": tmp_path / "out"}),
        ("joblib", {"processes": 2}),
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
