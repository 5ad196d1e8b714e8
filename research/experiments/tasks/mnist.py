"""MNIST with ten classes, which the paper does not have."""

import numpy as np

from research import datasets
from research.engine.methods import grids
from research.engine.task import TUNING
from research.engine.task import Split
from research.engine.task import random
from research.engine.task import shuffled_batches
from research.experiments.options import WIDE
from research.experiments.options import Task
from research.experiments.options import bop
from research.experiments.options import spread
from research.experiments.tasks import networks

NAME = "mnist"
TITLE = "MNIST, 784-256-10 with batch normalization"
SIZES = (784, 256, 10)
BATCH = 128
NUM_TRAIN = 60_000
EPOCHS = 5
TUNING_EPOCHS = 2
PROBE = 5_000  # training images for the training loss
MOMENTUM = 0.99
REAL_RATE = 0.005  # of batch normalization


class Source:
    """60,000 images to train on and 10,000 to test.

    For tuning, 5,000 training images are held out for validation. The chosen
    configuration is trained on all 60,000.
    """

    def __init__(self, data_dir, num_train):
        (x, y), (x_test, y_test) = images(data_dir, random(0, 2))
        self._x, self._y = x, y
        held = len(x) // 12
        self._held = np.arange(len(x) - held, len(x))
        self._others = np.arange(len(x) - held)[:num_train]
        self._test = Split((x_test,), np.arange(len(x_test)), y_test)

    def splits(self, stage):
        if stage == TUNING:
            return {
                "train": Split((self._x,), self._others, self._y),
                "validation": Split((self._x,), self._held, self._y),
            }
        everything = np.concatenate([self._others, self._held])
        return {
            "train": Split((self._x,), everything, self._y),
            "test": self._test,
        }


def images(data_dir, generator):
    """Returns `(x, y)` to train on and `(x, y)` to test, pixels in [-1, 1].

    Args:
        data_dir: Folder of the data.
        generator: Random generator that shuffles the training images: the last
            ones of MNIST are easier than the others.
    """
    train, (x_test, y_test) = datasets.mnist(data_dir, download=True)
    order = generator.permutation(len(train[0]))
    x, y = (part[order] for part in train)

    def scaled(x):
        return x.reshape(len(x), -1).astype("float32") / 127.5 - 1.0

    return (
        (scaled(x), y.astype("int32")),
        (scaled(x_test), y_test.astype("int32")),
    )


def tasks(options):
    """Returns the task."""
    epochs = 1 if options.quick else EPOCHS
    num_train = 5_000 if options.quick else None

    def batches(seed, rows, stage):
        passes = min(epochs, TUNING_EPOCHS) if stage == TUNING else epochs
        return shuffled_batches(seed, rows, BATCH, passes)

    return [
        Task(
            name=NAME,
            title=TITLE,
            paper={},
            load=lambda data_dir: Source(data_dir, num_train),
            prepare=lambda data_dir: datasets.mnist(data_dir, download=True),
            splits=lambda source, seed, stage: source.splits(stage),
            batches=batches,
            build=lambda source, weights: networks.mlp(
                SIZES, weights, batch_normalization=MOMENTUM, clip=1.0
            ),
            grids=configurations(),
            tuning_seeds=1,
            probe=PROBE,
            methods=WIDE,
        )
    ]


def configurations():
    return grids(
        qp=spread(0.0005, 0.1, 8, above=2),
        sign=spread(0.0002, 0.04, 8, above=2),
        adam=spread(0.0005, 0.1, 8, above=2),
        sgd=spread(0.3, 300.0, 8, above=2),
        prox=spread(0.01, 10.0, 4, below=1),
        bop=bop((1e-3, 1e-2), 3e-8, 3e-5, 4, below=1),
        steps=EPOCHS * (NUM_TRAIN // BATCH),
        real=spread(0.0001, 0.02, 8, above=2),
        real_rates=(REAL_RATE,),
        frozen_real_rates=spread(0.001, 0.1, 8, above=2),
    )
