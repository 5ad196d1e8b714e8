"""Tests that every optimizer trains weights of several bits."""

import numpy as np
import pytest
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd.optimizers import QPSBGD
from keras_qpsbgd.optimizers import Bop
from keras_qpsbgd.optimizers import ProxQuant
from keras_qpsbgd.optimizers import SignSGD

UNIFORM = keras.initializers.RandomUniform(-1, 1, seed=3)


def regression(**arguments):
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 6)).astype("float32")
    levels = rng.integers(4, size=(6, 2)) * 2 - 3
    layer = kq.layers.BinaryDense(
        2,
        bits=2,
        output_scale="channel",
        kernel_initializer=UNIFORM,
        **arguments,
    )
    model = keras.Sequential([keras.layers.InputLayer((6,)), layer])
    return model, x, x @ (levels / 3 / np.sqrt(6))


@pytest.mark.parametrize(
    "opt",
    [
        lambda: QPSBGD(0.03, "sign", seed=1),
        pytest.param(lambda: SignSGD(0.03), marks=pytest.mark.slow),
        pytest.param(lambda: ProxQuant(0.2, 1e-3), marks=pytest.mark.slow),
        pytest.param(lambda: Bop(0.2, 2e-2), marks=pytest.mark.slow),
        pytest.param(
            lambda: keras.optimizers.Adam(0.03), marks=pytest.mark.slow
        ),
    ],
)
def test_optimizers_lower_the_loss(opt):
    opt = opt()
    weights = "latent" if isinstance(opt, ProxQuant) else "binary"
    model, x, y = regression(training_weights=weights)
    model.compile(opt, "mse")
    before = model.evaluate(x, y, verbose=0)
    model.fit(x, y, epochs=15, batch_size=24, verbose=0)
    assert model.evaluate(x, y, verbose=0) < 0.3 * before
    assert np.abs(model.layers[-1].scale.numpy() - 6**-0.5).min() > 1e-6


def network(**arguments):
    return tools.small_model(
        bits=2,
        output_scale="channel",
        # A seed without near ties, which `fit` checks.
        kernel_initializer=keras.initializers.RandomUniform(-1, 1, seed=4),
        **arguments,
    )


def fit(model, batch_size=12, **arguments):
    backend = tools.GapBackend()
    opt = tools.optimizer(backend=backend)
    if arguments.pop("accumulate", False):
        opt = tools.optimizer(backend=backend, gradient_accumulation_steps=2)
    tools.fit(model, opt, *tools.data(), batch_size=batch_size, **arguments)
    assert backend.least > 1e-3
    return model.get_weights()


@pytest.mark.slow
def test_two_replicas(mirrored):
    with mirrored.scope():
        model = network()
    found, expected = fit(model), fit(network())
    for ours, theirs in zip(found, expected):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.skipif(
    not _keras.KERAS_3, reason="legacy Keras does not accumulate"
)
@pytest.mark.slow
def test_accumulation():
    found, expected = fit(network(), 6, accumulate=True), fit(network())
    for ours, theirs in zip(found, expected):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize(
    "mode",
    [
        {"run_eagerly": True},
        pytest.param(
            {"jit_compile": True}, marks=[pytest.mark.once, pytest.mark.slow]
        ),
    ],
)
def test_modes(mode):
    results = []
    for arguments in (mode, {"jit_compile": False}):
        model = network()
        tools.fit(
            model, tools.optimizer(backend="sign"), *tools.data(), **arguments
        )
        results.append(model.get_weights())
    for ours, theirs in zip(*results):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
