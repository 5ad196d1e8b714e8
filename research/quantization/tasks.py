"""The tasks of the experiment and their networks.

The function of a network receives the layers to build with, `Float` or
`Binary(bits)`, so that the network trained from scratch has the structure of
the quantized one.
"""

import dataclasses
import functools
from collections.abc import Callable

from tensorflow import keras

from keras_qpsbgd import layers as binary_layers
from research.quantization import data

BITS = (1, 2, 3, 4)
QUANTIZED, SCRATCH = "quantized", "scratch"
ADAM, QPSBGD = "Adam", "QP-SBGD"


@dataclasses.dataclass(frozen=True)
class Grid:
    """Learning rates, of which validation data choose one.

    Attributes:
        rates: Tuple of floats. As many for every optimizer.
        real_rate: Float (optional). For the other variables, with QP-SBGD.
    """

    rates: tuple
    real_rate: float | None = None


def is_end_of_grid(task, start, optimizer, rate):
    """Returns whether a rate is the smallest or largest that was tried."""
    rates = TASKS[task].grids[start, optimizer].rates
    return rate in (min(rates), max(rates))


# By start and optimizer. An epoch has hundreds of steps, or tens.
MANY_STEPS = {
    (QUANTIZED, ADAM): Grid((0.00001, 0.00003, 0.0001, 0.0003, 0.001)),
    (QUANTIZED, QPSBGD): Grid(
        (0.00003, 0.000125, 0.0005, 0.002, 0.008), 0.0003
    ),
    (SCRATCH, ADAM): Grid((0.0001, 0.0003, 0.001, 0.003, 0.01)),
    (SCRATCH, QPSBGD): Grid((0.0008, 0.002, 0.005, 0.0125, 0.03), 0.001),
}
FEW_STEPS = {
    (QUANTIZED, ADAM): Grid((0.0001, 0.0003, 0.001, 0.003, 0.01)),
    (QUANTIZED, QPSBGD): Grid((0.0004, 0.002, 0.01, 0.05, 0.25), 0.001),
    (SCRATCH, ADAM): Grid((0.003, 0.01, 0.03, 0.1, 0.3)),
    (SCRATCH, QPSBGD): Grid((0.00125, 0.005, 0.02, 0.08, 0.32), 0.01),
}
# Epochs after which the accuracy is reported.
EPOCHS = {QUANTIZED: (1,), SCRATCH: (1, 3)}


# Networks


class Float:
    """Layers with float weights."""

    dense = keras.layers.Dense
    conv = keras.layers.Conv2D
    attention = keras.layers.MultiHeadAttention

    @staticmethod
    def graph_conv(units, **settings):
        from spektral.layers import GCNConv

        return GCNConv(units, **settings)


class Binary:
    """Layers with the scales of `kq.quantize`.

    Args:
        bits: Integer. Number of bits per weight.
    """

    def __init__(self, bits):
        settings = {"bits": bits, "output_scale": "channel"}
        self.dense = functools.partial(binary_layers.BinaryDense, **settings)
        self.conv = functools.partial(binary_layers.BinaryConv2D, **settings)
        self.attention = functools.partial(
            binary_layers.BinaryMultiHeadAttention, **settings
        )
        self.graph_conv = functools.partial(
            binary_layers.BinaryGraphConv, **settings
        )


def mlp(layers, data, units=(512, 512)):
    """A network of dense layers with ReLU."""
    inputs = keras.Input((data.num_features,))
    x = inputs
    for count in units:
        x = layers.dense(count, activation="relu")(x)
    return keras.Model(inputs, layers.dense(data.num_classes)(x), name="mlp")


def normalized_mlp(layers, data, units=(512, 512)):
    """`mlp` with batch normalization."""
    inputs = keras.Input((data.num_features,))
    x = inputs
    for count in units:
        x = layers.dense(count, use_bias=False)(x)
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.ReLU()(x)
    return keras.Model(inputs, layers.dense(data.num_classes)(x), name="mlp_bn")


