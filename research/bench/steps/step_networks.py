"""The networks that steps are measured on, and their data.

Weights are binary everywhere. Data are random numbers of the right kind: what
a step costs does not depend on whether something is learned.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd.constraints import WeightClip
from keras_qpsbgd.layers import BinaryConv2D
from keras_qpsbgd.layers import BinaryDense
from research.bench import timing
from research.experiments.tasks import networks

ADULT_DENSITY = 0.11  # of ones among the 123 inputs of the Adult data


@dataclasses.dataclass(frozen=True)
class Network:
    """A network and how it is trained.

    Attributes:
        build: function that returns the model.
        batch: rows in a batch.
        steps: steps in a block of measurement, with Adam.
        rate: learning rate of QP-SBGD.
        sparse: whether inputs are 0 and 1, most of them 0.
    """

    build: Callable
    batch: int
    steps: int
    rate: float = 0.002
    sparse: bool = False


class StraightThroughDense(keras.layers.Layer):
    """The least that a binary layer can be: the yardstick of `BinaryDense`."""

    def __init__(self, units, activation=None):
        super().__init__()
        self.units = units
        self.activation = keras.activations.get(activation)

    def build(self, input_shape):
        self.fan_in = input_shape[-1]
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.fan_in, self.units),
            initializer="glorot_uniform",
        )
        self.bias = self.add_weight(
            name="bias", shape=(self.units,), initializer="zeros"
        )

    def call(self, inputs):
        kernel = _straight_through(tf.convert_to_tensor(self.kernel))
        outputs = tf.matmul(inputs, kernel) / math.sqrt(self.fan_in)
        outputs += tf.convert_to_tensor(self.bias)
        return self.activation(outputs)


@tf.custom_gradient
def _straight_through(kernel):
    one = tf.ones_like(kernel)
    return tf.where(kernel >= 0, one, -one), lambda upstream: upstream


def small_mlp(dense=BinaryDense):
    """16-4-4-2."""
    return keras.Sequential(
        [
            keras.layers.InputLayer((16,)),
            dense(4, activation="hard_tanh"),
            dense(4, activation="hard_tanh"),
            dense(2),
        ]
    )


def deep_mlp(clip=None):
    """123-128x9-1: ten binary layers, no batch normalisation.

    Args:
        clip: bound of the latent weights, or `None`.
    """

    def dense(units, activation=None):
        constraint = clip and WeightClip(clip)
        return BinaryDense(units, activation, kernel_constraint=constraint)

    hidden = [dense(128, "hard_tanh") for _ in range(9)]
    return keras.Sequential(
        [keras.layers.InputLayer((123,)), *hidden, dense(1)]
    )


def normalized_mlp(*sizes):
    """Binary layers with batch normalisation, hard tanh between them."""
    return networks.mlp(sizes, "binary", batch_normalization=0.99)


def convolutional():
    """Two convolutions and a dense layer on images of 28x28 pixels."""
    return keras.Sequential(
        [
            keras.layers.InputLayer((28, 28, 1)),
            BinaryConv2D(16, 3, strides=2, activation="hard_tanh"),
            BinaryConv2D(32, 3, strides=2, activation="hard_tanh"),
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
    "784-512-512-10": Network(
        lambda: normalized_mlp(784, 512, 512, 10), batch=128, steps=30
    ),
    "28x28-conv": Network(convolutional, batch=64, steps=40),
}


class Training:
    """A compiled model and batches that are made beforehand.

    Args:
        network: a `Network`.
        optimizer: of the model.
        model: the model, if not the network's.
    """

    def __init__(self, network, optimizer, model=None):
        self.network = network
        self.model = model or network.build()
        self.model.compile(optimizer=optimizer, loss=self._loss())

    def side(self, steps, blocks):
        """A `timing.Side` of whole steps of `model.fit`."""
        data = self._data(steps)
        return timing.Side(
            lambda: self.model.fit(data, shuffle=False, verbose=0),
            steps,
            blocks,
        )

    def _loss(self):
        if self.model.output_shape[-1] == 1:
            return keras.losses.BinaryCrossentropy(from_logits=True)
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def _data(self, steps):
        random = np.random.default_rng(0)
        rows = self.network.batch * steps
        shape = (rows, *self.model.input_shape[1:])
        if self.network.sparse:
            x = random.random(shape) < ADULT_DENSITY
        else:
            x = random.uniform(-1, 1, shape)
        classes = max(2, self.model.output_shape[-1])
        y = random.integers(classes, size=(rows, 1))
        data = tf.data.Dataset.from_tensor_slices((x.astype("float32"), y))
        # Only the step is to be measured.
        return data.batch(self.network.batch, drop_remainder=True).cache()
