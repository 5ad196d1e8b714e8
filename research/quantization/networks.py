"""The networks, with float layers or with binary layers of some bits.

A function receives the layers to build with, `Float` or `Binary(bits)`, so that
the network trained from scratch has the structure of the quantized one.
"""

import functools

from tensorflow import keras

from keras_qpsbgd import layers as binary_layers


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
