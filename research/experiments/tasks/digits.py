"""The first network of README.md, on handwritten digits of 8 x 8 pixels.

The paper does not have it. Every seed draws a quarter of the 1,797 digits of
scikit-learn for the test, as README.md does.
"""

import numpy as np
from tensorflow import keras

from keras_qpsbgd import layers
from research.engine.methods import grids
from research.engine.task import TUNING
from research.engine.task import Split
from research.engine.task import random
from research.engine.task import shuffled_batches
from research.engine.task import use_weights
from research.experiments.options import WIDE
from research.experiments.options import Task
from research.experiments.options import bop
from research.experiments.options import spread

NAME = "digits"
TITLE = "Digits, 64-32-10 with batch normalization"
INPUTS, HIDDEN, CLASSES = 64, 32, 10
BATCH = 32
EPOCHS = 20
REAL_RATES = (0.001, 0.01)  # of batch normalization and biases


def load(data_dir):
    """Returns pixels in [-1, 1] and classes."""
    del data_dir
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x / 8 - 1).astype("float32"), y.astype("int32")


def splits(source, seed, stage):
    """Draws test rows, and for tuning validation rows from the others."""
    x, y = source
    order = random(seed, 0).permutation(len(x))
    test, train = np.split(order, [len(x) // 4])
    if stage == TUNING:
        validation, train = np.split(train, [len(train) // 4])
        return {
            "train": Split((x,), train, y),
            "validation": Split((x,), validation, y),
        }
    return {"train": Split((x,), train, y), "test": Split((x,), test, y)}


def build(source, weights):
    """Returns the network."""
    del source
    model = keras.Sequential(
        [
            keras.layers.InputLayer((INPUTS,)),
            layers.BinaryDense(HIDDEN, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.Activation("hard_tanh"),
            layers.BinaryDense(CLASSES),
        ]
    )
    return use_weights(model, weights)


def tasks(options):
    """Returns the task."""
    epochs = 1 if options.quick else EPOCHS
    return [
        Task(
            name=NAME,
            title=TITLE,
            load=load,
            splits=splits,
            batches=lambda seed, rows, stage: shuffled_batches(
                seed, rows, BATCH, epochs
            ),
            build=build,
            grids=configurations(),
            methods=WIDE,
        )
    ]


def configurations():
    return grids(
        qp=spread(0.002, 0.1, 4),
        sign=spread(0.001, 0.05, 4),
        adam=spread(0.001, 0.05, 4),
        sgd=spread(1.0, 100.0, 4),
        prox=spread(0.1, 10.0, 4),
        prox_reaches=(3.0,),
        bop=bop((1e-2,), 1e-6, 1e-3, 4),
        steps=EPOCHS * 42,
        real_rates=REAL_RATES,
        frozen_real_rates=spread(0.001, 0.1, 8),
    )