def cnn(layers, data, filters=(32, 64), units=128):
    """Two convolutions per size, max pooling, and a dense layer."""
    inputs = keras.Input(data.shape)
    x = inputs
    for stage, count in enumerate(filters):
        # Strides in the first layer: training takes a quarter of the time.
        strides = 2 if stage == 0 else 1
        settings = {"activation": "relu", "padding": "same"}
        x = layers.conv(count, 3, strides=strides, **settings)(x)
        x = layers.conv(count, 3, **settings)(x)
        # The dense layer gets fewer inputs than there are calibration rows.
        last = stage == len(filters) - 1
        x = keras.layers.MaxPooling2D(4 if last else 2)(x)
    x = layers.dense(units, activation="relu")(keras.layers.Flatten()(x))
    return keras.Model(inputs, layers.dense(data.num_classes)(x), name="cnn")


def gcn(layers, data, units=32, dropout=0.5):
    """Two graph convolutions, as in Kipf and Welling."""
    inputs = keras.Input((data.num_features,))
    adjacency = keras.Input((data.num_nodes,), sparse=True)
    x = keras.layers.Dropout(dropout)(inputs)
    x = layers.graph_conv(units, activation="relu")([x, adjacency])
    x = keras.layers.Dropout(dropout)(x)
    x = layers.graph_conv(data.num_classes)([x, adjacency])
    return keras.Model([inputs, adjacency], x, name="gcn")


def transformer(layers, data, width=32, heads=4, blocks=1):
    """An encoder whose tokens are the rows of an image."""
    inputs = keras.Input(data.shape)
    x = layers.dense(width)(inputs)
    for _ in range(blocks):
        attention = layers.attention(heads, width // heads)
        x = keras.layers.LayerNormalization()(x + attention(x, x))
        hidden = layers.dense(2 * width, activation="relu")(x)
        x = x + layers.dense(width)(hidden)
        x = keras.layers.LayerNormalization()(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(
        inputs, layers.dense(data.num_classes)(x), name="transformer"
    )


# Tasks


@dataclasses.dataclass(frozen=True)
class Task:
    """A network and its data.

    Attributes:
        title: String. Heading of the page.
        load: Function of a data folder and `quick` that returns the data.
        build: Function of layers and data that returns a model.
        epochs: Integer. Epochs of the float network.
        rate: Float. Learning rate of Adam for the float network.
        grids: Dictionary of `Grid` by start and optimizer.
        bits: Tuple of integers. Bits of the quantized networks.
        tuned_bits: Tuple of integers. Bits with fine-tuning.
        starts: Tuple. `QUANTIZED`, and `SCRATCH` if the network is also
            trained from scratch.
        keras_gptq: Boolean. Whether `model.quantize("gptq")` of Keras is run.
        is_graph: Boolean.
    """

    title: str
    load: Callable
    build: Callable
    epochs: int
    rate: float
    grids: dict
    bits: tuple = BITS
    tuned_bits: tuple = (1,)
    starts: tuple = (QUANTIZED, SCRATCH)
    keras_gptq: bool = False
    is_graph: bool = False


def _citation(title, name, **settings):
    return Task(
        title=title,
        load=lambda data_dir, quick: data.Graph(name, data_dir),
        build=gcn,
        epochs=10,
        rate=0.01,
        grids=FEW_STEPS,
        is_graph=True,
        **settings,
    )


TASKS = {
    "mnist": Task(
        title="MNIST, 784-512-512-10",
        load=data.mnist,
        build=mlp,
        epochs=5,
        rate=0.001,
        grids=MANY_STEPS,
        starts=(QUANTIZED,),
        keras_gptq=True,
    ),
    "mnist-bn": Task(
        title="MNIST, 784-512-512-10 with batch normalization",
        load=data.mnist,
        build=normalized_mlp,
        epochs=5,
        rate=0.001,
        grids=MANY_STEPS,
        bits=(1,),
    ),
    "cifar10": Task(
        title="CIFAR-10, small convolutional network",
        load=data.cifar10,
        build=cnn,
        epochs=5,
        rate=0.001,
        grids=MANY_STEPS,
        starts=(QUANTIZED,),
    ),
    "cora": _citation("Cora, graph network", "cora"),
    "pubmed": _citation("PubMed, graph network", "pubmed"),
    "digits": Task(
        title="Digits, transformer encoder",
        load=data.digits,
        build=transformer,
        epochs=40,
        rate=0.002,
        grids=FEW_STEPS,
        tuned_bits=(1, 2),
    ),
}


@functools.lru_cache(maxsize=1)
def load(name, data_dir, quick):
    """Returns the data of a task."""
    return TASKS[name].load(data_dir, quick)
