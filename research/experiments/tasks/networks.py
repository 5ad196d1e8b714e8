"""The networks of the experiments, with binary or real weights.

With `weights="binary"` every kernel that the paper trains is +1 or -1. With
`weights="latent"` it is real in training and +1 or -1 in evaluation, as
ProxQuant requires. With `weights="real"` the same network has ordinary kernels,
which shows what binary weights cost. Networks on graphs have batches of nodes
and sparse inputs.
"""

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd import layers
from keras_qpsbgd.layers import constraints
from research.engine.task import random
from research.engine.task import use_weights


def mlp(
    sizes, weights, output_scale="fan_in", batch_normalization=None, clip=None
):
    """Dense layers with hard tanh between them; outputs are logits.

    Args:
        sizes: Tuple. Widths from inputs to outputs, such as `(16, 4, 4, 2)`.
        weights: `"binary"`, `"latent"` or `"real"`.
        output_scale: `output_scale` of the binary layers. `None` is the paper's
            network. Defaults to `"fan_in"`.
        batch_normalization: Float (optional). Momentum of the batch
            normalization after every layer, including the last. `None` has no
            batch normalization.
        clip: Float (optional). Bound of the latent weights.
    """
    constraint = None
    if clip is not None and weights != "real":
        constraint = constraints.WeightClip(clip)
    parts = [keras.layers.InputLayer((sizes[0],))]
    for position, units in enumerate(sizes[1:], start=2):
        layer = layers.BinaryDense(
            units,
            use_bias=False,
            output_scale=output_scale,
            kernel_constraint=constraint,
        )
        parts.append(layer)
        if batch_normalization is not None:
            parts.append(
                keras.layers.BatchNormalization(momentum=batch_normalization)
            )
        if position < len(sizes):
            parts.append(keras.layers.Activation("hard_tanh"))
    return use_weights(keras.Sequential(parts), weights)


def graph_network(
    num_features,
    num_classes,
    weights,
    output_scale="fan_in",
    hidden=16,
    encoder=None,
    sparse_features=False,
):
    """Two graph convolutions, optionally after an encoder with real weights.

    Args:
        num_features: Integer. Features of a node.
        num_classes: Integer. Classes of the nodes.
        weights: `"binary"`, `"latent"` or `"real"`, for the graph convolutions.
        output_scale: `output_scale` of the binary layers. `None` is the paper's
            network. Defaults to `"fan_in"`.
        hidden: Integer. Features between the two convolutions. Defaults to
            `16`.
        encoder: Tuple (optional). Widths of the two dense layers of the encoder
            (tanh, with dropout of one half between them).
        sparse_features: Boolean. Whether the features are a `tf.SparseTensor`.
            Defaults to `False`.
    """
    x = keras.Input((num_features,), sparse=sparse_features)
    a = keras.Input((None,), sparse=True)
    features = x
    if encoder is not None:
        wide, narrow = encoder
        features = keras.layers.Dense(wide, "tanh", name="encoder")(features)
        with _keras.random_states_as_variables():
            features = keras.layers.Dropout(0.5)(features)
        features = keras.layers.Dense(narrow, "tanh")(features)
    settings = {"use_bias": False, "output_scale": output_scale}
    conv = layers.BinaryGraphConv(hidden, "hard_tanh", **settings)
    last = layers.BinaryGraphConv(num_classes, **settings)
    model = keras.Model([x, a], last([conv([features, a]), a]))
    return use_weights(model, weights)


def binary_graph_network(num_features, num_classes, weights, hidden, momentum):
    """Two graph convolutions with batch normalization, without an encoder.

    The features are already multiplied by the adjacency, so the first
    convolution is a `BinaryDense`. The second one needs the rows of the
    adjacency of the nodes to classify, and is a product with these rows before
    another `BinaryDense`.

    Args:
        num_features: Integer. Features of a node.
        num_classes: Integer. Classes of the nodes.
        weights: `"binary"`, `"latent"` or `"real"`.
        hidden: Integer. Features between the two convolutions.
        momentum: Float. Momentum of batch normalization.
    """
    x = keras.Input((num_features,))
    a = keras.Input((None,))
    settings = {"use_bias": False, "output_scale": "fan_in"}
    features = layers.BinaryDense(hidden, **settings)(x)
    features = keras.layers.BatchNormalization(momentum=momentum)(features)
    features = keras.layers.Activation("hard_tanh")(features)
    features = keras.layers.Lambda(lambda pair: tf.matmul(*pair))([a, features])
    outputs = layers.BinaryDense(num_classes, **settings)(features)
    outputs = keras.layers.BatchNormalization(momentum=momentum)(outputs)
    return use_weights(keras.Model([x, a], outputs), weights)


# Data of networks on graphs


def node_batches(seed, rows, batches, steps, evaluate_every, one_draw=False):
    """Returns batches of `1 / batches` of the training nodes.

    Args:
        seed: Integer.
        rows: The training nodes.
        batches: Integer. Number of batches of an epoch.
        steps: Integer. Number of updates.
        evaluate_every: Integer. Updates between two evaluations.
        one_draw: Boolean. If `True`, every step draws from all nodes. If
            `False`, an epoch uses every node at most once. Defaults to `False`.
    """
    generator = random(seed, 1)
    size = len(rows) // batches
    taken = 1 if one_draw else batches
    order = [
        generator.permutation(rows)[: taken * size]
        for _ in range(-(-steps // taken))
    ]
    order = np.reshape(order, (-1, size))[:steps]
    return order.reshape(-1, evaluate_every, size)


def sparse_tensor(matrix):
    """Converts a SciPy matrix to a `tf.SparseTensor`."""
    matrix = matrix.tocoo()
    indices = np.stack([matrix.row, matrix.col], axis=1)
    data = matrix.data.astype("float32")
    tensor = tf.SparseTensor(indices, data, matrix.shape)
    return tf.sparse.reorder(tensor)
