"""How much of Spektral works, with and without `enable_keras3`.

    python benchmarks/spektral_support.py
    python benchmarks/spektral_support.py --suite DIR [--convert] [--toarray]

under the Keras of the environment (`TF_USE_LEGACY_KERAS=1` for legacy Keras).
The first command runs 29 small trainings, each with and without the patches.
The second runs Spektral's own tests, which are in its repository but not in
its package: DIR is a checkout. `tests/test_datasets.py` is left out, as it
downloads. Two things in those tests are not Spektral's fault, and can be
changed in a temporary copy of them: with `--convert` the models that get NumPy
arrays mixed with sparse tensors, which Keras 3 refuses, get tensors; with
`--toarray` the tests say `.toarray()` where they say `.A`, which SciPy has
removed.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import traceback

TENSORS = """
import numpy as np
import tensorflow as tf


def tensors(data):
    return [
        tf.convert_to_tensor(part) if isinstance(part, np.ndarray) else part
        for part in data
    ]
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", metavar="DIR", type=pathlib.Path)
    parser.add_argument("--convert", action="store_true")
    parser.add_argument("--toarray", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument(
        "--patched", action="store_true", help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.child:
        run_child(arguments)
        return
    with contextlib.ExitStack() as stack:
        folder = "."
        if arguments.suite:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            copy_suite(arguments, pathlib.Path(folder))
        kind = "suite" if arguments.suite else "scenarios"
        bare = child(kind, folder)
        patched = child(kind, folder, "--patched")
    show(kind, bare, patched)


def child(kind, folder, *options):
    """The results of one run, in a process of its own: name to outcome."""
    command = [sys.executable, os.path.abspath(__file__), "--child", kind]
    done = subprocess.run(
        [*command, *options], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    lines = [x for x in done.stdout.splitlines() if x.startswith("results: ")]
    if not lines:
        sys.exit(f"The {kind} did not end: exit status {done.returncode}.")
    return json.loads(lines[-1].removeprefix("results: "))


def show(kind, bare, patched):
    versions = patched.pop("versions")
    bare.pop("versions")
    names = sorted(bare | patched) if kind == "suite" else list(patched)
    width = max(map(len, names))
    failing = [n for n in names if not bare.get(n) == patched.get(n) == "pass"]
    print(versions)
    print(f"{'':{width}}  bare  patched")
    for name in failing if kind == "suite" else names:
        # A file that cannot be imported has no single tests.
        outcomes = [runs.get(name, "-") for runs in (bare, patched)]
        print(f"{name:{width}}  {outcomes[0]:4}  {outcomes[1]}")
    counts = [sum(x == "pass" for x in r.values()) for r in (bare, patched)]
    print(f"{f'passed of {len(names)}':{width}}  {counts[0]:<4}  {counts[1]}")


def run_child(arguments):
    import scipy
    import spektral
    import tensorflow as tf

    from keras_qpsbgd import _keras
    from keras_qpsbgd.spektral import enable_keras3

    if arguments.patched:
        enable_keras3()
    run = run_suite if arguments.child == "suite" else run_scenarios
    results = run()
    keras = "Keras 3" if _keras.KERAS_3 else "legacy Keras"
    results["versions"] = (
        f"{keras}, TensorFlow {tf.__version__}, SciPy {scipy.__version__}, "
        f"Spektral {spektral.__version__}"
    )
    print("\nresults: " + json.dumps(results))


# Spektral's own tests.


def copy_suite(arguments, folder):
    shutil.copytree(arguments.suite / "tests", folder / "tests")
    (folder / "tests" / "test_datasets.py").unlink(missing_ok=True)
    # Else a folder `tests` elsewhere on the path could be taken for it.
    (folder / "tests" / "__init__.py").touch()
    (folder / "tensors.py").write_text(TENSORS)
    for path in (folder / "tests").rglob("*.py"):
        text = path.read_text()
        if arguments.convert:
            text, count = re.subn(
                r"\bmodel\((input_data|\[x, a, e\])\)",
                r"model(tensors(\1))",
                text,
            )
            if count:
                text = "from tensors import tensors\n" + text
        if arguments.toarray:
            text = re.sub(r"(?<=[\w\]])\.A\b", ".toarray()", text)
        path.write_text(text)


def run_suite():
    import pytest

    class Outcomes:
        def __init__(self):
            self.found = {}

        def pytest_runtest_logreport(self, report):
            name = report.nodeid.removeprefix("tests/")
            if report.when == "call" or report.failed:
                outcome = "pass" if report.passed else "fail"
                self.found[name] = outcome

        def pytest_collectreport(self, report):
            if report.failed:
                name = report.nodeid.removeprefix("tests/")
                self.found[f"{name} (all: import fails)"] = "fail"

    outcomes = Outcomes()
    sys.path.insert(0, os.getcwd())
    pytest.main(
        [
            "tests",
            "-q",
            "-pno:cacheprovider",
            "-Wignore",
            "--tb=line",
            "--continue-on-collection-errors",
        ],
        plugins=[outcomes],
    )
    return outcomes.found


# The trainings. Each is a function that fits, on graphs of a few nodes.

NODES, FEATURES, LABELS, EDGE_FEATURES = 8, 3, 2, 2


def graphs(count, node_labels=False, edges=False, sizes=(5, 8), shared=False):
    import numpy as np
    import scipy.sparse
    import spektral

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
    import numpy as np

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


def subclassed(*layers):
    """Layers one after the other on [x, a], then a dense layer."""
    from tensorflow import keras

    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            self.convolutions = list(layers)
            self.dense = keras.layers.Dense(LABELS, "softmax")

        def call(self, inputs, training=None):
            x, *rest = inputs
            for layer in self.convolutions:
                x = layer([x, *rest])
            return self.dense(x)

    return Network()


def pooled(convolution, pool, masked=False, batch=True):
    """One convolution, a pooling layer and a sum over the nodes."""
    from spektral import layers
    from tensorflow import keras

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
    from spektral import layers
    from tensorflow import keras

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
    import numpy as np
    from spektral import layers
    from spektral import models
    from spektral import transforms
    from spektral.data import loaders

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


def run_scenarios():
    from tensorflow import keras

    results = {}
    for name, scenario in scenarios().items():
        keras.utils.set_random_seed(0)
        try:
            scenario()
            results[name] = "pass"
        except Exception:  # whatever it is, it belongs into the table
            if os.environ.get("SHOW_ERRORS"):
                traceback.print_exc()
            results[name] = "fail"
        keras.backend.clear_session()
    return results


if __name__ == "__main__":
    main()
