"""When `QuboRecorder` records, and when it does not."""

import os

import dimod
import pytest
import tensorflow as tf
import tools
from recorded_training import check
from recorded_training import data
from recorded_training import names
from recorded_training import train
from tensorflow import keras

import keras_qpsbgd as kq


@pytest.mark.slow
def test_second_fit_without_the_recorder(monkeypatch):
    recorder = kq.callbacks.QuboRecorder(every=1)
    _, model = train("sign", recorder)
    assert len(recorder.run.updates) == 8
    assert model.optimizer.recorder is None
    calls = []
    original = tf.numpy_function
    monkeypatch.setattr(
        tf, "numpy_function", lambda *a: calls.append(a) or original(*a)
    )
    train(None, model=model)
    assert len(recorder.run.updates) == 8
    assert not calls
    # A second recording starts from an empty record.
    train(None, recorder, model=model)
    steps = sorted({update.step for update in recorder.run.updates})
    assert steps == [8, 9, 10, 11]


class Failing(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 2:
            raise InterruptedError


def test_fit_after_an_exception():
    """Keras does not call `on_train_end` after an exception."""
    recorder = kq.callbacks.QuboRecorder(every=1)
    model = tools.small_model()
    with pytest.raises(InterruptedError):
        train("sign", recorder, Failing(), model=model)
    assert len(recorder.run.updates) == 4 and not recorder.run.complete
    train(None, model=model)
    # A custom loop.
    x, y = data()
    gradients = tools.gradients(model, x, y)
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    assert len(recorder.run.updates) == 4
    train(None, recorder, model=model)
    assert len(recorder.run.updates) == 8 and recorder.run.complete


@pytest.mark.slow
def test_evaluate_in_a_callback_does_not_end_the_recording():
    """In legacy Keras, `evaluate` replaces `model.history`."""

    class Evaluate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.evaluate(*data(), verbose=0)

    recorder = kq.callbacks.QuboRecorder(every=1)
    train("sign", recorder, Evaluate(), run_eagerly=True)
    assert len(recorder.run.updates) == 8


# Failures


class Broken(kq.backends.Backend):
    def sample(self, qubo, seed):
        raise OSError("offline, token=DEV-secret")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A solve failed")
def test_failed_solves():
    model = tools.small_model()
    recorder = kq.callbacks.QuboRecorder(every=1)

    def broken(on_failure):
        return tools.optimizer(backend=Broken(), on_failure=on_failure)

    model.compile(broken("hold"), tools.loss(), run_eagerly=True)
    train(None, recorder, model=model)
    assert len(recorder.run.updates) == 8
    for update in recorder.run.updates:
        assert (update.states == 0).all()
        assert update.info["error"] == "OSError"
        assert "secret" not in str(update.info)
    model.compile(broken(dimod.ExactSolver()), tools.loss(), run_eagerly=True)
    kernels, _ = train(None, recorder, model=model)
    check(recorder.run, kernels, model, every=1)
    info = recorder.run.updates[0].info
    assert info["error"] == "OSError" and info["reads"] == 32
    assert recorder.run.updates[0].samples.shape == (32, 5, 3)
    model.compile(broken("raise"), tools.loss(), run_eagerly=True)
    with pytest.raises(Exception, match="SolverError"):
        train(None, recorder, model=model)
    assert recorder.run.updates == []


@pytest.mark.parametrize(
    ("make", "name", "values"),
    [
        (kq.callbacks.QuboRecorder, "every", [0, 1.5, "10"]),
        (kq.callbacks.BackupAndRestore, "backup_dir", ["", ".", "/"]),
    ],
)
def test_invalid_arguments(make, name, values):
    for value in values:
        with pytest.raises(ValueError, match=f"`{name}` .*Received: "):
            make(**{name: value})


def test_errors_of_fit(tmp_path):
    model = tools.small_model()
    recorder = kq.callbacks.QuboRecorder(layers=["missing"])
    with pytest.raises(ValueError, match=f"{names(model)[0]}.*'missing'"):
        train("sign", recorder, model=model, run_eagerly=True)
    with pytest.raises(ValueError, match="one `QuboRecorder`.*Received: "):
        both = [kq.callbacks.QuboRecorder() for _ in range(2)]
        train(None, *both, model=model)
    model.compile("sgd", tools.loss())
    with pytest.raises(ValueError, match="must be a `QPSBGD`.*Received: .*SGD"):
        train(None, kq.callbacks.QuboRecorder(), model=model)
    folder = kq.callbacks.QuboRecorder(tmp_path)
    with pytest.raises(OSError):
        train("sign", folder)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_xla():
    recorder = kq.callbacks.QuboRecorder()
    model = tools.small_model()
    with pytest.raises(ValueError, match="jit_compile=False.*Received: "):
        train("sign", recorder, model=model, jit_compile=True)
    # Without the recorder, the same optimizer trains. Keras has to compile the
    # model again after an error in the first step.
    model.compile(model.optimizer, tools.loss(), jit_compile=True)
    train(None, model=model)
    assert recorder.run.updates == []
