"""Datasets: small files in the same formats, and the real ones if present."""

import ast
import gzip
import io
import json
import pathlib
import pickle
import pickletools
import sys

import numpy as np
import planetoid
import pytest

from keras_qpsbgd import datasets
from keras_qpsbgd.datasets import mnist_digits
from keras_qpsbgd.datasets import safe_pickle

pytestmark = pytest.mark.once

sparse = pytest.importorskip("scipy.sparse")

ROOT = pathlib.Path(__file__).parents[2]


# --- small Planetoid files ---


@pytest.mark.parametrize("writer", planetoid.WRITERS)
def test_planetoid_files_of_all_writers(tmp_path, writer):
    planetoid.write(tmp_path, dumps=planetoid.WRITERS[writer])
    data = datasets.citation("tiny", tmp_path)
    x, y, edges = planetoid.truth()
    assert sparse.isspmatrix_csr(data.x) and sparse.isspmatrix_csr(data.a)
    assert data.x.dtype == data.a.dtype == "float32"
    np.testing.assert_array_equal(data.x.toarray(), x)
    np.testing.assert_array_equal(data.y, y)
    np.testing.assert_array_equal(data.a.toarray(), planetoid.adjacency(edges))
    assert list(np.flatnonzero(data.train_mask)) == [0, 1, 2]
    assert list(np.flatnonzero(data.val_mask)) == [3, 4, 5, 6]
    assert list(np.flatnonzero(data.test_mask)) == sorted(planetoid.TEST_NODES)
    assert repr(data) == (
        "GraphData('tiny', 12 nodes, 14 edges, 5 features, 3 classes, 3/4/5)"
    )


def test_python2_writer_uses_the_globals_of_the_real_files():
    named = set()
    for content in planetoid.parts().values():
        if isinstance(content, bytes):
            continue
        for opcode, argument, _ in pickletools.genops(
            planetoid.python2_dumps(content)
        ):
            assert opcode.name != "STACK_GLOBAL"
            if opcode.name == "GLOBAL":
                named.add(argument.replace(" ", "."))
    assert named == {
        "scipy.sparse.csr.csr_matrix",
        "numpy.core.multiarray._reconstruct",
        "numpy.ndarray",
        "numpy.dtype",
        "collections.defaultdict",
        "__builtin__.list",
    }


def test_arrays_in_any_axis_and_byte_order():
    for array in (
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([[True, False]]),
    ):
        for writer in planetoid.WRITERS.values():
            found = safe_pickle.load(writer(array), "path")
            np.testing.assert_array_equal(found, array)
            assert found.dtype == array.dtype.newbyteorder("=")
            assert found.flags.writeable


def test_missing_test_nodes(tmp_path):
    present = [9, 11, 7]
    planetoid.write(tmp_path, planetoid.parts(present))
    data = datasets.citation("tiny", tmp_path)
    x, y, edges = planetoid.truth()
    x[[8, 10]] = 0.0
    y[[8, 10]] = -1
    np.testing.assert_array_equal(data.x.toarray(), x)
    np.testing.assert_array_equal(data.y, y)
    np.testing.assert_array_equal(data.a.toarray(), planetoid.adjacency(edges))
    assert list(np.flatnonzero(data.test_mask)) == sorted(present)
    masks = data.train_mask | data.val_mask | data.test_mask
    assert not masks[[8, 10]].any()


def test_normalize_x(tmp_path):
    contents = planetoid.parts([9, 11, 7])
    planetoid.write(tmp_path, contents)
    x = datasets.citation("tiny", tmp_path).x.toarray()
    normal = datasets.citation("tiny", tmp_path, normalize_x=True).x
    assert normal.dtype == "float32"
    sums = x.sum(axis=1, keepdims=True)
    assert (sums == 0).any()
    expected = np.divide(x, sums, out=np.zeros_like(x), where=sums > 0)
    np.testing.assert_allclose(normal.toarray(), expected, rtol=1e-6)


