"""Patched Spektral in both versions of Keras, with equal results."""

import inspect
import pickle
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd.spektral import enable
from keras_qpsbgd.spektral import enable_keras3
from keras_qpsbgd.spektral import fixes as fixes_module

pytest.importorskip("spektral")

import scipy.linalg
import scipy.sparse
import scipy.spatial
import spektral
from spektral import layers
from spektral import models
from spektral import transforms
from spektral.data import loaders
from spektral.datasets import citation
from spektral.layers.convolutional.conv import Conv
from spektral.layers.convolutional.message_passing import MessagePassing
from spektral.layers.pooling.src import SRCPool
from spektral.utils import convolution
from spektral.utils import misc
from spektral.utils.sparse import sp_matrix_to_sp_tensor

NODES, FEATURES, LABELS = 6, 3, 2
PAIRS = [(i, j) for i in range(3) for j in range(3) if i != j]
SCIPY = ("half", "chebyshev", "citation", "delaunay", "labels")

# Defined before anything is patched, as custom layers of a user may be.


class CustomConv(Conv):
    def call(self, inputs, mask=None):
        self.seen = mask
        return tf.matmul(inputs[1], inputs[0])


class CustomMessages(MessagePassing):
    def call(self, inputs, mask=None):
        self.seen = mask
        return super().call(inputs)


class Graphs(spektral.data.Dataset):
    """Rings of `sizes` nodes with random features and labels."""

    def __init__(self, sizes, node_labels=False, shared=False):
        self.sizes, self.node_labels, self.shared = sizes, node_labels, shared
        super().__init__()

    def read(self):
        rng = np.random.default_rng(0)
        if self.shared:
            self.a = ring(self.sizes[0])
        return [
            spektral.data.Graph(
                x=rng.normal(size=(n, FEATURES)).astype("float32"),
                a=None if self.shared else ring(n),
                y=np.eye(LABELS, dtype="float32")[
                    rng.integers(0, LABELS, n if self.node_labels else ())
                ],
            )
            for n in self.sizes
        ]


def ring(n):
    a = np.eye(n, k=1) + np.eye(n, k=1 - n)
    return scipy.sparse.csr_matrix((a + a.T + np.eye(n)).astype("float32") / 3)


def single_loader(**kwargs):
    return loaders.SingleLoader(Graphs([NODES], node_labels=True), **kwargs)


@pytest.fixture
def patched():
    with enable_keras3() as patches:
        yield patches


