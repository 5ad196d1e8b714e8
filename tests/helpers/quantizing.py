"""Networks to quantize, and the numbers in them."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

L = keras.layers


def data(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def with_random_biases(model, seed=0):
    """Gives all zero weights random values, so that a lost bias shows."""
    rng = np.random.default_rng(seed)
    model.set_weights(
        [
            rng.normal(size=w.shape, scale=0.3) if not w.any() else w
            for w in model.get_weights()
        ]
    )
    return model


def mlp():
    model = keras.Sequential(
        [
            keras.Input((8,)),
            L.Dense(16, activation="relu", name="first"),
            L.BatchNormalization(name="norm"),
            L.Dense(12, activation="tanh", use_bias=False, name="second"),
            L.Dropout(0.5),
            L.Dense(4, name="head"),
        ],
        name="mlp",
    )
    return with_random_biases(model)


def nested():
    """A model called twice that contains a model, and a shared layer."""
    inner = keras.Sequential(
        [keras.Input((8,)), L.Dense(8, name="dense"), L.ReLU()], name="inner"
    )
    x = keras.Input((8,))
    middle = keras.Model(
        x, L.Add()([inner(L.Dense(8, name="dense")(x)), x]), name="middle"
    )
    x = keras.Input((8,))
    shared = L.Dense(8, activation="tanh", name="shared")
    y = shared(middle(shared(middle(x))))
    head = L.Dense(3, name="head")
    model = keras.Model(x, [y, head(y)], name="nested")
    return with_random_biases(model)


def two_inputs():
    a, b = keras.Input((8,), name="a"), keras.Input((5,), name="b")
    y = L.Concatenate()([L.Dense(4, name="left")(a), b])
    model = keras.Model([a, b], L.Dense(3, name="head")(y), name="two_inputs")
    return with_random_biases(model)


def attention():
    x = keras.Input((5, 8))
    y = L.MultiHeadAttention(2, 4, name="attention")(x, x)
    y = L.LayerNormalization(name="norm")(L.Add()([x, y]))
    y = L.EinsumDense(
        "abc,cd->abd", (5, 6), bias_axes="d", activation="relu", name="mix"
    )(y)
    y = L.Dense(3, name="head")(L.Flatten()(y))
    return with_random_biases(keras.Model(x, y, name="attention_net"))


def kernel_of(layer):
    """Returns the quantized kernel from the levels and scales of a layer."""
    levels = np.asarray(layer.binary_kernel, dtype=np.float64)
    return levels * layer.scale.numpy() / (2**layer.bits - 1)


def bias_of(layer):
    return layer.bias.numpy().astype(np.float64) if layer.use_bias else 0.0


def outputs(model, x):
    """Returns the outputs of a model in inference as NumPy arrays."""
    x = tf.nest.map_structure(tf.convert_to_tensor, x)
    return [y.numpy() for y in tf.nest.flatten(model(x, training=False))]
