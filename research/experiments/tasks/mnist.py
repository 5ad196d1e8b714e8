"""MNIST with ten classes, which the paper does not have."""

import numpy as np

from keras_qpsbgd.comparison.methods import grids
from keras_qpsbgd.comparison.task import TUNING
from keras_qpsbgd.comparison.task import Split
from keras_qpsbgd.comparison.task import random
from keras_qpsbgd.comparison.task import shuffled_batches
from research import datasets
from research.experiments.options import DEFAULT
from research.experiments.options import Task
from research.experiments.tasks import networks

NAME = "mnist"
NORMALIZED = "mnist-256-bn"
WIDE = "mnist-1024-bn"
PLAIN = "mnist-256"
BATCH = 128
NUM_TRAIN = 60_000
EPOCHS = {NORMALIZED: 10, PLAIN: 10, WIDE: 30}
TITLES = {
    NORMALIZED: "MNIST, 784-256-10 with batch normalization",
    PLAIN: "MNIST, 784-256-10 without batch normalization",
    WIDE: "MNIST, 784-1024-1024-10 with batch normalization",
}
TUNING_EPOCHS = 3
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
    num_train = 5_000 if options.quick else None

    def make(name, sizes, momentum, **settings):
        epochs = 1 if options.quick else EPOCHS[name]

        def batches(seed, rows, stage):
            passes = min(epochs, TUNING_EPOCHS) if stage == TUNING else epochs
            return shuffled_batches(seed, rows, BATCH, passes)

        return Task(
            name=name,
            title=TITLES[name],
            paper={},
            load=lambda data_dir: Source(data_dir, num_train),
            prepare=lambda data_dir: datasets.mnist(data_dir, download=True),
            splits=lambda source, seed, stage: source.splits(stage),
            batches=batches,
            build=lambda source, weights: networks.mlp(
                sizes,
                weights,
                batch_normalization=momentum,
                clip=1.0,
            ),
            tuning_seeds=1,
            probe=PROBE,
            **settings,
        )

    def configurations(real_rates):
        return grids(
            qp=(0.001, 0.002, 0.004, 0.008),
            sign=(0.0005, 0.001, 0.002, 0.004),
            adam=(0.001, 0.0025, 0.005, 0.01),
            sgd=(0.3, 1.0, 3.0, 10.0),
            prox=(0.1, 1.0),
            bop=((1e-3, 1e-6), (1e-3, 1e-5), (1e-2, 1e-6), (1e-2, 1e-5)),
            steps=EPOCHS[NORMALIZED] * (NUM_TRAIN // BATCH),
            real=(0.0003, 0.001, 0.003, 0.01),
            real_rates=real_rates,
            frozen_real_rates=(0.002, 0.005, 0.01, 0.02)
            if real_rates[0]
            else (None,),
        )

    normalized = make(
        NORMALIZED,
        (784, 256, 10),
        MOMENTUM,
        grids=configurations((REAL_RATE,)),
        methods=DEFAULT,
        fresh_seeds=3,
    )
    return [
        normalized,
        make(
            PLAIN,
            (784, 256, 10),
            None,
            grids=configurations((None,)),
            methods=DEFAULT,
            fresh_seeds=3,
        ),
        make(
            WIDE,
            (784, 1024, 1024, 10),
            MOMENTUM,
            grids={},
            like=normalized,
            methods=("native", "adam"),
            fresh_seeds=1,
        ),
    ]