@pytest.mark.parametrize("layout", ["Citation/tiny", "tiny", "."])
def test_layouts(tmp_path, layout, monkeypatch):
    planetoid.write(tmp_path / layout)
    assert datasets.citation("tiny", str(tmp_path)).num_nodes == planetoid.NODES
    monkeypatch.setenv("KERAS_QPSBGD_DATA", str(tmp_path))
    assert datasets.citation("tiny").num_nodes == planetoid.NODES
    with pytest.raises(datasets.MissingFile):
        datasets.citation("tiny", tmp_path / "elsewhere")


def test_invalid_names():
    for name in ("", "a/b", 3):
        with pytest.raises(ValueError, match="`name`.*Received: name="):
            datasets.citation(name)


# --- the other datasets ---


@pytest.mark.parametrize("packed", [False, True])
def test_adult(tmp_path, source, packed):
    lines = {"a1a": b"-1 3:1 11:1 \n+1 119:1 \n", "a1a.t": b"+1 1:1 123:1\n"}
    (tmp_path / "adult").mkdir()
    for name, content in lines.items():
        source(f"adult/{name}", content)
        path = tmp_path / "adult" / (name + packed * ".gz")
        path.write_bytes(gzip.compress(content) if packed else content)
    (x_train, y_train), (x_test, y_test) = datasets.adult(tmp_path)
    assert x_train.shape == (2, 123) and x_train.dtype == "float32"
    assert [list(np.flatnonzero(row)) for row in x_train] == [[2, 10], [118]]
    assert list(np.flatnonzero(x_test[0])) == [0, 122]
    assert x_train.max() == 1.0
    assert list(y_train) == [0, 1] and list(y_test) == [1]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(datasets.DamagedFile, match="a1a.t.*Received: "):
        datasets.adult(tmp_path)


def test_mnist(tmp_path, monkeypatch):
    arrays = {
        "x_train": np.arange(12, dtype="uint8").reshape(3, 2, 2),
        "y_train": np.arange(3, dtype="uint8"),
        "x_test": np.arange(8, dtype="uint8").reshape(2, 2, 2),
        "y_test": np.arange(2, dtype="uint8"),
    }
    checksum = mnist_digits.checksum(arrays.values())
    monkeypatch.setattr(mnist_digits, "SHA256", checksum)
    path = tmp_path / "mnist.npz"
    # Archives with different bytes, and members in a different order.
    for save in (np.savez, np.savez_compressed):
        save(path, **dict(reversed(arrays.items())))
        (x_train, y_train), (x_test, y_test) = datasets.mnist(tmp_path)
        found = dict(zip(mnist_digits.KEYS, (x_train, y_train, x_test, y_test)))
        for key, array in arrays.items():
            np.testing.assert_array_equal(found[key], array)
            assert found[key].dtype == "uint8"
    arrays["y_test"] = arrays["y_test"] + np.uint8(1)
    np.savez(path, **arrays)
    with pytest.raises(datasets.DamagedFile, match=f"sha256 {checksum}"):
        datasets.mnist(tmp_path)
    assert path.exists()


def test_invalid_mnist_archives(tmp_path):
    path, trace = tmp_path / "mnist.npz", tmp_path / "trace"
    np.savez(
        path,
        **dict.fromkeys(mnist_digits.KEYS, np.array([planetoid.Trap(trace)])),
    )
    good = io.BytesIO()
    np.savez(good, x_train=np.zeros(3))
    array = io.BytesIO()
    np.save(array, np.zeros(3))
    for content in (
        path.read_bytes(),
        good.getvalue(),
        good.getvalue()[:-20],
        array.getvalue(),
        pickle.dumps(planetoid.Trap(trace)),
        b"",
    ):
        path.write_bytes(content)
        with pytest.raises(datasets.DamagedFile, match="Received: "):
            datasets.mnist(tmp_path)
    assert not trace.exists()


