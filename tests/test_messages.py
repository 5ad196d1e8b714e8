"""Error messages that contain the text of another error."""

import concurrent.futures

import numpy as np
import pytest
from tensorflow import keras

import keras_qpsbgd as kq
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
