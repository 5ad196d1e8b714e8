"""Tests that training with default options takes the same steps as ever.

The expected numbers are those of the commit before `update`, `latent`,
`momentum`, `hold` and `reads` were added to `QPSBGD`.
"""

import hashlib

import numpy as np
import pytest
from tensorflow import keras

import keras_qpsbgd as kq

RATE = 0.125
STEPS = 12


def steps_taken(backend):
    """Returns how often each weight moved up or down, as integers."""
    rng = np.random.default_rng(8)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            kq.layers.BinaryDense(4, activation="tanh"),
            kq.layers.BinaryDense(3),
        ]
    )
    # Multiples of the rate, so that all sums are exact in float32.
    start = [
        RATE * (2 * rng.integers(-3, 3, array.shape) + 1.0)
        if array.ndim == 2
        else array
        for array in model.get_weights()
    ]
    model.set_weights(start)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(kq.QPSBGD(RATE, backend, seed=5), loss)
    for _ in range(STEPS):
        x = rng.normal(size=(32, 6)).astype("float32")
        model.train_on_batch(x, rng.integers(0, 3, 32))
    return [
        (before - after) / RATE
        for before, after in zip(start, model.get_weights())
        if before.ndim == 2
    ]


@pytest.mark.parametrize(
    "backend,expected",
    [
        ("native", "32153b57cb6050d1"),
        ("ridge", "3ed9b39ac9edcfb3"),
        ("sign", "a65dcab3d8a6755b"),
    ],
)
def test_same_steps_as_before_the_options(backend, expected):
    moves = steps_taken(backend)
    digest = hashlib.sha256()
    for layer in moves:
        np.testing.assert_array_equal(layer, np.round(layer))
        assert 0 < abs(layer).max() <= STEPS
        digest.update(layer.astype(np.int8).tobytes())
    assert digest.hexdigest()[:16] == expected
