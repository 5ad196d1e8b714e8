"""Runs of a task: initial weights from the seed, and errors."""

import types

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.backends import BackendUnavailable
from keras_qpsbgd.compare.engine import pool
from keras_qpsbgd.compare.engine import worker
from keras_qpsbgd.compare.methods import METHODS
from keras_qpsbgd.compare.task import Task
from keras_qpsbgd.compare.training import Trainer


def conv_task():
    """Returns a task without `first_weights`, like those of the experiments."""

    def build(source, weights):
        return keras.Sequential(
            [
                keras.layers.InputLayer((3, 3, 1)),
                kq.layers.BinaryConv2D(2, 2),
                keras.layers.Flatten(),
                kq.layers.BinaryDense(2),
            ]
        )

    return Task(
        name="images",
        load=None,
        splits=None,
        batches=None,
        build=build,
        grids={},
    )


def test_initial_convolution_kernels_depend_only_on_the_seed():
    found = {}
    for key in ("signsgd", "frozen"):
        trainer = Trainer(conv_task(), None, METHODS[key], {})
        for seed in (0, 1):
            trainer._reset(seed)
            found[key, seed] = trainer.kernels[0].numpy()
    assert found["signsgd", 0].shape == (2, 2, 1, 2)
    assert (found["signsgd", 0] != found["signsgd", 1]).all()
    for seed in (0, 1):
        np.testing.assert_array_equal(
            found["signsgd", seed], found["frozen", seed]
        )


@pytest.mark.once
@pytest.mark.parametrize(
    "error, kind, text",
    [
        (KeyError("mine"), KeyError, "KeyError: mine"),
        (ValueError("bad"), ValueError, "bad"),
        (ZeroDivisionError("zero"), ZeroDivisionError, "zero"),
        (
            tf.errors.InvalidArgumentError(None, None, "no shape"),
            RuntimeError,
            "InvalidArgumentError: no shape",
        ),
    ],
)
def test_errors_name_method_and_task(error, kind, text):
    def fail(stage):
        raise error

    item = types.SimpleNamespace(
        missing=fail,
        method=METHODS["adam"],
        task=types.SimpleNamespace(name="mine"),
    )
    with pytest.raises(kind) as caught:
        worker.make_runs(item, None)
    message = str(caught.value.args[0])
    assert message == f'Training failed for method "adam" in "mine": {text}'
    assert caught.value.__cause__ is error


@pytest.mark.once
def test_error_of_a_missing_solver_is_unchanged():
    error = BackendUnavailable("no license")

    def fail(stage):
        raise error

    item = types.SimpleNamespace(missing=fail)
    with pytest.raises(BackendUnavailable) as caught:
        worker.make_runs(item, None)
    assert caught.value is error


@pytest.mark.once
def test_objects_that_cannot_be_pickled():
    import threading

    pytest.importorskip("cloudpickle")
    with pytest.raises(ValueError, match="`processes` must be 1 if .*lock"):
        pool._pickled([threading.Lock()])
