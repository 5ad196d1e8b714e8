"""Small training runs with Spektral, each a function that calls `fit`."""

import numpy as np
import pytest
import scipy.sparse
import spektral
from spektral import layers
from spektral import models
from spektral import transforms
from spektral.data import loaders
from tensorflow import keras

NODES, FEATURES, LABELS, EDGE_FEATURES = 8, 3, 2, 2


def graphs(count, node_labels=False, edges=False, sizes=(5, 8), shared=False):
    rng = np.random.default_rng(0)

    class Random(spektral.data.Dataset):
        def read(self):
            if shared:
                self.a = adjacency(NODES)
            return [graph() for _ in range(count)]

    def adjacency(n):
        a = np.triu(rng.random((n, n)) < 0.5, 1)
        a[np.arange(n - 1), np.arange(1, n)] = True  # connected
        return scipy.sparse.csr_matrix((a | a.T).astype("float32"))

    def graph():
        n = NODES if shared or count == 1 else rng.integers(*sizes)
        a = None if shared else adjacency(n)
        y = rng.integers(0, LABELS, n if node_labels else ())
        e = None
        if edges:
            e = rng.random((a.nnz, EDGE_FEATURES)).astype("float32")
        return spektral.data.Graph(
            x=rng.random((n, FEATURES)).astype("float32"),
            a=a,
            e=e,
            y=np.eye(LABELS, dtype="float32")[y],
        )

    return Random()


def train(model, loader, compile_with=None, **fit_with):
    model.compile(
        "adam",
        "categorical_crossentropy",
        **(compile_with or {"jit_compile": False}),
    )
    history = model.fit(
        loader.load(),
        steps_per_epoch=loader.steps_per_epoch,
        epochs=2,
        verbose=0,
        **fit_with,
    )
    assert np.isfinite(history.history["loss"]).all()
    return model


def subclassed(*convolutions):
    """Builds a model of convolutions on [x, a] followed by a dense layer."""

    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            self.convolutions = list(convolutions)
            self.dense = keras.layers.Dense(LABELS, "softmax")

        def call(self, inputs, training=None):
            x, *rest = inputs
            for layer in self.convolutions:
                x = layer([x, *rest])
            return self.dense(x)

    return Network()


def pooled(convolution, pool, masked=False, batch=True):
    """Builds a model: a convolution, a pooling layer, a sum over the nodes."""

    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            self.mask = layers.GraphMasking() if masked else None
            self.convolution = convolution
            self.pool = pool
            self.total = layers.GlobalSumPool()
            self.dense = keras.layers.Dense(LABELS, "softmax")

        def call(self, inputs, training=None):
            x, a, *index = inputs
            if self.mask is not None:
                x = self.mask(x)
            x = self.convolution([x, a])
            if self.pool is not None:
                x, a, *index = self.pool([x, a, *index])
            x = self.total(x if batch else [x, index[0]])
            return self.dense(x)

    return Network()


def functional(layer, sparse=False, batch=False, edges=False):
    shape = (None,) if batch else ()
    inputs = [
        keras.Input((*shape, FEATURES)),
        keras.Input((*shape, None), sparse=sparse),
    ]
    if edges:
        inputs.append(keras.Input((EDGE_FEATURES,)))
    x = layer(inputs)
    if batch:
        x = layers.GlobalAvgPool()(x)
    outputs = keras.layers.Dense(LABELS, "softmax")(x)
    return keras.Model(inputs, outputs)