def test_karate():
    data = datasets.karate()
    assert repr(data) == (
        "GraphData('karate', 34 nodes, 78 edges, 6 features, 4 classes, "
        "20/0/14)"
    )
    assert list(data.x[5]) == [-1, -1, -1, 1, -1, 1]
    assert list(data.x[33]) == [1, -1, -1, -1, -1, 1]
    assert len(np.unique(data.x, axis=0)) == 34
    assert data.x.dtype == data.a.dtype == "float32"
    assert (data.a != data.a.T).nnz == 0 and set(data.a.data) == {1.0}
    assert list(np.bincount(data.y)) == [12, 11, 6, 5]
    assert list(np.bincount(data.y[data.train_mask])) == [5] * 4
    assert not (data.train_mask & data.test_mask).any()
    assert (data.train_mask | data.test_mask).all()
    assert not data.val_mask.any()

    again, other = datasets.karate(), datasets.karate(seed=1)
    assert (again.train_mask == data.train_mask).all()
    assert (other.train_mask != data.train_mask).any()

    pyg = datasets.karate("pyg", train_per_class=4)
    assert list(np.bincount(pyg.y)) == [13, 12, 4, 5]
    assert list(np.flatnonzero(pyg.y != data.y)) == [9, 23, 27]
    club = datasets.karate("club", 2)
    assert club.num_classes == 2 and club.train_mask.sum() == 4
    with pytest.raises(ValueError, match="`train_per_class`.*4 for class 2"):
        datasets.karate("pyg")
    with pytest.raises(ValueError, match="Received: train_per_class=0"):
        datasets.karate(train_per_class=0)
    with pytest.raises(ValueError, match="`labels`.*'club'.*labels='clubs'"):
        datasets.karate("clubs")


def test_graph_data_is_frozen():
    with pytest.raises(AttributeError):
        datasets.karate().x = None


# --- Spektral ---


def test_to_spektral(tmp_path, monkeypatch):
    spektral_data = pytest.importorskip("spektral.data")
    monkeypatch.setattr(spektral_data.Dataset, "download", None)
    planetoid.write(tmp_path, planetoid.parts([9, 11, 7]))
    data = datasets.citation("tiny", tmp_path)
    seen = []

    def transform(graph):
        seen.append(graph)
        graph.a = graph.a * 2
        graph.x += 1.0
        return graph

    dataset = data.to_spektral(transforms=[transform])
    assert len(dataset) == dataset.n_graphs == len(seen) == 1
    assert (
        dataset.n_labels == planetoid.CLASSES
        and dataset.n_nodes == planetoid.NODES
    )
    graph = dataset[0]
    assert type(graph.x) is np.ndarray and graph.x.dtype == "float32"
    np.testing.assert_array_equal(graph.x, data.x.toarray() + 1)
    assert (graph.a != 2 * data.a).nnz == 0  # the original is unchanged
    assert graph.y.dtype == "float32"
    np.testing.assert_array_equal(graph.y.argmax(1)[:8], data.y[:8])
    assert not graph.y[[8, 10]].any() and graph.y.sum() == planetoid.NODES - 2

    loader = spektral_data.SingleLoader(dataset, sample_weights=dataset.mask_va)
    (x, a), y, weights = next(iter(loader.load()))
    np.testing.assert_array_equal(x, graph.x)
    np.testing.assert_array_equal(y, graph.y)
    np.testing.assert_array_equal(weights, data.val_mask)
    assert a.shape == (planetoid.NODES, planetoid.NODES)
    # Features that are already dense.
    karate = datasets.karate()
    dataset = karate.to_spektral()
    np.testing.assert_array_equal(dataset[0].x, karate.x)
    assert dataset.mask_tr.sum() == 20 and dataset.mask_te.sum() == 14


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_cora_equals_cora_of_spektral(real, monkeypatch):
    theirs = pytest.importorskip("spektral.datasets.citation")
    # Spektral needs an attribute that SciPy has removed.
    dense = property(lambda matrix: matrix.toarray())
    monkeypatch.setattr(sparse.csr_matrix, "A", dense, raising=False)
    monkeypatch.setattr(theirs, "DATASET_FOLDER", str(real))
    for normalize_x in (False, True):
        expected = theirs.Citation("cora", normalize_x=normalize_x)
        found = datasets.citation("Cora", real, normalize_x=normalize_x)
        found = found.to_spektral()
        # NumPy 1 sums the features of a node in a different order.
        np.testing.assert_allclose(found[0].x, expected[0].x, rtol=1e-6)
        np.testing.assert_array_equal(found[0].y, expected[0].y)
        assert (found[0].a != expected[0].a).nnz == 0
        for key in ("x", "a", "y"):
            assert found[0][key].dtype == expected[0][key].dtype
        for mask in ("mask_tr", "mask_va", "mask_te"):
            np.testing.assert_array_equal(
                getattr(found, mask), getattr(expected, mask)
            )


