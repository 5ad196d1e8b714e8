"""A training run that must give the same result in Keras 3 and legacy Keras.

`test_graph_models.py` calls it in one version and runs this file in the other.
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


def network(features, nodes, classes):
    x = keras.Input((features,))
    a = keras.Input((nodes,), sparse=True)
    hidden = keras.layers.Dense(6, activation="tanh")(x)
    hidden = kq.layers.BinaryGraphConv(3, "tanh", use_bias=False)([hidden, a])
    return keras.Model([x, a], kq.layers.BinaryGraphConv(classes)([hidden, a]))


def kernels():
    """Trains without randomness. Returns the kernels and the smallest gap."""
    x, a, y, training = blocks(CLEAR_CUT)
    keras.utils.set_random_seed(CLEAR_CUT)
    model = network(x.shape[1], len(y), 3)
    backend = tools.GapBackend()
    opt = kq.QPSBGD(0.02, backend, real_optimizer="sgd", seed=CLEAR_CUT)
    model.compile(opt, tools.loss())
    batch = (x, a), y, training.astype("float32")
    model.fit(
        tf.data.Dataset.from_tensors(batch).repeat(STEPS),
        steps_per_epoch=STEPS,
        shuffle=False,
        verbose=0,
    )
    return tools.kernels(model), backend.least


def gcn_losses():
    """Trains Spektral's own network without dropout. Returns the losses."""
    from spektral.models import GCN

    x, a, y, _ = blocks(CLEAR_CUT)
    keras.utils.set_random_seed(0)
    model = GCN(3, channels=4, dropout_rate=0.0)
    model.compile(keras.optimizers.Adam(0.01), "categorical_crossentropy")
    batch = (x, a), tf.one_hot(y, 3)
    history = model.fit(
        tf.data.Dataset.from_tensors(batch).repeat(4),
        steps_per_epoch=1,
        epochs=4,
        verbose=0,
    )
    return [float(loss) for loss in history.history["loss"]]


if __name__ == "__main__":
    arrays, gap = kernels()
    enable_keras3 = kq.spektral.enable_keras3
    assert "spektral" not in sys.modules  # not imported by our module
    with enable_keras3() as fixes:
        losses = gcn_losses()
    found = {
        "fixes": fixes.applied,
        "losses": losses,
        "keras": keras.__name__,
        "gap": gap,
        "kernels": [kernel.tolist() for kernel in arrays],
    }
    with open(sys.argv[1], "w") as file:
        json.dump(found, file)
