"""Training warns once if the inputs of the first layer are not scaled."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq

LARGE = "`first` have a root mean square of 1[0-9][0-9][.]"
PIXELS = np.random.default_rng(0).integers(0, 256, (24, 5)).astype("float32")
LABELS = np.random.default_rng(1).integers(0, 3, 24)


def compiled(inner=(), rule="averaged", **arguments):
    model = keras.Sequential(
        [
            keras.layers.InputLayer((5,)),
            kq.layers.BinaryDense(3, name="first"),
            *inner,
            kq.layers.BinaryDense(3, name="second"),
        ]
    )
    opt = tools.optimizer(backend="exact", rule=rule)
    opt.build(model.trainable_variables)
    model.compile(opt, tools.loss(), **arguments)
    return model


def warned(function):
    """Returns the warnings about large inputs."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function()
    texts = [str(each.message) for each in found]
    return [text for text in texts if "root mean square" in text]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({}, marks=pytest.mark.exhaustive),
        {"run_eagerly": True},
        pytest.param({"jit_compile": True}, marks=pytest.mark.exhaustive),
        pytest.param({"steps_per_execution": 2}, marks=pytest.mark.exhaustive),
    ],
    ids=["graph", "eager", "XLA", "steps_per_execution"],
)
def test_pixels_warn_once(arguments):
    model = compiled(**arguments)
    fit = {"batch_size": 8, "verbose": 0}
    assert not warned(lambda: model.fit(PIXELS / 127.5 - 1, LABELS, **fit))
    with pytest.warns(UserWarning, match=LARGE):
        model.fit(PIXELS, LABELS, **fit)
    assert not warned(lambda: model.fit(PIXELS, LABELS, **fit))


@pytest.mark.slow
def test_resumed_model_warns_again(tmp_path):
    """The size is not saved, so files have the same variables as without it."""
    model = compiled()
    assert len(warned(lambda: model.fit(PIXELS, LABELS, verbose=0))) == 1
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    saved = model.optimizer.variables, loaded.optimizer.variables
    for before, after in zip(*saved, strict=True):
        np.testing.assert_array_equal(before, after)
    assert len(warned(lambda: loaded.fit(PIXELS, LABELS, verbose=0))) == 1


def test_first_eager_step_warns():
    model = compiled(run_eagerly=True)
    with pytest.warns(UserWarning, match=LARGE):
        model.train_on_batch(PIXELS, LABELS)


@pytest.mark.slow
def test_two_replicas(mirrored):
    with mirrored.scope():
        model = compiled()
    found = warned(lambda: model.fit(PIXELS, LABELS, batch_size=8, verbose=0))
    assert len(found) == 1


@pytest.mark.once
@pytest.mark.parametrize(
    "inner, scale, rule",
    [
        # The inputs of later layers, as after a layer without output scale.
        ([keras.layers.Rescaling(1000.0)], 1 / 127.5, "averaged"),
        ([], 20 / 255, "averaged"),
        ([], np.nan, "averaged"),
        ([], np.inf, "averaged"),
        ([], 0.0, "averaged"),
        # It divides each row by its own square.
        ([], 1.0, "paper"),
    ],
)
def test_no_false_alarm(inner, scale, rule):
    model = compiled(inner, rule=rule, run_eagerly=True)
    assert not warned(lambda: model.train_on_batch(PIXELS * scale, LABELS))


@pytest.mark.once
def test_embeddings():
    model = keras.Sequential(
        [
            keras.layers.InputLayer((5,), dtype="int32"),
            keras.layers.Embedding(256, 4),
            keras.layers.GlobalAveragePooling1D(),
            kq.layers.BinaryDense(3),
        ]
    )
    model.compile(tools.optimizer(), tools.loss(), run_eagerly=True)
    assert not warned(
        lambda: model.train_on_batch(tf.cast(PIXELS, tf.int32), LABELS)
    )
