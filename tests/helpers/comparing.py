"""A small dataset and a small network for tests of `compare`."""

import numpy as np
from tensorflow import keras

import keras_qpsbgd as kq

X = np.random.default_rng(0).normal(size=(120, 6))
Y = (X[:, 0] - X[:, 1] > 0).astype(int)
PARTS = (slice(0, 80), slice(80, 100), slice(100, 120))
QUICK = {"epochs": 2, "batch_size": 20, "tuning_seeds": 1, "verbose": 0}


def splits(x=X, y=Y):
    """Returns the training, validation and test data."""
    return [(x[part], y[part]) for part in PARTS]


def small_model():
    return keras.Sequential(
        [
            keras.layers.InputLayer((6,)),
            kq.layers.BinaryDense(4, activation="hard_tanh", use_bias=False),
            keras.layers.Dropout(0.3),
            kq.layers.BinaryDense(2, use_bias=False),
        ]
    )