def scenarios():
    def single(**kwargs):
        weights = kwargs.pop("sample_weights", None)
        data = graphs(1, node_labels=True, **kwargs)
        return loaders.SingleLoader(data, sample_weights=weights)

    def dense_single():
        data = graphs(1, node_labels=True)
        data[0].a = data[0].a.toarray()
        return loaders.SingleLoader(data)

    def disjoint(**kwargs):
        return loaders.DisjointLoader(graphs(6, **kwargs), batch_size=3)

    def batch(**kwargs):
        return loaders.BatchLoader(graphs(7), batch_size=2, **kwargs)

    def evaluate(model, loader):
        train(model, loader)
        steps = loader.steps_per_epoch
        model.evaluate(loader.load(), steps=steps, verbose=0)
        assert len(model.predict(loader.load(), steps=steps, verbose=0))

    def tensor_adjacency():
        data = graphs(1, node_labels=True)
        data.apply(transforms.AdjToSpTensor())
        return loaders.SingleLoader(data)

    def mixed(model, node_labels=True):
        data = graphs(4, node_labels, shared=True)
        train(model, loaders.MixedLoader(data, batch_size=2))

    gcn = lambda **kwargs: models.GCN(LABELS, channels=4, **kwargs)
    gnn = lambda **kwargs: models.GeneralGNN(
        LABELS, "softmax", hidden=4, message_passing=2, **kwargs
    )
    ones = np.ones(NODES, "float32")
    return {
        "single: GCN model": lambda: train(gcn(), single()),
        "single: GCN, dense a": lambda: train(gcn(), dense_single()),
        "single: sample weights": lambda: train(
            gcn(), single(sample_weights=ones)
        ),
        "single: boolean sample weights": lambda: train(
            gcn(), single(sample_weights=ones > 0)
        ),
        "single: AdjToSpTensor": lambda: train(gcn(), tensor_adjacency()),
        "single: functional GCNConv, sparse": lambda: train(
            functional(layers.GCNConv(4), sparse=True), single()
        ),
        "single: functional ECCConv, sparse": lambda: train(
            functional(layers.ECCConv(4), sparse=True, edges=True),
            single(edges=True),
        ),
        "single: GATConv": lambda: train(
            subclassed(layers.GATConv(4)), single()
        ),
        "single: ChebConv": lambda: train(
            subclassed(layers.ChebConv(4, K=2)), single()
        ),
        "single: ARMAConv, APPNPConv": lambda: train(
            subclassed(layers.ARMAConv(4), layers.APPNPConv(4)), single()
        ),
        "single: GCSConv, GTVConv": lambda: train(
            subclassed(layers.GCSConv(4), layers.GTVConv(4)), single()
        ),
        "single: GINConv, GraphSageConv": lambda: train(
            subclassed(layers.GINConv(4), layers.GraphSageConv(4)), single()
        ),
        "single: GatedGraphConv": lambda: train(
            subclassed(layers.GatedGraphConv(4, n_layers=2)), single()
        ),
        "single: evaluate and predict": lambda: evaluate(gcn(), single()),
        "single: steps_per_execution": lambda: train(
            gcn(), single(), {"steps_per_execution": 2, "jit_compile": False}
        ),
        "single: jit_compile=True": lambda: train(
            gcn(), single(), {"jit_compile": True}
        ),
        "disjoint: GeneralGNN model": lambda: train(gnn(), disjoint()),
        "disjoint: GCNConv, TopKPool": lambda: train(
            pooled(layers.GCNConv(4), layers.TopKPool(0.5), batch=False),
            disjoint(),
        ),
        "disjoint: GCNConv, SAGPool": lambda: train(
            pooled(layers.GCNConv(4), layers.SAGPool(0.5), batch=False),
            disjoint(),
        ),
        "disjoint: evaluate and predict": lambda: evaluate(gnn(), disjoint()),
        "batch: GCNConv": lambda: train(
            pooled(layers.GCNConv(4), None), batch()
        ),
        "batch: functional GCSConv": lambda: train(
            functional(layers.GCSConv(4), batch=True), batch()
        ),
        "batch: mask, GCNConv, MinCutPool": lambda: train(
            pooled(layers.GCNConv(4), layers.MinCutPool(3), masked=True),
            batch(mask=True),
        ),
        "batch: mask, GCSConv, DiffPool": lambda: train(
            pooled(layers.GCSConv(4), layers.DiffPool(3, 4), masked=True),
            batch(mask=True),
        ),
        "batch: evaluate and predict": lambda: evaluate(
            pooled(layers.GCNConv(4), None), batch()
        ),
        "packed: GCNConv": lambda: train(
            pooled(layers.GCNConv(4), None),
            loaders.PackedBatchLoader(graphs(5), batch_size=2),
        ),
        "packed: mask, GCNConv": lambda: train(
            pooled(layers.GCNConv(4), None, masked=True),
            loaders.PackedBatchLoader(graphs(5), batch_size=2, mask=True),
        ),
        "mixed: GCN model, node labels": lambda: mixed(gcn()),
        "mixed: GCNConv, graph labels": lambda: mixed(
            pooled(layers.GCNConv(4), None), node_labels=False
        ),
    }


@pytest.mark.parametrize("name", scenarios())
def test_scenario(name):
    keras.utils.set_random_seed(0)
    scenarios()[name]()
    keras.backend.clear_session()
