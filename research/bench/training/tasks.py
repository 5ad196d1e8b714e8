"""What networks are trained on, and how: data, models, optimizers.

A method is the name of a preset of the native backend, `ridge`, or `Adam`:
BinaryConnect, straight-through gradients on the same layers. Learning rates
decay to zero, latent weights are clipped to [-1, 1].
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import constraints
from keras_qpsbgd import datasets
from keras_qpsbgd import layers
from keras_qpsbgd import optimizers
from keras_qpsbgd.backends.graph import native

ADAM = "Adam"
RIDGE = "ridge"
METHODS = (*native.PRESETS, RIDGE, ADAM)


@dataclasses.dataclass(frozen=True)
class Task:
    """Something to learn.

    Attributes:
        load: function of a data folder; returns `Data`.
        build: function that returns the model.
        batch: rows in a batch.
        rate: learning rate of QP-SBGD.
        adam_rate: of Adam alone.
        real_rate: of Adam beside QP-SBGD, for what is not binary.
    """

    load: Callable
    build: Callable
    batch: int
    rate: float
    adam_rate: float
    real_rate: float


@dataclasses.dataclass(frozen=True)
class Data:
    """Pairs `(x, y)`; nothing is chosen on the test rows."""

    train: tuple
    validation: tuple | None
    test: tuple

    def first(self, rows):
        """The same with fewer rows to train on."""
        x, y = self.train
        return dataclasses.replace(self, train=(x[:rows], y[:rows]))

    def joined(self):
        """The same with the validation rows to train on, too."""
        pairs = zip(self.train, self.validation)
        joined = tuple(np.concatenate(pair) for pair in pairs)
        return dataclasses.replace(self, train=joined, validation=None)


def binary_dense(units, **kwargs):
    return layers.BinaryDense(
        units, kernel_constraint=constraints.WeightClip(1.0), **kwargs
    )


def normalized_mlp(inputs, hidden, classes, momentum):
    """Two binary layers, batch normalisation behind both."""
    return keras.Sequential(
        [
            keras.layers.InputLayer((inputs,)),
            binary_dense(hidden, use_bias=False),
            keras.layers.BatchNormalization(momentum=momentum),
            keras.layers.Activation("hard_tanh"),
            binary_dense(classes, use_bias=False),
            keras.layers.BatchNormalization(momentum=momentum),
        ]
    )


def deep_mlp():
    """123-128x9-1: ten binary layers, no batch normalisation."""
    hidden = [binary_dense(128, activation="hard_tanh") for _ in range(9)]
    return keras.Sequential(
        [keras.layers.InputLayer((123,)), *hidden, binary_dense(1)]
    )


def load_digits(data_dir):
    """scikit-learn's 1,797 digits in the split of the demo."""
    del data_dir
    from sklearn import datasets as sklearn_datasets
    from sklearn import model_selection

    def split(x, y, size):
        return model_selection.train_test_split(
            x, y, test_size=size, stratify=y, random_state=0
        )

    x, y = sklearn_datasets.load_digits(return_X_y=True)
    x = (x / 8.0 - 1.0).astype("float32")
    x, x_test, y, y_test = split(x, y, 450)
    x, x_validation, y, y_validation = split(x, y, 300)
    return Data((x, y), (x_validation, y_validation), (x_test, y_test))


def load_mnist(data_dir):
    """55,000 images to train on, 5,000 to validate, 10,000 to test."""
    (x, y), (x_test, y_test) = datasets.mnist(data_dir, download=True)

    def scale(x):
        return x.reshape(len(x), -1).astype("float32") / 127.5 - 1.0

    # At random: the last images of MNIST are easier than the others.
    order = np.random.default_rng(0).permutation(len(x))
    x, y = scale(x)[order], y[order].astype("int32")
    return Data(
        (x[:-5_000], y[:-5_000]),
        (x[-5_000:], y[-5_000:]),
        (scale(x_test), y_test.astype("int32")),
    )


