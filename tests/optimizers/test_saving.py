"""Tests saving and loading of models, layers and optimizers."""

import functools

import numpy as np
import pytest
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd.optimizers.base import BinaryOptimizer


def conv_model(seed=1):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.InputLayer((6, 6, 1)),
            kq.layers.BinaryConv2D(3, 3, activation="hard_tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            kq.layers.BinaryDense(3, output_scale=None),
        ]
    )


def images():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 6, 6, 1)).astype("float32")
    return x, rng.integers(3, size=(24,))


def run(model, x, y):
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)


@pytest.mark.skipif(
    not _keras.KERAS_3, reason="legacy Keras cannot load such a file"
)
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_optimizer_by_name(suffix, tmp_path):
    """Keras finds the name, and equal names elsewhere have no effect."""
    model = keras.Sequential(
        [keras.layers.InputLayer((5,)), kq.layers.BinaryDense(3, name="qpsbgd")]
    )
    model.compile("qpsbgd", tools.loss(), run_eagerly=True)
    x, y = tools.data()
    model.train_on_batch(x[:6], y[:6])
    model.save(tmp_path / f"model{suffix}")
    loaded = keras.models.load_model(tmp_path / f"model{suffix}")
    for found in (model, loaded):
        assert type(found.optimizer) is kq.QPSBGD
        assert int(found.optimizer.iterations) == 1
        assert found.layers[-1].name == "qpsbgd"
    tools.assert_equal(loaded.get_weights(), model.get_weights())
    # It is no name for the inner optimizer.
    with pytest.raises(ValueError, match="`real_optimizer`.*QPSBGD"):
        kq.optimizers.Bop(real_optimizer="qpsbgd")


@pytest.mark.parametrize(
    "seed, preset",
    [(3, "fast"), pytest.param(None, "once", marks=pytest.mark.exhaustive)],
)
def test_save_load_continue(tmp_path, seed, preset):
    """A loaded model continues bit for bit like the original.

    This includes the seed, the schedules and the real optimizer.
    """
    x, y = images()
    opt = kq.QPSBGD(
        keras.optimizers.schedules.CosineDecay(0.05, 20),
        {"name": "native", "preset": preset},
        real_optimizer=keras.optimizers.Adam(
            keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.9)
        ),
        seed=seed,
    )
    model = conv_model()
    model.compile(opt, tools.loss())
    run(model, x, y)
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    assert isinstance(loaded.layers[0], kq.layers.BinaryConv2D)
    assert isinstance(loaded.optimizer, kq.QPSBGD)
    tools.assert_equal(loaded.get_weights(), model.get_weights())
    run(model, x, y)
    run(loaded, x, y)
    tools.assert_equal(loaded.get_weights(), model.get_weights())
    tools.assert_equal(
        [np.array(v) for v in loaded.optimizer.variables],
        [np.array(v) for v in model.optimizer.variables],
    )


@pytest.mark.skipif(
    not _keras.KERAS_3, reason="legacy Keras does not accumulate"
)
@pytest.mark.parametrize("rule", ["averaged", "paper"])
def test_save_in_the_middle_of_an_accumulation(tmp_path, rule):
    x, y = tools.data()
    model = tools.small_model()
    opt = tools.optimizer(
        rule=rule, gradient_accumulation_steps=2, real_optimizer="adam"
    )
    opt.build(model.trainable_variables)
    model.compile(opt, tools.loss(), run_eagerly=True)
    for begin in (0, 6, 12):
        model.train_on_batch(x[begin : begin + 6], y[begin : begin + 6])
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    before = tools.kernels(loaded)
    for net in (model, loaded):
        net.train_on_batch(x[18:], y[18:])
    assert not np.array_equal(tools.kernels(loaded)[0], before[0])
    tools.assert_equal(loaded.get_weights(), model.get_weights())
    tools.assert_equal(
        [np.array(v) for v in loaded.optimizer.variables],
        [np.array(v) for v in model.optimizer.variables],
    )


# The solver does not matter below, and this one needs no compilation.
optimizer = functools.partial(tools.optimizer, backend="sign")


def test_frozen_layers(tmp_path):
    """A copy has the same frozen layer, continues, and can be unfrozen."""
    x, y = tools.data()
    model = tools.small_model()
    model.layers[-2].trainable = False
    model.compile(optimizer(), tools.loss(), run_eagerly=True)
    model.fit(x, y, verbose=0)
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded, copy = (
        keras.models.load_model(path),
        keras.models.clone_model(model),
    )
    copy.set_weights(model.get_weights())
    for other in (loaded, copy):
        np.testing.assert_array_equal(other(x), model(x))
        assert len(other.trainable_weights) == len(model.trainable_weights)
    for net in (model, loaded):
        net.fit(x, y, shuffle=False, verbose=0)
    tools.assert_equal(loaded.get_weights(), model.get_weights())
    loaded.layers[-2].trainable = True
    loaded.compile(optimizer(), tools.loss(), run_eagerly=True)
    before = loaded.get_weights()[0]
    loaded.fit(x, y, verbose=0)
    assert np.abs(loaded.get_weights()[0] - before).max() > 0.04


# HDF5


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
@pytest.mark.parametrize(
    "make",
    [optimizer, lambda: tools.loss_scaled(optimizer())],
    ids=["qpsbgd", "loss scale"],
)
def test_hdf5(tmp_path, make):
    """Models load and continue training.

    Legacy Keras restores the state of an optimizer, unless it is wrapped in a
    `LossScaleOptimizer`. Keras 3 warns and starts with a new state, because it
    does not pass the variables to the optimizer. Both treat their own
    optimizers in the same way.
    """
    x, y = tools.data()
    model = tools.small_model()
    model.compile(make(), tools.loss(), run_eagerly=True)
    model.fit(x, y, batch_size=6, shuffle=False, verbose=0)
    path = str(tmp_path / "model.h5")
    model.save(path)
    # In HDF5 files, legacy Keras does not find registered optimizers inside a
    # `LossScaleOptimizer`.
    known = {"QPSBGD": kq.QPSBGD}
    wrapped = not isinstance(model.optimizer, BinaryOptimizer)
    restored = not _keras.KERAS_3 and not wrapped
    loaded = keras.models.load_model(path, custom_objects=known)
    loaded.run_eagerly = True  # not in the file
    tools.assert_equal(loaded.get_weights(), model.get_weights())
    if restored:
        tools.assert_equal(
            [np.array(v) for v in loaded.optimizer.variables],
            [np.array(v) for v in model.optimizer.variables],
        )
    before = tools.kernels(loaded)
    loaded.fit(x, y, batch_size=6, shuffle=False, verbose=0)
    if restored:
        model.fit(x, y, batch_size=6, shuffle=False, verbose=0)
        tools.assert_equal(loaded.get_weights(), model.get_weights())
    for found, old in zip(tools.kernels(loaded), before):
        assert np.abs(found - old).max() > 0
