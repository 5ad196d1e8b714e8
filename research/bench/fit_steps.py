"""Networks and data for measuring training steps, and the time of their steps.

All layers are binary. The data is random with a suitable distribution, because
the cost of a step does not depend on what the network learns. The time of whole
steps of `model.fit` is relative to Adam on the same layers.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import backends
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.layers import BinaryConv2D
from keras_qpsbgd.layers import BinaryDense
from keras_qpsbgd.optimizers import QPSBGD
from research.bench import timing
from research.experiments.tasks import networks

ADULT_DENSITY = 0.11  # share of ones among the 123 inputs of Adult
DEFAULT = backends.get("native").preset
SOLVERS = {
    # In training, the preset `once` is the same.
    DEFAULT: {"name": "native", "preset": DEFAULT},
    "ridge": "ridge",
    "sign": "sign",
}
MIN_BLOCKS, MAX_BLOCKS = 7, 15
MIN_STEPS = 3


@dataclasses.dataclass(frozen=True)
class Network:
    """A network and its training settings.

    Attributes:
        build: Function that returns the model.
        batch: Batch size.
        steps: Number of steps in a measured block with Adam.
        rate: Learning rate of QP-SBGD.
        sparse: Whether the inputs are 0 and 1, and mostly 0.
    """

    build: Callable
    batch: int
    steps: int
    rate: float = 0.002
    sparse: bool = False


def small_mlp():
    """Builds 16-4-4-2."""
    return keras.Sequential(
        [
            keras.layers.InputLayer((16,)),
            BinaryDense(4, activation="hard_tanh"),
            BinaryDense(4, activation="hard_tanh"),
            BinaryDense(2),
        ]
    )


def deep_mlp():
    """Builds 123-128x9-1: ten binary layers without batch normalization."""
    hidden = [BinaryDense(128, "hard_tanh") for _ in range(9)]
    return keras.Sequential(
        [keras.layers.InputLayer((123,)), *hidden, BinaryDense(1)]
    )


def normalized_mlp(*sizes):
    """Builds binary layers with batch normalization and hard tanh."""
    return networks.mlp(sizes, "binary", batch_normalization=0.99)


def convolutional():
    """Builds two convolutions and a dense layer for 28x28 images."""
    return keras.Sequential(
        [
            keras.layers.InputLayer((28, 28, 1)),
            BinaryConv2D(16, 3, strides=2, activation="hard_tanh"),
            BinaryConv2D(32, 3, strides=2, activation="hard_tanh"),
            keras.layers.Flatten(),
            BinaryDense(10),
        ]
    )


def normalized_convolutional():
    """Builds two convolutions with batch normalization, ReLU and pooling."""

    def block(filters):
        return [
            BinaryConv2D(filters, 3, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(),
        ]

    return keras.Sequential(
        [
            keras.layers.InputLayer((28, 28, 1)),
            *block(16),
            *block(32),
            keras.layers.Flatten(),
            BinaryDense(10),
        ]
    )


NETWORKS = {
    "16-4-4-2": Network(small_mlp, batch=64, steps=300, rate=0.02),
    "123-128x9-1": Network(deep_mlp, batch=16, steps=60, sparse=True),
    "784-256-10": Network(
        lambda: normalized_mlp(784, 256, 10), batch=64, steps=60
    ),
    "28x28-conv-bn": Network(normalized_convolutional, batch=64, steps=20),
}
# Networks for a GPU, see docs/guides/gpu.md. Their batches are larger.
GPU_NETWORKS = {
    "16-4-4-2": Network(small_mlp, batch=32, steps=200, rate=0.02),
    "123-128x9-1": Network(deep_mlp, batch=128, steps=200, sparse=True),
    "784-256-10": Network(
        lambda: normalized_mlp(784, 256, 10), batch=128, steps=200
    ),
    "784-1024-1024-10": Network(
        lambda: normalized_mlp(784, 1024, 1024, 10), batch=128, steps=200
    ),
    "28x28-conv": Network(convolutional, batch=64, steps=200),
}


class Training:
    """A compiled model with cached batches.

    Args:
        network: A `Network`.
        optimizer: Optimizer of the model.
    """

    def __init__(self, network, optimizer):
        self.network = network
        self.model = network.build()
        self.model.compile(optimizer=optimizer, loss=self._loss())

    def side(self, steps, blocks):
        """Returns a `timing.Side` of whole steps of `model.fit`."""
        # Cached, so that only the step is measured.
        data = tf.data.Dataset.from_tensor_slices(self.arrays(steps)).cache()

        def block():
            self.model.fit(data, shuffle=False, verbose=0)
            # A GPU may still be at work. Reading a weight waits for it.
            float(tf.reshape(self.model.trainable_variables[0], [-1])[0])

        return timing.Side(block, steps, blocks)

    def arrays(self, steps):
        """Returns random inputs and targets of shape `(steps, batch, ...)`."""
        random = np.random.default_rng(0)
        shape = (steps, self.network.batch, *self.model.input_shape[1:])
        if self.network.sparse:
            x = random.random(shape) < ADULT_DENSITY
        else:
            x = random.uniform(-1, 1, shape)
        classes = max(2, self.model.output_shape[-1])
        y = random.integers(classes, size=(*shape[:2], 1))
        return x.astype("float32"), y

    def _loss(self):
        if self.model.output_shape[-1] == 1:
            return keras.losses.BinaryCrossentropy(from_logits=True)
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


# The time of whole steps


def measure(name, network, quick):
    """Measures the steps of a network.

    Args:
        name: String. Name of the network, for the status line.
        network: A `Network`.
        quick: Boolean. Fewer steps.

    Returns:
        A dictionary, see `compare`.
    """
    sides = {}
    for solver, backend in SOLVERS.items():
        show_status(f"{name}, {solver}: compiling")
        training = Training(network, QPSBGD(network.rate, backend, seed=0))
        sides[solver] = _fitted(training, quick)
    adam = Training(network, "adam")
    return compare(name, adam.side(steps_of(network, quick), 0), sides)


def steps_of(network, quick):
    """Returns the number of steps in a block with Adam."""
    return network.steps // 10 if quick else network.steps


def _fitted(training, quick):
    """Returns a side whose blocks fit into the available time."""
    training.side(MIN_STEPS, 0).block()  # tracing and compilation
    _, seconds = timing.per_step(training.side(MIN_STEPS, 0))
    block, total = (0.3, 1.0) if quick else (0.5, 4.0)
    steps = int(block / seconds)
    steps = min(steps_of(training.network, quick), steps)
    steps = max(MIN_STEPS, steps)
    blocks = int(total / (steps * seconds))
    return training.side(steps, max(MIN_BLOCKS, min(MAX_BLOCKS, blocks)))


def compare(name, yardstick, sides):
    """Returns the times of the yardstick and of the sides as dictionaries."""
    base, found = timing.compare(
        yardstick, sides, show=lambda text: show_status(f"{name}, {text}")
    )
    return {
        "yardstick": dataclasses.asdict(base),
        "sides": {side: dataclasses.asdict(t) for side, t in found.items()},
    }
