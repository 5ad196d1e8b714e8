"""The data of the tasks: fixed splits, and the inputs for calibration.

The calibration inputs are training data. On a graph they are the features of
the whole graph, which training sees as well; no labels are used.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from keras_qpsbgd import layers
from keras_qpsbgd.comparison.task import random
from research import datasets
from research.experiments.tasks.mnist import images
from research.experiments.tasks.networks import sparse_tensor

# Steps of a graph network that count as an epoch. All nodes are one batch.
GRAPH_STEPS = 10
CIFAR10 = "cifar10.npz"
ROWS = 500  # that are classified at once


@dataclasses.dataclass
class Arrays:
    """Rows with classes.

    Attributes:
        train, validation, test: Tuples `(x, y)`.
        calibration: Array. Rows of `train`.
        batch: Integer. Batch size.
    """

    train: tuple
    validation: tuple
    test: tuple
    calibration: np.ndarray
    batch: int
    num_classes: int = 10

    @property
    def shape(self):
        return self.train[0].shape[1:]

    @property
    def num_features(self):
        return self.shape[-1]

    @property
    def steps(self):
        """Number of steps of an epoch."""
        return -(-len(self.train[0]) // self.batch)

    def fit_epoch(self, model):
        """Trains a compiled model for an epoch."""
        model.fit(*self.train, batch_size=self.batch, verbose=0)

    def accuracy(self, model, split):
        """Returns the accuracy on `"validation"` or `"test"`."""
        x, y = getattr(self, split)
        # Without `predict`, which would compile a function for every model.
        found = [
            np.argmax(model(x[begin : begin + ROWS], training=False), axis=1)
            for begin in range(0, len(x), ROWS)
        ]
        return float((np.concatenate(found) == y).mean())


class Graph:
    """A citation graph with the public split."""

    steps = GRAPH_STEPS

    def __init__(self, name, data_dir):
        graph = datasets.citation(name, data_dir, download=True)
        self.num_nodes = graph.num_nodes
        self.num_features = graph.num_features
        self.num_classes = graph.num_classes
        self._y = graph.y.astype("int32")
        x = np.asarray(graph.x.toarray(), "float32")
        a = sparse_tensor(layers.BinaryGraphConv.preprocess(graph.a))
        self.calibration = [x, a]
        self._masks = {"validation": graph.val_mask, "test": graph.test_mask}
        weights = (graph.train_mask / graph.train_mask.sum()).astype("float32")
        step = tf.data.Dataset.from_tensors(
            ((tf.constant(x), a), self._y, weights * graph.num_nodes)
        )
        self._steps = step.repeat()

    def fit_epoch(self, model):
        model.fit(self._steps, steps_per_epoch=self.steps, verbose=0)

    def accuracy(self, model, split):
        x, a = self.calibration
        logits = model([tf.constant(x), a], training=False)
        right = np.argmax(logits, axis=1) == self._y
        return float(right[self._masks[split]].mean())


def mnist(data_dir, quick):
    """50,000 images to train on, 10,000 to validate, 5,000 to calibrate."""
    (x, y), test = images(data_dir, random(0, 2))
    parts = 2_000 if quick else 50_000
    return Arrays(
        (x[:parts], y[:parts]),
        (x[50_000:], y[50_000:]),
        test,
        x[: 200 if quick else 5_000],
        batch=128,
    )


def cifar10(data_dir, quick):
    """20,000 images to train on, 5,000 to validate, 1,000 to calibrate.

    Reads `cifar10.npz` in the data folder: uint8 arrays `x_train` of shape
    (50000, 32, 32, 3), `y_train`, `x_test` of shape (10000, 32, 32, 3), and
    `y_test`, as `keras.datasets.cifar10.load_data()` returns them.
    """
    with np.load(datasets.find(CIFAR10, data_dir)) as found:
        x, y, x_test, y_test = (found[key] for key in CIFAR10_KEYS)
    order = random(0, 2).permutation(len(x))
    x, y = _colors(x[order[:25_000]]), y.reshape(-1)[order[:25_000]]
    parts = 1_000 if quick else 20_000
    return Arrays(
        (x[:parts], y[:parts].astype("int32")),
        (x[20_000:], y[20_000:].astype("int32")),
        (_colors(x_test), y_test.reshape(-1).astype("int32")),
        x[: 50 if quick else 1_000],
        batch=128,
    )


CIFAR10_KEYS = ("x_train", "y_train", "x_test", "y_test")


def _colors(x):
    return x.astype("float32") / 127.5 - 1.0


def digits(data_dir, quick):
    """The 8 x 8 digits of scikit-learn: 1,000 to train on, 300 to validate.

    A token is a row of pixels and a one-hot code of its position.
    """
    del data_dir, quick  # part of scikit-learn, and small
    from sklearn.datasets import load_digits

    found = load_digits()
    order = random(0, 2).permutation(len(found.target))
    pixels = (found.images[order] / 8.0 - 1.0).astype("float32")
    position = np.broadcast_to(np.eye(8, dtype="float32"), pixels.shape)
    x = np.concatenate([pixels, position], axis=-1)
    y = found.target[order].astype("int32")
    return Arrays(
        (x[:1000], y[:1000]),
        (x[1000:1300], y[1000:1300]),
        (x[1300:], y[1300:]),
        x[:1000],
        batch=32,
    )