def attributes():
    """Returns all attributes of Spektral's modules and classes."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "spektral":
            continue
        for key, value in vars(module).items():
            found[name, key] = value
            if inspect.isclass(value) and value.__module__ == name:
                for attribute, stored in vars(value).items():
                    found[name, key, attribute] = stored
    return found


def changed(before, after):
    return {
        key
        for key in before.keys() | after.keys()
        if before.get(key, attributes) is not after.get(key, attributes)
        # Python itself creates new objects for these.
        and key[-1] not in ("__doc__", "__abstractmethods__", "_abc_impl")
    }


# Enabling and disabling.


def test_disable_restores_every_object():
    enable_keras3().disable()  # imports everything that is patched
    before = attributes()
    patches = enable_keras3()
    targets = set()
    for patch in enable.FIXES:
        for target in patch.targets():
            owner, attribute = fixes_module.find(target)
            module = getattr(owner, "__module__", None) or owner.__name__
            inner = [] if inspect.ismodule(owner) else [owner.__name__]
            targets.add((module, *inner, attribute))
    assert targets
    assert changed(before, attributes()) == targets
    patches.disable()
    assert not changed(before, attributes())


def test_handles_nest():
    before = attributes()
    first = enable_keras3()
    inside = attributes()
    with pytest.raises(KeyError):
        with enable_keras3() as second:
            assert first.applied == second.applied
            first.disable()
            first.disable()
            assert not changed(inside, attributes())
            raise KeyError
    assert not changed(before, attributes())


def test_applied_fixes(patched):
    """Under legacy Keras, only names of SciPy and NumPy are replaced."""
    names = set(patched.applied)
    assert names >= set(SCIPY)
    assert _keras.KERAS_3 == bool(names - set(SCIPY))
    lines = str(patched).splitlines()
    for name in names:
        assert any(line.startswith(f"{name}: ") for line in lines)
    assert "    spektral.utils.misc:np" in lines


@pytest.mark.once
def test_missing_target_raises(monkeypatch):
    monkeypatch.delattr(SRCPool, "pool")
    before = attributes()
    with pytest.raises(
        RuntimeError, match=r"SRCPool\.pool.*spektral==1\.3\.1.*Received: "
    ):
        enable_keras3()
    assert not changed(before, attributes())


def test_unknown_version_warns(monkeypatch):
    monkeypatch.setattr(spektral, "__version__", "2.0")
    with pytest.warns(UserWarning, match="Received: spektral 2.0"):
        enable_keras3().disable()


@pytest.mark.once
def test_spektral_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "spektral", None)
    with pytest.raises(ImportError, match="pip install.*Received: "):
        enable_keras3()


# Models and loaders.


def test_training_reaches_the_layers_of_gcn(patched):
    seen = []

    class Probe(keras.layers.Layer):
        def call(self, inputs, training=None):
            seen.append(training)
            return inputs

    model = models.GCN(LABELS, channels=4, dropout_rate=0.9)
    inputs, _ = next(iter(single_loader().load()))
    assert np.ptp([model(inputs) - model(inputs)]) == 0
    assert np.ptp([model(inputs) - model(inputs, training=True)]) > 0
    model = models.GCN(LABELS, channels=4)
    model._d1 = Probe()
    model.compile("sgd", "categorical_crossentropy")
    model.fit(single_loader().load(), steps_per_epoch=1, verbose=0)
    assert True in seen
    seen.clear()
    model.evaluate(single_loader().load(), steps=1, verbose=0)
    assert seen and True not in seen


class Pooled(keras.Model):
    """A convolution followed by the sum over the nodes, in any mode."""

    def __init__(self, masked=False):
        super().__init__()
        self.mask = layers.GraphMasking() if masked else None
        self.convolution = layers.GCNConv(4, bias_initializer="ones")
        self.total = layers.GlobalSumPool()
        self.dense = keras.layers.Dense(LABELS, "softmax")

    def call(self, inputs, training=None):
        x, a, *index = inputs
        if self.mask is not None:
            x = self.mask(x)
        x = self.convolution([x, a])
        return self.dense(self.total([x, *index] if index else x))


SIZES = [3, 5, 4, 6, 3]  # batches of two are padded to 5, 6 and 3


@pytest.mark.parametrize(
    "loader, arguments, masked",
    [
        (loaders.DisjointLoader, {}, False),
        (loaders.BatchLoader, {"mask": True}, True),
        (loaders.PackedBatchLoader, {"mask": True}, True),
        (loaders.MixedLoader, {}, False),
    ],
)
def test_loaders_fit(patched, loader, arguments, masked):
    mixed = loader is loaders.MixedLoader
    data = Graphs([4] * 5 if mixed else SIZES, shared=mixed)
    load = lambda: loader(data, batch_size=2, shuffle=False, **arguments).load()
    model = Pooled(masked)
    model.compile("sgd", "categorical_crossentropy")
    history = model.fit(load(), steps_per_epoch=3, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    found = model.predict(load(), steps=3, verbose=0)
    # Padding has no effect: each graph gives the same result on its own.
    for graph, prediction in zip(data, found):
        a = data.a if mixed else graph.a
        x = graph.x
        if masked:
            x = np.concatenate([x, np.ones((len(x), 1), "float32")], axis=1)
        single = model(
            [tf.constant(x[None]), tf.constant(a.toarray()[None])]
            if masked or mixed
            else [x, sp_matrix_to_sp_tensor(a), np.zeros(len(x), "int64")]
        )
        np.testing.assert_allclose(single[0], prediction, rtol=1e-4)


def test_sample_weights_and_sparse_tensors(patched):
    if _keras.KERAS_3:  # not supported by Spektral under legacy Keras
        data = Graphs([NODES], node_labels=True)
        data.apply(transforms.AdjToSpTensor())
        (_, found), _ = loaders.SingleLoader(data).collate(data)
        (_, expected), _ = next(iter(single_loader().load()))
        np.testing.assert_array_equal(found.values, expected.values)
        np.testing.assert_array_equal(found.indices, expected.indices)
    weights = np.zeros(NODES, "float32")
    loader = single_loader(sample_weights=weights)
    model = models.GCN(LABELS, channels=4, l2_reg=0.0)
    model.compile("sgd", "categorical_crossentropy")
    assert model.evaluate(loader.load(), steps=1, verbose=0) == 0.0


@pytest.mark.once
def test_loading_does_not_modify_the_loader(patched):
    class Scalars(Graphs):
        def read(self):
            graphs = super().read()
            for graph in graphs:
                graph.y = 1.0
            return graphs

    for kind in (loaders.BatchLoader, loaders.PackedBatchLoader):
        loader = kind(Scalars(SIZES), batch_size=2, epochs=1, mask=True)
        before = str(loader.signature)
        batches = list(loader.load())
        assert str(loader.signature) == before
        assert [tuple(y.shape) for _, y in batches] == [(2,), (2,), (1,)]
        assert {x.shape[-1] for (x, _), _ in batches} == {FEATURES + 1}
        assert isinstance(loader.load(), tf.data.Dataset)
    loader = loaders.MixedLoader(Graphs([4] * 3, shared=True), epochs=1)
    assert isinstance(loader.load(), types.GeneratorType)
    assert len(list(loader.load())) == 3


# Layers.


def test_masks_of_custom_layers(patched):
    class Later(CustomConv):
        pass

    x = tf.random.stateless_normal((2, NODES, FEATURES + 1), (1, 2))
    valid = tf.cast(tf.range(NODES) < 4, tf.float32)[None, :, None]
    x = tf.concat([x[..., :-1], tf.tile(valid, (2, 1, 1))], -1)
    a = tf.ones((2, NODES, NODES))
    for kind in (CustomConv, Later):
        layer = kind()
        assert inspect.signature(layer.call) == inspect.signature(
            types.MethodType(kind.call, layer)
        )
        assert layer.supports_masking
        layer([x, a])
        assert layer.seen is None
        layer([layers.GraphMasking()(x), a])
        np.testing.assert_array_equal(layer.seen[0][0], valid[0])
    if _keras.KERAS_3:  # under legacy Keras, features are used as the mask
        masked, _ = layers.GraphMasking()([x, a])
        layer([masked, a])
        np.testing.assert_array_equal(layer.seen[0][0], valid[0])
        pooled = layers.GlobalSumPool()(layers.GraphMasking()(x))
        assert getattr(pooled, "_keras_mask", None) is None
    layer = CustomMessages()
    y = layer([x[0], tf.sparse.from_dense(a[0])])
    assert layer.seen is None
    np.testing.assert_allclose(y, a[0] @ x[0], rtol=1e-5)


@pytest.mark.once
def test_layers_that_keras_3_cannot_build(patched):
    x = keras.Input((FEATURES,))
    a = keras.Input((None,), sparse=True)
    index = keras.Input((), dtype="int64")
    batch = keras.Input((NODES, FEATURES))
    sort, attention = layers.SortPool(2), layers.GlobalAttnSumPool()
    found = {
        "sorted": sort([x, index]),
        "attention": attention(x),
        "dmon": layers.DMoNPool(2)([x, a])[0],
        "cheeger": layers.AsymCheegerCutPool(2)([x, a])[0],
        "mincut": layers.MinCutPool(2)([x, a])[0],
        "topk": layers.TopKPool(0.5)([x, a])[0],
        "gated": layers.GatedGraphConv(4, n_layers=2)([batch, a]),
    }
    model = keras.Model([x, a, index, batch], found)
    graph = Graphs([NODES])[0]
    dense = graph.a.toarray()
    y = model(
        [
            tf.constant(graph.x),
            sp_matrix_to_sp_tensor(graph.a),
            tf.constant([0] * 4 + [1] * 2, "int64"),
            tf.constant(graph.x[None]),
        ]
    )
    shapes = {name: tuple(value.shape) for name, value in y.items()}
    pooled = (2, FEATURES)
    assert shapes == {
        "sorted": (2, 2, FEATURES),
        "attention": (1, FEATURES),
        "dmon": pooled,
        "cheeger": pooled,
        "mincut": pooled,
        "topk": (3, FEATURES),
        "gated": (1, NODES, 4),
    }
    last = graph.x[:4][np.argsort(-graph.x[:4, -1])[:2]]
    np.testing.assert_allclose(y["sorted"][0], last)
    scores = np.exp(graph.x @ np.array(attention.attn_kernel))
    np.testing.assert_allclose(
        y["attention"][0], (scores * graph.x).sum(0) / scores.sum(), rtol=1e-4
    )
    # The DMoN losses are the same with a dense adjacency matrix.
    dmon = next(p for p in model.layers if isinstance(p, layers.DMoNPool))
    dmon([tf.constant(graph.x), sp_matrix_to_sp_tensor(graph.a)])
    sparse_losses = [float(loss) for loss in dmon.losses[-2:]]
    dmon([tf.constant(graph.x), tf.constant(dense)])
    dense_losses = [float(loss) for loss in dmon.losses[-2:]]
    np.testing.assert_allclose(sparse_losses, dense_losses, rtol=1e-4)
    shape = layers.CensNetConv(4, 5).compute_output_shape(
        ((None, NODES, FEATURES), ((), (), ()), (None, 7, 2))
    )
    assert shape == ((None, NODES, 4), (None, 7, 5))
    assert SRCPool().n_nodes is None
    dropped = layers.SparseDropout(0.5)(tf.sparse.eye(3))
    np.testing.assert_array_equal(tf.sparse.to_dense(dropped), np.eye(3))


@pytest.mark.once
@pytest.mark.parametrize("epsilon", [None, 0.5])
def test_constants_outlive_the_build_of_a_model(patched, epsilon):
    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            self.convolution = layers.GINConvBatch(2, epsilon=epsilon)

        def call(self, inputs):
            return self.convolution(inputs)

    x, a = tf.ones((1, NODES, FEATURES)), tf.zeros((1, NODES, NODES))
    model = Network()
    found = model([x, a])
    dense = model.convolution.mlp
    np.testing.assert_allclose(found, dense((1 + (epsilon or 0)) * x))


@pytest.mark.once
def test_xla_is_disabled(patched):
    model = models.GCN(LABELS)
    with pytest.warns(UserWarning, match="doesn't support `jit_compile"):
        model.compile("sgd", "mse", jit_compile=True)
    assert not model.jit_compile


# SciPy.


def test_chebyshev_filter(patched):
    a = ring(NODES).toarray().astype("float64")
    found = layers.ChebConv.preprocess(a)
    laplacian = np.eye(NODES) - convolution.normalized_adjacency(a)
    largest = np.linalg.eigvalsh(laplacian).max()
    expected = 2 / largest * laplacian - np.eye(NODES)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_half_precision_labels_and_triangles(patched):
    half = np.array([[0, 0.5], [1.5, 0]], "float16")
    found = sp_matrix_to_sp_tensor(half)
    assert found.dtype == tf.float16
    np.testing.assert_array_equal(tf.sparse.to_dense(found), half)
    np.testing.assert_array_equal(
        misc.label_to_one_hot([7, 5], [5, 7]), [[0, 1], [1, 0]]
    )
    with pytest.raises(ValueError, match="contained in labels"):
        misc.label_to_one_hot([1], [2, 3])
    points = np.random.default_rng(0).random((10, 2))
    graph = transforms.Delaunay()(spektral.data.Graph(x=points))
    triangles = scipy.spatial.Delaunay(points).simplices
    edges = {tuple(t[[i, j]]) for t in triangles for i, j in PAIRS}
    assert set(zip(*graph.a.nonzero())) == edges


def test_citation_files(patched, tmp_path, monkeypatch):
    """Files in the Planetoid format, with a validation set of 500 nodes."""
    nodes, train, test = 520, 4, 10
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (nodes, FEATURES)).astype("float32")
    y = np.eye(LABELS)[rng.integers(0, LABELS, nodes)]
    order = rng.permutation(np.arange(nodes - test, nodes))
    content = {
        "x": scipy.sparse.csr_matrix(x[:train]),
        "y": y[:train],
        "tx": scipy.sparse.csr_matrix(x[order]),
        "ty": y[order],
        "allx": scipy.sparse.csr_matrix(x[:-test]),
        "ally": y[:-test],
        "graph": {n: [(n + 1) % nodes, n] for n in range(nodes)},
    }
    folder = tmp_path / "Citation" / "cora"
    folder.mkdir(parents=True)
    for suffix, value in content.items():
        (folder / f"ind.cora.{suffix}").write_bytes(pickle.dumps(value))
    np.savetxt(folder / "ind.cora.test.index", order, fmt="%d")
    monkeypatch.setattr(citation, "DATASET_FOLDER", str(tmp_path))
    data = citation.Cora()
    np.testing.assert_array_equal(data[0].x, x)
    np.testing.assert_array_equal(data[0].y, y)
    assert data[0].a.nnz == 2 * nodes
    assert data.mask_te.sum() == test
