"""Trains binary convolutional networks on MNIST.

The learning rate of the binary kernels is chosen from four by the accuracy on
5,000 validation images, in shorter runs on the other images. With the chosen
rate, the network is trained on all 60,000 images and evaluated once on the
10,000 test images. The seed is fixed.
"""

import math
import time

import numpy as np
from tensorflow import keras

import keras_qpsbgd as kq
from research import datasets
from research.engine.task import random

NETWORKS = {"mnist-relu": "relu", "mnist-binary": "binary"}  # activations
CLASSES = [str(digit) for digit in range(10)]
FILTERS = (16, 32, 64)
BATCH = 128
EPOCHS = 5
TUNING_EPOCHS = 1
VALIDATION = 5_000
RATES = (0.005, 0.01, 0.02, 0.04)
REAL_RATE = 0.01  # of batch normalization
SEED = 0
QUICK = 256  # images of quick runs


def load(data_dir=None, quick=False):
    """Returns `(x, y)` to train on and `(x, y)` to test, pixels in [-1, 1].

    The images to train on are shuffled, because the last ones of MNIST are
    easier than the others.
    """
    train, test = datasets.mnist(data_dir, download=True)
    order = random(0, 2).permutation(len(train[0]))
    found = [tuple(part[order] for part in train), test]
    if quick:
        found = [(x[:QUICK], y[:QUICK]) for x, y in found]
    return [(scaled(x), y.astype("int32")) for x, y in found]


def scaled(x):
    """Returns pixels as values from -1 to 1, with an axis for the channel."""
    return x[..., None].astype("float32") / 127.5 - 1.0


def network(activation):
    """Returns a network of three convolutions and a dense layer.

    The pooling is before the activation. The maximum of binary numbers would
    nearly always be +1.
    """
    model = keras.Sequential([keras.layers.InputLayer((28, 28, 1))])
    for filters in FILTERS:
        for layer in (
            kq.layers.BinaryConv2D(filters, 3, padding="same", use_bias=False),
            keras.layers.MaxPooling2D(),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.Activation(activation),
        ):
            model.add(layer)
    model.add(keras.layers.Flatten())
    model.add(kq.layers.BinaryDense(len(CLASSES), use_bias=False))
    model.add(keras.layers.BatchNormalization(momentum=0.9))
    return model


def train(activation, x, y, epochs, rate, verbose=2):
    """Trains a network from the start and returns it."""
    keras.utils.set_random_seed(SEED)
    model = network(activation)
    steps = epochs * math.ceil(len(x) / BATCH)

    def cosine(rate):
        return keras.optimizers.schedules.CosineDecay(rate, steps)

    model.compile(
        kq.QPSBGD(
            cosine(rate),
            real_optimizer=keras.optimizers.Adam(cosine(REAL_RATE)),
            seed=SEED,
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=verbose)
    return model


def accuracy(model, x, y):
    """Returns the share of images that are classified correctly."""
    logits = model.predict(x, batch_size=500, verbose=0)
    return float((np.argmax(logits, axis=1) == y).mean())


def run(name, data, quick=False):
    """Chooses the rate, trains, and describes the training.

    Args:
        name: String. One of `NETWORKS`.
        data: Tuple `(x, y)`, the images to train on.
        quick: Boolean. One epoch each. Defaults to `False`.

    Returns:
        The model, and a dictionary for its record.
    """
    activation = NETWORKS[name]
    x, y = data
    held = len(x) // 4 if quick else VALIDATION
    tuning_epochs, epochs = (1, 1) if quick else (TUNING_EPOCHS, EPOCHS)
    found = {}
    for rate in RATES:
        print(f"{name}, rate {rate}: {tuning_epochs} epochs", flush=True)
        model = train(activation, x[held:], y[held:], tuning_epochs, rate)
        found[rate] = accuracy(model, x[:held], y[:held])
        print(f"{name}, rate {rate}: validation {found[rate]:.4f}", flush=True)
        keras.backend.clear_session()
    rate = max(found, key=found.get)
    start = time.perf_counter()
    model = train(activation, x, y, epochs, rate)
    return model, {
        "images": len(x),
        "optimizer": "QPSBGD",
        "epochs": epochs,
        "batch": BATCH,
        "rate": rate,
        "real_rate": REAL_RATE,
        "seed": SEED,
        "seconds": round(time.perf_counter() - start),
        "tuning": {
            "epochs": tuning_epochs,
            "images": len(x) - held,
            "validation_images": held,
            "validation": {str(rate): value for rate, value in found.items()},
        },
    }
