"""Error messages that contain the text of another error or give advice."""

import concurrent.futures
import importlib

import numpy as np
import pytest
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd import _messages
from keras_qpsbgd.export import container
from keras_qpsbgd.export import saving
from keras_qpsbgd.inference import program

X = np.ones((4, 3), "float32")


def fail(*_, **__):
    raise ValueError("It is broken. Received: something")


class Broken(keras.layers.Dense):
    get_config = fail


class Locked(kq.backends.Backend):
    __getstate__ = fail


def broken_model():
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(2), Broken(2)]
    )


def check_locked():
    backend = Locked()
    backend.use_executor(concurrent.futures.ThreadPoolExecutor(1))
    backend.check(3, 2)


CASES = {
    "export.packed": lambda path: kq.export.packed(broken_model(), path),
    "quantize": lambda _: kq.quantize(broken_model(), X, verbose=0),
    "executor": lambda _: check_locked(),
}


@pytest.mark.parametrize("case", CASES)
def test_one_received(case, tmp_path):
    with pytest.raises(Exception, match="It is broken") as caught:
        CASES[case](tmp_path / "file")
    assert str(caught.value).count("Received") == 1


@pytest.mark.once
def test_files_that_are_wrong(monkeypatch):
    """The functions that read them add `Received: path=...`."""
    monkeypatch.setattr(keras.utils, "deserialize_keras_object", fail)
    monkeypatch.setattr(program, "build", fail)
    monkeypatch.setattr(
        container, "decode", lambda content: ({"predictor": {}}, [])
    )
    for function, arguments in (
        (saving._built, ({}, {})),
        (program.load, (b"", "auto")),
    ):
        with pytest.raises(
            container.InvalidFile, match="is broken|cannot be built"
        ) as caught:
            function(*arguments)
        assert "Received" not in str(caught.value)


@pytest.mark.once
def test_reason():
    assert _messages.reason(ValueError("Wrong. Received: 3")) == "Wrong"
    assert _messages.reason(ValueError("a 3.5 b")) == "a 3.5 b"
    assert _messages.reason(ValueError()) == "ValueError()"


# Objects of the other version of Keras


def other_keras():
    """The version of Keras that this process does not use."""
    return importlib.import_module("tf_keras" if _keras.KERAS_3 else "keras")


WITH_MODEL = {
    "quantize": lambda model: kq.quantize(model, X),
    "export.packed": lambda model: kq.export.packed(model, "model.kq"),
    "inference_model": kq.export.inference_model,
    "summary": kq.summary,
    "Predictor": kq.inference.Predictor,
    "fit_columns": lambda model: kq.fit_columns(model, X, X),
    "estimate": lambda model: kq.QPSBGD(backend="sign").estimate(model, 1),
}


@pytest.mark.parametrize("case", WITH_MODEL)
def test_model_of_the_other_keras(case):
    model = other_keras().Sequential([other_keras().layers.Dense(2)])
    message = "model` must be .*`TF_USE_LEGACY_KERAS.*Received: "
    with pytest.raises(ValueError, match=message):
        WITH_MODEL[case](model)


@pytest.mark.parametrize("optimizer", [kq.QPSBGD, kq.optimizers.Bop])
def test_arguments_of_the_other_keras(optimizer):
    theirs = other_keras().optimizers
    for name, value in (
        ("learning_rate", theirs.schedules.CosineDecay(0.1, 10)),
        ("real_optimizer", theirs.SGD(0.1)),
    ):
        message = f"`{name}` must be .*`TF_USE_LEGACY_KERAS.*Received: {name}="
        with pytest.raises(ValueError, match=message):
            optimizer(**{name: value})


def test_objects_of_this_keras():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    for value in (schedule, keras.Sequential(), "adam", 0.1, None):
        assert _keras.advice_on_version(value) == ""