def load_adult(data_dir):
    """1,200 rows to train on, 405 to validate, 30,956 to test."""
    (x, y), test = datasets.adult(data_dir, download=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    return Data((x[:1_200], y[:1_200]), (x[1_200:], y[1_200:]), test)


# Rates of the digits were chosen on validation images by
# benchmarks/tune_digits.py. Those of MNIST were the best of three, in percent
# of 5,000 validation images, 10 epochs, two seeds that `bench` does not use:
#   QP-SBGD  .002: 97.72; .004: 97.80; .002 with kappa 8: 97.78
#   Adam     .0025: 98.06; .005: 98.00; .01: 97.91
DIGITS = Task(
    load_digits,
    lambda: normalized_mlp(64, 64, 10, 0.9),
    batch=64,
    rate=0.008,
    adam_rate=0.016,
    real_rate=0.01,
)
MNIST = Task(
    load_mnist,
    lambda: normalized_mlp(784, 256, 10, 0.99),
    batch=128,
    rate=0.004,
    adam_rate=0.0025,
    real_rate=0.005,
)
# The rate is chosen by the suite `quality`.
ADULT = Task(
    load_adult,
    deep_mlp,
    batch=16,
    rate=0.002,
    adam_rate=0.001,
    real_rate=0.002,
)


def backend(method):
    """The configuration of a method's backend."""
    if method == RIDGE:
        return {"name": RIDGE}
    return {"name": "native", "preset": method}


class Training:
    """One method, compiled once and trained anew for every seed.

    Compilation takes longer than many a training, so the seeds share it. A
    seed decides the first weights and the order of the rows; a last batch that
    is not full is left out.

    Args:
        task: a `Task`.
        method: one of `METHODS`.
        data: `Data`.
        epochs: passes over the training rows.
        seeds: ints; `fit` takes one of them.
        rate: learning rate at the start, if not that of the task.
    """

    def __init__(self, task, method, data, epochs, seeds, rate=None):
        self.task = task
        self.data = data
        self.epochs = epochs
        self.steps = len(data.train[0]) // task.batch
        # A new seed makes TensorFlow prepare all graphs anew, so none is set
        # once something is compiled.
        self._weights = {seed: _first_weights(task, seed) for seed in seeds}
        keras.utils.set_random_seed(0)

        def cosine(rate):
            return keras.optimizers.schedules.CosineDecay(
                rate, epochs * self.steps
            )

        if method == ADAM:
            optimizer = keras.optimizers.Adam(cosine(rate or task.adam_rate))
        else:
            optimizer = optimizers.QPSBGD(
                learning_rate=cosine(rate or task.rate),
                backend=backend(method),
                real_optimizer=keras.optimizers.Adam(cosine(task.real_rate)),
                seed=0,
            )
        self.model = task.build()
        self.is_binary = self.model.output_shape[-1] == 1
        loss = (
            keras.losses.BinaryCrossentropy(from_logits=True)
            if self.is_binary
            else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
        self.model.compile(optimizer=optimizer, loss=loss)
        optimizer.build(self.model.trainable_variables)
        self._state = [v.numpy() for v in optimizer.variables]
        self._rows = tuple(tf.constant(array) for array in data.train)
        # Compiles.
        self.model.fit(
            self._batches(0), steps_per_epoch=2, shuffle=False, verbose=0
        )

    def _batches(self, seed):
        random = np.random.default_rng(seed)
        used = self.steps * self.task.batch
        order = [
            random.permutation(len(self._rows[0]))[:used]
            for _ in range(self.epochs)
        ]
        order = np.reshape(order, (-1, self.task.batch))
        return tf.data.Dataset.from_tensor_slices(order).map(
            lambda rows: tuple(tf.gather(array, rows) for array in self._rows)
        )

    def fit(self, seed, callbacks=()):
        """Trains from the start."""
        self.model.set_weights(self._weights[seed])
        variables = self.model.optimizer.variables
        for variable, value in zip(variables, self._state, strict=True):
            variable.assign(value)
        self.model.fit(
            self._batches(seed),
            epochs=self.epochs,
            steps_per_epoch=self.steps,
            callbacks=list(callbacks),
            shuffle=False,  # done
            verbose=0,
        )

    def accuracy(self, pair):
        """Share of the rows of `pair` that the network gets right.

        Does not touch the metrics of a `fit` that goes on.
        """
        x, y = pair
        right = 0
        for start in range(0, len(x), 1_000):
            part = slice(start, start + 1_000)
            found = self.model(x[part], training=False).numpy()
            found = found[:, 0] > 0 if self.is_binary else found.argmax(axis=1)
            right += int(np.sum(found == y[part]))
        return right / len(x)


def _first_weights(task, seed):
    keras.utils.set_random_seed(seed)
    return task.build().get_weights()


def mean_and_error(values):
    """Mean and standard error; NaN for the error of a single value."""
    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        return float(values.mean()), math.nan
    error = values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean()), float(error)
