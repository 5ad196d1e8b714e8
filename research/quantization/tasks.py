"""The tasks of the experiment: float networks, calibration and test data.

The calibration data are training data without labels. On a graph they are the
features of the whole graph, which training sees as well. Test data are only
used for the final numbers.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import layers
from research import datasets
from research.engine.task import random
from research.experiments.tasks.mnist import images
from research.experiments.tasks.networks import sparse_tensor
from research.quantization import shapes
from research.quantization import text

BITS = (1, 2, 4, 3)  # in the order of the runs
SAMPLES = 512  # for calibration
MORE_SAMPLES = 1024  # if a sample is one row of a layer, or few
BATCH = 250  # samples that are tested at once
QUICK = 64  # samples of quick runs
IMAGES = 2_500  # of CIFAR-10, that are tested
# Windows of text for calibration and for tests. A window has 128 rows.
WINDOWS, TESTED_WINDOWS = 128, 512


class Arrays:
    """Samples with classes.

    Args:
        train: Tuple `(x, y)`.
        test: Tuple `(x, y)`.
        batch: Integer. Batch size of the training.
        epochs: Integer. Epochs of the training.
        rate: Float. Highest learning rate of Adam.

    Attributes:
        calibration: Array. Inputs for `kq.quantize`.
    """

    def __init__(self, train, test, batch=128, epochs=2, rate=0.001):
        self.train, self.test = train, test
        self.calibration = train[0][:MORE_SAMPLES]
        self._batch, self._epochs, self._rate = batch, epochs, rate

    def fit(self, model):
        """Trains a model."""
        steps = self._epochs * -(-len(self.train[0]) // self._batch)
        _compile(model, self._rate, steps)
        model.fit(
            *self.train,
            batch_size=self._batch,
            epochs=self._epochs,
            verbose=0,
        )

    def measure(self, model):
        """Returns the test accuracy."""
        x, y = self.test
        right = 0
        for begin in range(0, len(x), BATCH):
            part = slice(begin, begin + BATCH)
            logits = model(x[part], training=False)
            right += int((np.argmax(logits, axis=1) == y[part]).sum())
        return right / len(x)


class Graph:
    """A citation graph with the public split. All nodes are one batch."""

    STEPS = 100

    def __init__(self, name, data_dir):
        graph = datasets.citation(name, data_dir, download=True)
        x = np.asarray(graph.x.toarray(), "float32")
        a = sparse_tensor(layers.BinaryGraphConv.preprocess(graph.a))
        self.calibration = [x, a]
        self._y, self._test = graph.y.astype("int32"), graph.test_mask
        weights = (graph.train_mask / graph.train_mask.mean()).astype("float32")
        step = ((tf.constant(x), a), self._y, weights)
        self._steps = tf.data.Dataset.from_tensors(step).repeat()

    def fit(self, model):
        _compile(model, 0.01, self.STEPS)
        model.fit(self._steps, steps_per_epoch=self.STEPS, verbose=0)

    def measure(self, model):
        x, a = self.calibration
        found = np.argmax(model([tf.constant(x), a], training=False), axis=1)
        return float((found == self._y)[self._test].mean())


class Text:
    """Text, measured in bits per character.

    Args:
        train: Array of windows. See `text.windows`.
        test: Array of windows.
    """

    def __init__(self, train, test):
        self.calibration = self._inputs(train)
        self._test = test

    def _inputs(self, windows):
        positions = np.arange(shapes.CONTEXT, dtype="int32")
        tokens = windows[:, :-1]
        return [tokens, np.broadcast_to(positions, tokens.shape)]

    def measure(self, model):
        """Returns the bits per character of the test text."""
        losses = []
        for begin in range(0, len(self._test), BATCH):
            windows = self._test[begin : begin + BATCH]
            logits = model(self._inputs(windows), training=False)
            found = keras.losses.sparse_categorical_crossentropy(
                windows[:, 1:], logits, from_logits=True
            )
            losses.append(np.asarray(found).ravel())
        return float(np.concatenate(losses).mean() / np.log(2))


def _compile(model, rate, steps):
    decay = keras.optimizers.schedules.CosineDecay(rate, steps)
    model.compile(
        keras.optimizers.Adam(decay),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,  # takes longer than the training of small networks
    )


# Data


def mnist(data_dir, quick):
    """All images of MNIST."""
    (x, y), test = images(data_dir, random(0, 2))
    if quick:
        x, y, test = x[:QUICK], y[:QUICK], (test[0][:QUICK], test[1][:QUICK])
    return Arrays((x, y), test)


def digits(data_dir, quick):
    """The 8 x 8 digits of scikit-learn, 1,200 of them to train on.

    A token is a row of pixels and a one-hot code of its position.
    """
    del data_dir
    from sklearn.datasets import load_digits

    found = load_digits()
    order = random(0, 2).permutation(len(found.target))
    pixels = (found.images[order] / 8.0 - 1.0).astype("float32")
    position = np.broadcast_to(np.eye(8, dtype="float32"), pixels.shape)
    x = np.concatenate([pixels, position], axis=-1)
    y = found.target[order].astype("int32")
    epochs = 1 if quick else 40
    return Arrays((x[:1200], y[:1200]), (x[1200:], y[1200:]), 32, epochs, 0.002)


def cifar10(data_dir, quick):
    """CIFAR-10 from `cifar10.npz` in the data folder.

    The file has the arrays `x_train`, `y_train`, `x_test` and `y_test` of
    `keras.datasets.cifar10.load_data()`.
    """
    with np.load(datasets.find("cifar10.npz", data_dir)) as found:
        x, y = found["x_train"][:SAMPLES], found["y_train"][:SAMPLES]
        x_test = found["x_test"][:IMAGES]
        y_test = found["y_test"][:IMAGES].reshape(-1)
    if quick:
        x, x_test, y_test = x[:QUICK], x_test[:QUICK], y_test[:QUICK]
    return Arrays((_colors(x), y.reshape(-1)), (_colors(x_test), y_test))


def _colors(x):
    return x.astype("float32") / 127.5 - 1.0


def documentation(data_dir, quick):
    """The documentation of the standard library."""
    del data_dir
    train, _, test = text.load(shapes.TEXT)
    train = text.windows(train, shapes.CONTEXT)
    test = text.windows(test, shapes.CONTEXT)[:TESTED_WINDOWS]
    chosen = random(0, 2).permutation(len(train))[:WINDOWS]
    if quick:
        chosen, test = chosen[:QUICK], test[:QUICK]
    return Text(train[chosen], test)


# Networks


def mlp(units=(512, 512), inputs=784):
    """A network of dense layers with ReLU."""
    first = x = keras.Input((inputs,))
    for count in units:
        x = keras.layers.Dense(count, activation="relu")(x)
    return keras.Model(first, keras.layers.Dense(10)(x), name="mlp")


def encoder(width=32, heads=4):
    """A transformer encoder whose tokens are the rows of a digit."""
    inputs = keras.Input((8, 16))
    x = keras.layers.Dense(width)(inputs)
    attention = keras.layers.MultiHeadAttention(heads, width // heads)
    x = keras.layers.LayerNormalization()(x + attention(x, x))
    hidden = keras.layers.Dense(2 * width, activation="relu")(x)
    x = x + keras.layers.Dense(width)(hidden)
    x = keras.layers.LayerNormalization()(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x), name="encoder")


def gcn(features=1433, nodes=2708, classes=7, units=32):
    """Two graph convolutions, as in Kipf and Welling."""
    from spektral.layers import GCNConv

    inputs = keras.Input((features,))
    adjacency = keras.Input((nodes,), sparse=True)
    x = keras.layers.Dropout(0.5)(inputs)
    x = GCNConv(units, activation="relu")([x, adjacency])
    x = keras.layers.Dropout(0.5)(x)
    x = GCNConv(classes)([x, adjacency])
    return keras.Model([inputs, adjacency], x, name="gcn")


def cnn():
    """Six convolutions with batch normalization. See `train_on_gpu.py`."""
    inputs = x = keras.Input((32, 32, 3))
    for index, count in enumerate(shapes.CHANNELS):
        x = keras.layers.Conv2D(
            count, 3, padding="same", use_bias=False, name=f"conv_{index}"
        )(x)
        x = keras.layers.BatchNormalization(name=f"norm_{index}")(x)
        x = keras.layers.ReLU()(x)
        if index in shapes.POOLED:
            x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    outputs = keras.layers.Dense(10, name="logits")(x)
    return keras.Model(inputs, outputs, name="cnn")


def transformer():
    """A causal transformer. See `train_on_gpu.py`."""
    width, heads = shapes.WIDTH, shapes.HEADS
    inputs = [keras.Input((shapes.CONTEXT,), dtype="int32") for _ in range(2)]
    tokens = keras.layers.Embedding(text.NUM_TOKENS, width, name="tokens")
    places = keras.layers.Embedding(shapes.CONTEXT, width, name="positions")
    x = tokens(inputs[0]) + places(inputs[1])
    for block in range(shapes.BLOCKS):
        y = keras.layers.LayerNormalization(name=f"norm_{block}a")(x)
        x = x + keras.layers.MultiHeadAttention(
            heads, width // heads, name=f"attention_{block}"
        )(y, y, use_causal_mask=True)
        y = keras.layers.LayerNormalization(name=f"norm_{block}b")(x)
        y = keras.layers.Dense(4 * width, "relu", name=f"hidden_{block}")(y)
        x = x + keras.layers.Dense(width, name=f"output_{block}")(y)
    x = keras.layers.LayerNormalization(name="norm")(x)
    outputs = keras.layers.Dense(text.NUM_TOKENS, name="logits")(x)
    return keras.Model(inputs, outputs, name="transformer")


def stored(name, seed, model):
    """Gives a model the weights that `train_on_gpu.py` wrote.

    Raises:
        ValueError: If there are none for this seed.
    """
    with np.load(shapes.FOLDER / f"{name}.npz") as found:
        for layer in model.layers:
            keys = [
                f"{seed}/{layer.name}/{i}" for i in range(len(layer.weights))
            ]
            if any(key not in found for key in keys):
                raise ValueError(
                    f"{shapes.FOLDER / name}.npz has no weights of this seed. "
                    f"Received: seed={seed}"
                )
            layer.set_weights([found[key] for key in keys])


# Tasks


@dataclasses.dataclass(frozen=True)
class Task:
    """A network and its data.

    Attributes:
        title: String. Heading of the page.
        load: Function of a data folder and `quick` that returns the data.
        build: Function that returns a new model.
        is_stored: Boolean. Whether `train_on_gpu.py` trained the network.
        keras_int4: Boolean. Whether Keras can quantize most of its weights.
        has_norms: Boolean. Whether it has batch normalizations.
        is_graph: Boolean.
        higher_is_better: Boolean. Whether `measure` is an accuracy.
    """

    title: str
    load: Callable
    build: Callable
    is_stored: bool = False
    keras_int4: bool = False
    has_norms: bool = False
    is_graph: bool = False
    higher_is_better: bool = True


TASKS = {
    "mnist": Task("MNIST, 784-512-512-10", mnist, mlp, keras_int4=True),
    "digits": Task(
        "Digits, transformer encoder", digits, encoder, keras_int4=True
    ),
    "cora": Task(
        "Cora, graph network",
        lambda data_dir, quick: Graph("cora", data_dir),
        gcn,
        is_graph=True,
    ),
    "cifar10": Task(
        "CIFAR-10, six convolutions with batch normalization",
        cifar10,
        cnn,
        is_stored=True,
        has_norms=True,
    ),
    "transformer": Task(
        "Python's documentation, causal transformer",
        documentation,
        transformer,
        is_stored=True,
        keras_int4=True,
        higher_is_better=False,
    ),
}


@functools.lru_cache(maxsize=1)
def load(name, data_dir, quick):
    """Returns the data of a task."""
    return TASKS[name].load(data_dir, quick)


def float_network(name, seed, data):
    """Returns the float network of a seed, trained or read."""
    keras.utils.set_random_seed(seed)
    model = TASKS[name].build()
    if TASKS[name].is_stored:
        stored(name, seed, model)
    else:
        data.fit(model)
    return model
