"""`BinaryGraphConv` in place of `GCNConv`, in both versions of Keras."""

import inspect
import json
import os
import pathlib
import subprocess
import sys

import graph_training
import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq

spektral = pytest.importorskip("spektral")

BinaryGraphConv = kq.layers.BinaryGraphConv


@pytest.fixture(autouse=True)
def patched():
    with kq.spektral.enable_keras3():
        yield


class Graphs(spektral.data.Dataset):
    """Small graphs of different sizes, or with a shared adjacency matrix."""

    path = os.curdir

    def __init__(self, shared=False, node_labels=False, **arguments):
        self.shared = shared
        self.node_labels = node_labels
        super().__init__(**arguments)

    def read(self):
        rng = np.random.default_rng(0)
        graphs = []
        for number in range(6):
            nodes = 6 if self.shared else 4 + number % 3
            a = np.triu(rng.random((nodes, nodes)) < 0.5, 1).astype("float32")
            y = np.eye(2, dtype="float32")[number % 2]
            if self.node_labels:
                y = np.eye(2, dtype="float32")[rng.integers(2, size=nodes)]
            x = rng.normal(size=(nodes, 3)).astype("float32")
            graphs.append(spektral.data.Graph(x=x, a=a + a.T, y=y))
        if self.shared:
            self.a = graphs[0].a
            for graph in graphs:
                graph.a = None
        return graphs


def test_arguments_and_defaults_match_gcn_conv():
    ours = inspect.signature(BinaryGraphConv).parameters
    theirs = inspect.signature(spektral.layers.GCNConv).parameters
    common = [name for name in ours if name in theirs]
    assert common == list(theirs)
    for name in common:
        assert ours[name].default == theirs[name].default
    added = {"output_scale", "check_adjacency", "bits"}
    assert set(ours) - set(theirs) == added


@pytest.mark.parametrize("mode", ["single", "masked"])
def test_equals_gcn_conv_with_a_binary_kernel(mode):
    rng = np.random.default_rng(0)
    shape = (5,) if mode == "single" else (2, 5)
    x = tf.constant(rng.normal(size=(*shape, 3)), tf.float32)
    a = np.float32(rng.random((*shape, 5)) < 0.5)
    a = tf.constant(spektral.utils.gcn_filter(a))
    mask = tf.constant(rng.random((2, 5, 1)) < 0.7, tf.float32)
    arguments = {"mask": [mask, None]} if mode == "masked" else {}
    ours = BinaryGraphConv(4, "tanh", output_scale=None)
    theirs = spektral.layers.GCNConv(4, "tanh")
    ours.build([x.shape, a.shape])
    theirs.build([x.shape, a.shape])
    bias = rng.normal(size=(4,))
    ours.set_weights([ours.get_weights()[0], bias])
    theirs.set_weights([ours.binary_kernel, bias])
    assert [w.shape for w in ours.weights] == [w.shape for w in theirs.weights]
    np.testing.assert_allclose(
        ours([x, a], **arguments), theirs([x, a], **arguments), atol=1e-5
    )


def test_preprocess_matches_spektral():
    dataset = Graphs()
    for graph in dataset:
        np.testing.assert_allclose(
            BinaryGraphConv.preprocess(graph.a),
            spektral.utils.gcn_filter(graph.a),
            rtol=1e-5,
        )
    wanted = [spektral.utils.gcn_filter(graph.a) for graph in dataset]
    hook = spektral.transforms.LayerPreprocess(BinaryGraphConv)
    for a, graph in zip(wanted, Graphs(transforms=hook)):
        np.testing.assert_allclose(graph.a, a, rtol=1e-5)


class GraphClassifier(keras.Model):
    """Predicts one label per graph, as in the Spektral examples."""

    def __init__(self):
        super().__init__()
        self.conv = BinaryGraphConv(
            4, activation="tanh", kernel_initializer="zeros"
        )
        self.pool = spektral.layers.GlobalSumPool()
        self.dense = kq.layers.BinaryDense(2)

    def call(self, inputs, training=None):
        x, a, *i = inputs
        x = self.conv([x, a], training=training)
        return self.dense(self.pool([x, *i] if i else x), training=training)


@pytest.mark.parametrize("mode", ["disjoint", "mixed"])
def test_fit_with_loaders(mode):
    dataset = Graphs(shared=mode == "mixed")
    if mode == "mixed":
        dataset.a = BinaryGraphConv.preprocess(dataset.a)
        loader = spektral.data.MixedLoader(dataset, batch_size=3)
    else:
        dataset.apply(BinaryGraphConv.transform)
        loader = spektral.data.DisjointLoader(dataset, batch_size=3)
    model = GraphClassifier()
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    # Only the disjoint mode has sparse inputs, and tracing is slow.
    eager = mode != "disjoint"
    model.compile(tools.optimizer(backend="sign"), loss, run_eagerly=eager)
    history = model.fit(
        loader.load(), steps_per_epoch=loader.steps_per_epoch, verbose=0
    )
    assert np.isfinite(history.history["loss"]).all()
    # Entries start at zero. The first step moves by the learning rate, and the
    # second one by rho times as much.
    moved = model.conv.kernel.numpy() / 0.05
    (scalars, *_) = model.optimizer.update_rule.scalars.values()
    rho = tf.convert_to_tensor(scalars).numpy()[-1]
    assert loader.steps_per_epoch == 2 and moved.any()
    sizes = np.abs([0.0, 1.0, rho, 1.0 - rho, 1.0 + rho])
    distances = np.abs(np.abs(moved)[..., None] - sizes)
    assert distances.min(axis=-1).max() < 1e-4


def test_node_labels_in_batch_mode():
    """A mask of rank 3 reaches the loss in both versions of Keras."""
    dataset = Graphs(node_labels=True, transforms=BinaryGraphConv.transform)
    loader = spektral.data.BatchLoader(
        dataset, batch_size=3, mask=True, node_level=True
    )
    x, a = keras.Input((None, 4)), keras.Input((None, None))
    hidden = spektral.layers.GraphMasking()(x)
    model = keras.Model([x, a], BinaryGraphConv(2)([hidden, a]))
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    model.compile(tools.optimizer(backend="sign"), loss, run_eagerly=True)
    before = tools.kernels(model)[0]
    model.fit(loader.load(), steps_per_epoch=2, verbose=0)
    assert np.abs(before - tools.kernels(model)[0]).max() > 0.04


@pytest.mark.exhaustive  # starts another process
@pytest.mark.once
def test_same_results_in_both_versions_of_keras(tmp_path):
    path = tmp_path / "found.json"
    subprocess.run(
        [sys.executable, graph_training.__file__, str(path)],
        env={**os.environ, "TF_USE_LEGACY_KERAS": "1"},
        cwd=pathlib.Path(__file__).parent,
        check=True,
    )
    legacy = json.loads(path.read_text())
    assert "tf_keras" in legacy["keras"]
    kernels, gap = graph_training.kernels()
    assert gap > 1e-3 and legacy["gap"] > 1e-3, gap
    tools.assert_equal(
        kernels, [np.float32(kernel) for kernel in legacy["kernels"]]
    )
    # Spektral's own network. Few fixes are needed there.
    losses = graph_training.gcn_losses()
    assert len(losses) == 4 and losses[-1] < losses[0]
    np.testing.assert_allclose(losses, legacy["losses"], atol=5e-6)
    with kq.spektral.enable_keras3() as fixes:
        assert set(legacy["fixes"]) < set(fixes.applied)
