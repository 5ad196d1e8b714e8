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


def make_run(
    seed=0, test=0.8, validation=0.7, method="QP-SBGD", stage="fresh", rate=0.02
):
    """Returns the record of a run, as the engine stores it."""
    measured = {"validation_accuracy": validation}
    if stage == "fresh":
        measured |= {"test_accuracy": test, "test_loss": 1 - test}
    return {
        "task": "a",
        "method": method,
        "stage": stage,
        "configuration": {"rate": rate, "real_rate": 0.01},
        "seed": seed,
        "curves": {
            "epoch": [0, 1],
            **{key: [value / 2, value] for key, value in measured.items()},
        },
        "result": {"epoch": 1, **measured},
    }
