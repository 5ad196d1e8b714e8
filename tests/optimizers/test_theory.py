"""Tests the fixed-point theorem of the paper on a problem that is enumerated.

The problem is full-batch logistic regression with weights s in {-1, +1}^n. If
-Pi(gradient at s) = s, the update moves every latent weight away from zero, and
training never leaves s. Otherwise some latent weight moves toward zero and,
with a constant gradient, changes its sign.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq

N = 3
KAPPA = 3.0
LOSS = keras.losses.BinaryCrossentropy(from_logits=True)


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, N)).astype("float32")
    w = np.array([1.0, -1.0, 1.0])
    y = (x @ w + 0.5 * rng.normal(size=40) > 0).astype("float32")[:, None]
    return x, y


def network(start):
    model = keras.Sequential(
        [
            keras.layers.InputLayer((N,)),
            kq.layers.BinaryDense(1, use_bias=False, output_scale=None),
        ]
    )
    model.layers[-1].kernel.assign(0.3 * np.asarray(start)[:, None])
    return model


def projected_gradient(problem, start, rule):
    """Returns Pi of the gradient at `start`."""
    x, y = problem
    r = tf.Variable(x @ np.asarray(start, "float32")[:, None])
    with tf.GradientTape() as tape:
        loss = SCALE[rule] * LOSS(y, r)
    v = tape.gradient(loss, r).numpy()
    if rule == "paper":
        return kq.binary_map(x, v[:, 0])
    gradient = x.T @ v
    couplings = x.T @ x / (x**2).sum()
    others = couplings - np.diag(np.diag(couplings))
    force = np.sqrt((others**2).sum() / N)
    rms = np.sqrt((gradient**2).mean())
    qubo = kq.Qubo(couplings, -2 * KAPPA * force * gradient / rms)
    states = list(itertools.product((1.0, -1.0), repeat=N))
    return min(states, key=lambda state: qubo.energy(state)[0])


# The rule of the paper depends on the scale of the loss.
SCALE = {"averaged": 1.0, "paper": 40.0}


def path(problem, start, steps, rule):
    x, y = problem
    model = network(start)
    opt = kq.QPSBGD(0.05, "exact", kappa=KAPPA, rule=rule)
    opt.build(model.trainable_variables)
    model.compile(opt, LOSS, loss_weights=SCALE[rule], run_eagerly=True)
    for _ in range(steps):
        model.train_on_batch(x, y)
        yield model.layers[-1].binary_kernel.numpy()[:, 0]


@pytest.mark.once
@pytest.mark.parametrize(
    "rule", [pytest.param("averaged", marks=pytest.mark.slow), "paper"]
)
def test_fixed_points(problem, rule):
    fixed, others = [], []
    for start in itertools.product((1.0, -1.0), repeat=N):
        descent = -np.asarray(projected_gradient(problem, start, rule))
        (fixed if np.array_equal(descent, start) else others).append(start)
    assert fixed and others
    for start in fixed:
        for visited in path(problem, start, 8, rule):
            np.testing.assert_array_equal(visited, start)
    for start in others:
        # A weight is zero after 0.3 / 0.05 = 6 steps and then changes its sign.
        assert any(
            not np.array_equal(visited, start)
            for visited in path(problem, start, 7, rule)
        )
