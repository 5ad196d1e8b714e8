"""Small models with every binary layer, and inputs for them."""

import hashlib
import json
import struct

import numpy as np
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.export import container

SCALES = ("fan_in", "channel", None)


def dense(**arguments):
    return keras.Sequential(
        [
            keras.layers.InputLayer((7,)),
            kq.layers.BinaryDense(5, activation="hard_tanh", **arguments),
            keras.layers.BatchNormalization(),
            kq.layers.BinaryDense(3, use_bias=False, **arguments),
        ]
    )


def conv(data_format="channels_last", **arguments):
    shape = (6, 5, 2) if data_format == "channels_last" else (2, 6, 5)
    return keras.Sequential(
        [
            keras.layers.InputLayer(shape),
            kq.layers.BinaryConv2D(
                3,
                (3, 2),
                padding="same",
                activation="relu",
                data_format=data_format,
                **arguments,
            ),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )


def channels_first(**arguments):
    return conv("channels_first", **arguments)


def einsum(**arguments):
    return keras.Sequential(
        [
            keras.layers.InputLayer((4, 6)),
            kq.layers.BinaryEinsumDense(
                "abc,cde->abde", (None, 2, 3), bias_axes="de", **arguments
            ),
            kq.layers.BinaryEinsumDense(
                "abcd,cde->abe", (None, 5), activation="tanh", **arguments
            ),
        ]
    )


def attention(**arguments):
    inputs = keras.Input((4, 6))
    layer = kq.layers.BinaryMultiHeadAttention(2, 3, **arguments)
    outputs = keras.layers.LayerNormalization()(layer(inputs, inputs))
    return keras.Model(inputs, outputs)


def graph(sparse=False, **arguments):
    x = keras.Input((4,), batch_size=6)
    a = keras.Input((6,), batch_size=6, sparse=sparse)
    hidden = kq.layers.BinaryGraphConv(5, "relu", **arguments)([x, a])
    outputs = kq.layers.BinaryGraphConv(3, "softmax", **arguments)([hidden, a])
    return keras.Model([x, a], outputs)


def sparse_graph(**arguments):
    return graph(sparse=True, **arguments)


def graphs(**arguments):
    """Batch mode: several graphs."""
    x, a = keras.Input((6, 4)), keras.Input((6, 6))
    hidden = kq.layers.BinaryGraphConv(5, "tanh", **arguments)([x, a])
    outputs = keras.layers.GlobalAveragePooling1D()(hidden)
    return keras.Model([x, a], outputs)


def twice(**arguments):
    """A nested model that is called twice, and a layer that is called twice."""
    layer = kq.layers.BinaryDense(6, activation="tanh", **arguments)
    inner = keras.Input((6,))
    block = keras.Model(inner, layer(layer(inner)), name="block")
    inputs = keras.Input((6,))
    return keras.Model(inputs, block(block(inputs)))


def nested(**arguments):
    """A layer and a model that are each part of two models.

    Keras itself cannot load such a model from a `.keras` file.
    """
    shared = kq.layers.BinaryDense(6, activation="tanh", **arguments)
    one = keras.Sequential([keras.layers.InputLayer((6,)), shared], name="one")
    inner = keras.Input((6,))
    deep = keras.layers.Dense(6)(shared(inner))
    two = keras.Model(inner, one(deep), name="two")
    inputs = keras.Input((6,))
    added = keras.layers.Add()([one(inputs), two(one(inputs))])
    return keras.Model(inputs, kq.layers.BinaryDense(2, **arguments)(added))


MODELS = {
    each.__name__: each
    for each in (
        *(dense, conv, channels_first, einsum, attention),
        *(graph, sparse_graph, graphs, twice, nested),
    )
}
# Each model with one number of bits.
CASES = [(name, 1 + index % 4) for index, name in enumerate(MODELS)]


def randomize(model, seed=0):
    """Gives all weights random values, those of binary kernels all levels."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        shape = tuple(variable.shape)
        if "variance" in variable.name or "scale" in variable.name:
            variable.assign(rng.uniform(0.5, 2.0, shape))
        else:
            variable.assign(rng.uniform(-1.2, 1.2, shape))
    return model


def batch(model, size=6, seed=1):
    """Returns inputs of a model. Square ones are adjacency matrices."""
    rng = np.random.default_rng(seed)
    found = []
    for tensor in tf.nest.flatten(model.inputs):
        shape = [n or size for n in tensor.shape]
        array = rng.normal(size=shape).astype("float32")
        if len(model.inputs) > 1 and shape[-1] == shape[-2]:
            array = (array > 0.3).astype("float32") / 3
        sparse = getattr(tensor, "sparse", False) or isinstance(
            getattr(tensor, "type_spec", None), tf.SparseTensorSpec
        )
        found.append(tf.sparse.from_dense(array) if sparse else array)
    if len(found) == 1:
        return found[0]
    # Keras 3 does not accept arrays together with sparse tensors.
    return [
        each if isinstance(each, tf.SparseTensor) else tf.constant(each)
        for each in found
    ]


def predict(model, inputs):
    """Returns the outputs for one batch. Tracing would take longer."""
    return model(inputs, training=False).numpy()


def parts(content):
    """Returns the header and the data of a packed file."""
    end = 16 + struct.unpack_from("<I", content, 12)[0]
    return json.loads(content[16:end]), content[end:-32]


def joined(header, data, version=container.VERSION):
    """Returns a packed file with a correct checksum."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = container.START.pack(container.MAGIC, version, len(text))
    body += text + data
    return body + hashlib.sha256(body).digest()
