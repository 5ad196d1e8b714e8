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
KAPPA = 4.0


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, N)).astype("float32")
    w = np.array([1.0, -1.0, 1.0])
    y = (x @ w + 2 * rng.normal(size=40) > 0).astype("float32")[:, None]
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


def projected_gradient(problem, start):
    """Returns Pi of the scaled gradient at `start`."""
    x, y = problem
    r = tf.Variable(x @ np.asarray(start, "float32")[:, None])
    with tf.GradientTape() as tape:
        loss = keras.losses.BinaryCrossentropy(from_logits=True)(y, r)
    v = tape.gradient(loss, r).numpy()[:, 0]
    return kq.binary_map(x, v * KAPPA / np.abs(v).max())


def path(problem, start, steps):
    x, y = problem
    model = network(start)
    opt = kq.QPSBGD(0.05, "exact", kappa=KAPPA)
    model.compile(
        opt, keras.losses.BinaryCrossentropy(from_logits=True), run_eagerly=True
    )
    for _ in range(steps):
        model.train_on_batch(x, y)
        yield model.layers[-1].binary_kernel.numpy()[:, 0]


@pytest.mark.once
def test_fixed_points(problem):
    fixed, others = [], []
    for start in itertools.product((1.0, -1.0), repeat=N):
        descent = -projected_gradient(problem, start)
        (fixed if np.array_equal(descent, start) else others).append(start)
    assert fixed and others
    for start in fixed:
        for visited in path(problem, start, 20):
            np.testing.assert_array_equal(visited, start)
    for start in others:
        # A weight is zero after 0.3 / 0.05 = 6 steps and then changes its sign.
        assert any(
            not np.array_equal(visited, start)
            for visited in path(problem, start, 7)
        )
