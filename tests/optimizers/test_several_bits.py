"""Tests that every optimizer trains weights of several bits.

The layer is that of `test_baseline_optimizers.py`, with two bits: the kernel
(1/2, 1/4, 3/4, -1/2) has the levels (1, 1, 3, -1) and the weights
(1/3, 1/3, 1, -1/3). The gradient is g = (1, 1/2, -1, 0), and the loss is
g.w + bias / 2, which is 1/3 + 1/6 - 1 = -1/2 at the start.
"""

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

START = [0.5, 0.25, 0.75, -0.5]
X = np.array([[1, 1, 0, 0], [0, 1, 2, 0]], "float32")
T = np.array([[1], [-0.5]], "float32")
UNIFORM = keras.initializers.RandomUniform(-1, 1, seed=3)


def loss(y_true, y_pred):
    return 2.0 * y_true * y_pred  # Keras takes the mean over two samples


def hand_model(opt):
    weights = "latent" if isinstance(opt, ProxQuant) else "binary"
    layer = kq.layers.BinaryDense(
        1, bits=2, output_scale=None, training_weights=weights
    )
    model = keras.Sequential([keras.layers.InputLayer((4,)), layer])
    model.set_weights([np.array(START)[:, None], np.zeros(1)])
    model.compile(opt, loss)
    return model


@pytest.mark.parametrize(
    "opt, steps",
    [
        # With couplings of (1, 2) between neighbors, 2 kappa f / rms is 12.6,
        # so the solution has the signs of g.
        (lambda: QPSBGD(0.25, "sign"), [[0.25, 0, 1, -0.5]]),
        (lambda: QPSBGD(0.25, "exact"), [[0.25, 0, 1, -0.5]]),
        (lambda: SignSGD(0.25), [[0.25, 0, 1, -0.5], [0, -0.25, 1.25, -0.5]]),
        (lambda: keras.optimizers.SGD(0.25), [[0.25, 0.125, 1, -0.5]]),
        # A distance of 1/8 toward 1/3, 1/3, 1 and -1/3.
        (lambda: ProxQuant(0.25, 0.5), [[1 / 3, 0.25, 1, -0.375]]),
        # Only |g| = 1 exceeds the threshold, and 3/4 is at the last level.
        (
            lambda: Bop(1.0, 0.75),
            [[-1 / 3, *START[1:]], [-1, *START[1:]], [-1, *START[1:]]],
        ),
    ],
)
def test_steps_by_hand(opt, steps):
    opt = opt()
    model = hand_model(opt)
    arguments = {"batch_size": 2, "shuffle": False, "verbose": 0}
    first = model.fit(X, T, **arguments).history["loss"][0]
    latent = isinstance(opt, ProxQuant)
    assert first == pytest.approx(-0.125 if latent else -0.5)
    for position, expected in enumerate(steps):
        if position:
            model.fit(X, T, **arguments)
        found = model.layers[-1].kernel.numpy()[:, 0]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


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


@pytest.mark.slow
def test_fixed_points_are_outer_levels():
    model = hand_model(QPSBGD(0.25, "exact"))
    for last, expected in ((-0.6, 0.0), (-0.7, 1.0)):  # the levels -1 and -3
        model.layers[-1].kernel.assign([[last], [-1.0], [0.8], [0.1]])
        points = kq.analysis.fixed_points(model, X, T)
        assert points.share == expected