# --- the real files ---


def test_real_files(real, monkeypatch):
    monkeypatch.setenv("KERAS_QPSBGD_DATA", str(real))
    assert repr(datasets.citation("cora")) == (
        "GraphData('cora', 2708 nodes, 5278 edges, 1433 features, 7 classes, "
        "140/500/1000)"
    )
    pubmed = datasets.citation("PubMed")
    assert repr(pubmed) == (
        "GraphData('pubmed', 19717 nodes, 44324 edges, 500 features, "
        "3 classes, 60/500/1000)"
    )
    assert pubmed.x.nnz == 988_031
    assert list(np.bincount(pubmed.y)) == [4103, 7739, 7875]
    (x_train, y_train), (x_test, y_test) = datasets.adult()
    assert x_train.shape == (1605, 123) and y_train.sum() == 395
    assert x_test.shape == (30956, 123) and y_test.sum() == 7446
    (x_train, y_train), (x_test, y_test) = datasets.mnist()
    assert x_train.shape == (60000, 28, 28) and len(x_test) == 10000
    assert abs(x_train.mean() - 33.318) < 1e-3
    assert list(np.bincount(y_test)[:3]) == [980, 1135, 1032]


def test_karate_equals_the_stored_graph(real):
    stored = json.loads((real / "karate.json").read_text())
    for key, labels in (
        ("labels_max_modularity", "max_modularity"),
        ("labels_pyg", "pyg"),
        ("club", "club"),
    ):
        data = datasets.karate(labels, train_per_class=1)
        assert list(data.y) == stored[key]
    upper = sparse.triu(data.a).tocoo()
    pairs = sorted(zip(upper.row.tolist(), upper.col.tolist()))
    assert pairs == [tuple(edge) for edge in stored["edges"]]


# --- packages ---


def test_missing_packages(monkeypatch, tmp_path):
    data = datasets.karate()
    monkeypatch.setitem(sys.modules, "spektral.data", None)
    with pytest.raises(ImportError, match=r"keras_qpsbgd\[spektral\]"):
        data.to_spektral()
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ImportError, match=r"keras_qpsbgd\[datasets\]"):
        datasets.karate()
    with pytest.raises(ImportError, match=r"keras_qpsbgd\[datasets\]"):
        datasets.citation("cora", tmp_path)


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "keras_qpsbgd" / "datasets").glob("*.py")),
    ids=lambda path: path.name,
)
def test_module_level_imports(path):
    allowed = {"keras_qpsbgd", "numpy", *sys.stdlib_module_names}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            assert node.names[0].name.split(".")[0] in allowed
        if isinstance(node, ast.ImportFrom):
            assert node.module.split(".")[0] in allowed
            if node.module == "keras_qpsbgd":
                assert node.names[0].name in ("cache", "disk")
            elif node.module.startswith("keras_qpsbgd"):
                assert node.module.startswith("keras_qpsbgd.datasets")
