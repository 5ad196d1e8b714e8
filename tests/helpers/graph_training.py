"""Training runs that must give the same result in Keras 3 and legacy Keras.

`test_graph_models.py` calls these functions in one version and runs this file
in the other.
"""

import json
import sys

import numpy as np
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq

# With this seed no column of any step is nearly a tie. The test checks this.
CLEAR_CUT = 3
STEPS = 20
SEEDS = range(5)


def blocks(seed, nodes=60, classes=3, features=8):
    """Creates a graph with more edges within classes and weak features."""
    rng = np.random.default_rng(seed)
    y = np.arange(nodes) % classes
    likely = np.where(y[:, None] == y[None, :], 0.2, 0.05)
    a = np.triu(rng.random((nodes, nodes)) < likely, 1).astype("float32")
    a = kq.layers.BinaryGraphConv.preprocess(a + a.T)
    centers = rng.normal(size=(classes, features))
    x = centers[y] + rng.normal(size=(nodes, features))
    train = rng.permutation(nodes) < nodes // 3
    return tf.constant(x, tf.float32), tf.sparse.from_dense(a), y, train


def network(features, nodes, classes, dropout):
    x = keras.Input((features,))
    a = keras.Input((nodes,), sparse=True)
    hidden = keras.layers.Dense(6, activation="tanh")(x)
    hidden = keras.layers.Dropout(dropout)(hidden)
    hidden = kq.layers.BinaryGraphConv(3, "tanh", use_bias=False)([hidden, a])
    return keras.Model([x, a], kq.layers.BinaryGraphConv(classes)([hidden, a]))


def train(seed, steps, dropout, **arguments):
    x, a, y, training = blocks(seed)
    keras.utils.set_random_seed(seed)
    model = network(x.shape[1], len(y), 3, dropout)
    model.compile(kq.QPSBGD(seed=seed, **arguments), tools.loss())
    batch = (x, a), y, training.astype("float32")
    model.fit(
        tf.data.Dataset.from_tensors(batch).repeat(steps),
        steps_per_epoch=steps,
        shuffle=False,
        verbose=0,
    )
    found = np.argmax(model([x, a], training=False), axis=1)
    return model, np.mean((found == y)[~training])


def kernels():
    """Trains without randomness. Returns the kernels and the smallest gap."""
    backend = tools.GapBackend()
    model, _ = train(
        CLEAR_CUT,
        STEPS,
        dropout=0.0,
        learning_rate=0.02,
        backend=backend,
        real_optimizer="sgd",
    )
    return tools.kernels(model), backend.least


def accuracies():
    """Returns the test accuracy with Adam and dropout for each seed."""
    return [
        train(
            seed,
            60,
            dropout=0.3,
            learning_rate=keras.optimizers.schedules.CosineDecay(0.05, 60),
            real_optimizer=keras.optimizers.Adam(0.05),
        )[1]
        for seed in SEEDS
    ]


if __name__ == "__main__":
    what, path = sys.argv[1:]
    found = {"keras": keras.__name__}
    if what == "kernels":
        arrays, found["gap"] = kernels()
        found["kernels"] = [kernel.tolist() for kernel in arrays]
    else:
        found["accuracies"] = accuracies()
    with open(path, "w") as file:
        json.dump(found, file)
