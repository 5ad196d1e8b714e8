"""QP-SBGD on citation graphs, against what else trains a binary network.

    python benchmarks/graphs.py cora
    python benchmarks/graphs.py pubmed

An encoder of real weights (features-32-10, tanh, dropout, Adam) feeds a graph
network of binary weights (10-16-classes, hard tanh). All methods train the
same network on the public split, in batches of a quarter of the training
nodes, and every one of them is tuned alike: six configurations, the encoder's
learning rate among them, judged by their validation accuracy over three seeds.
Then come fresh seeds. A run's accuracy is that on the test nodes after the
epoch with the best validation accuracy. Initial weights, batches and dropout
are the same for all methods of one seed, so the differences are paired.

Every run is a line in `graphs-NAME.jsonl`; a run that is there is not made
again, so a killed benchmark goes on where it was.
"""

import argparse
import concurrent.futures
import itertools
import json
import multiprocessing
import os
import pathlib
import statistics

import numpy as np

EPOCHS = 75
BATCHES = 4  # an epoch
TUNING_SEEDS = (1000, 1001, 1002)

REAL_RATES = (0.03, 0.1)
# What trains the binary layers, and its three learning rates.
METHODS = {
    "QP-SBGD": ("native", (0.005, 0.01, 0.02)),
    "QP-SBGD, ridge": ("ridge", (0.005, 0.01, 0.02)),
    "QP-SBGD, sign": ("sign", (0.0003, 0.001, 0.003)),
    "Adam": ("adam", (0.0003, 0.001, 0.003)),
    "SGD": ("sgd", (0.03, 0.1, 0.3)),
    "signSGD": ("signsgd", (0.0003, 0.001, 0.003)),
    "frozen": ("frozen", (None,)),
    "real weights": ("real", (0.001, 0.003, 0.01)),
}
FROZEN_REAL_RATES = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
BACKENDS = ("native", "ridge", "sign")

QPSBGD = "QP-SBGD"
BASELINES = ("Adam", "SGD", "signSGD", "frozen")


def configurations(method):
    """The six configurations of a method: (rate, encoder's rate)."""
    kind, rates = METHODS[method]
    real_rates = FROZEN_REAL_RATES if kind == "frozen" else REAL_RATES
    return list(itertools.product(rates, real_rates))


def load(name, data_dir):
    """Tensors of the graph, read once a process."""
    import tensorflow as tf

    import keras_qpsbgd as kq

    if name not in _loaded:
        graph = kq.datasets.citation(name, data_dir)
        _loaded[name] = {
            "x": _sparse_tensor(graph.x),
            "a": _sparse_tensor(kq.layers.BinaryGraphConv.preprocess(graph.a)),
            "y": tf.constant(graph.y, tf.int32),
            "classes": graph.num_classes,
            "train": np.flatnonzero(graph.train_mask),
            "validation": np.flatnonzero(graph.val_mask),
            "test": np.flatnonzero(graph.test_mask),
        }
    return _loaded[name]


_loaded = {}


def _sparse_tensor(matrix):
    import tensorflow as tf

    matrix = matrix.tocoo()
    indices = np.stack([matrix.row, matrix.col], axis=1)
    tensor = tf.SparseTensor(indices, matrix.data, matrix.shape)
    return tf.sparse.reorder(tensor)


def build_model(data, kind):
    from tensorflow import keras

    import keras_qpsbgd as kq

    class RealGraphConv(kq.layers.BinaryGraphConv):
        """The graph convolution with the real kernel: Kipf and Welling's."""

        def binary_product(self, inputs, training=None):
            return self.binary_call(inputs, self.kernel)

    conv = RealGraphConv if kind == "real" else kq.layers.BinaryGraphConv
    nodes, features = data["x"].shape
    x = keras.Input((features,), sparse=True)
    a = keras.Input((nodes,), sparse=True)
    hidden = keras.layers.Dense(32, activation="tanh")(x)
    hidden = keras.layers.Dropout(0.5)(hidden)
    hidden = keras.layers.Dense(10, activation="tanh")(hidden)
    hidden = conv(16, activation="hard_tanh", use_bias=False)([hidden, a])
    logits = conv(data["classes"], use_bias=False)([hidden, a])
    return keras.Model([x, a], logits)


def make_update(model, kind, rate, real_rate, seed):
    """Function of the gradients of all variables that applies them."""
    from tensorflow import keras

    import keras_qpsbgd as kq

    variables = model.trainable_variables
    encoder = keras.optimizers.Adam(real_rate)
    if kind in BACKENDS:
        optimizer = kq.QPSBGD(
            rate, backend=kind, real_optimizer=encoder, seed=seed
        )
        optimizer.build(variables)
        return lambda gradients: optimizer.apply(gradients, variables)

    binary = [v for layer in model.layers[-2:] for v in layer.weights]
    ids = {id(variable) for variable in binary}
    is_binary = [id(variable) in ids for variable in variables]
    optimizer = {
        "adam": keras.optimizers.Adam,
        "real": keras.optimizers.Adam,
        "sgd": keras.optimizers.SGD,
        "signsgd": keras.optimizers.SGD,
        "frozen": keras.optimizers.SGD,
    }[kind](rate or 0.0)
    encoder.build([v for v, flag in zip(variables, is_binary) if not flag])
    optimizer.build(binary)

    def update(gradients):
        import tensorflow as tf

        real = [g for g, flag in zip(gradients, is_binary) if not flag]
        encoder.apply(real)
        gradients = [g for g, flag in zip(gradients, is_binary) if flag]
        if kind == "signsgd":
            gradients = [tf.sign(gradient) for gradient in gradients]
        if kind != "frozen":
            optimizer.apply(gradients)

    return update


def run(name, data_dir, method, rate, real_rate, seed):
    """Trains one network; accuracies at the best validation epoch."""
    import tensorflow as tf
    from tensorflow import keras

    data = load(name, data_dir)
    kind = METHODS[method][0]
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    model = build_model(data, kind)
    update = make_update(model, kind, rate, real_rate, seed)
    inputs = [data["x"], data["a"]]

    @tf.function
    def step(nodes):
        with tf.GradientTape() as tape:
            logits = tf.gather(model(inputs, training=True), nodes)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    tf.gather(data["y"], nodes), logits
                )
            )
        update(tape.gradient(loss, model.trainable_variables))
        return loss

    @tf.function
    def accuracies():
        found = tf.argmax(model(inputs, training=False), axis=1, output_type=tf.int32)
        right = tf.cast(found == data["y"], tf.float32)
        return [
            tf.reduce_mean(tf.gather(right, data[part]))
            for part in ("validation", "test")
        ]

    rng = np.random.default_rng(seed)
    best, losses = (-1.0, 0.0, 0), []
    for epoch in range(EPOCHS):
        batches = np.array_split(rng.permutation(data["train"]), BATCHES)
        losses.append(np.mean([float(step(tf.constant(b))) for b in batches]))
        validation, test = (float(value) for value in accuracies())
        if validation > best[0]:
            best = (validation, test, epoch)
    return {
        "validation": best[0],
        "test": best[1],
        "epoch": best[2],
        "loss": float(losses[-1]),
    }
