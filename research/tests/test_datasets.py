"""Data sets of the experiments."""

import hashlib
import pathlib
import pickle

import numpy as np
import pytest
from scipy import sparse

from research import datasets

DATA = pathlib.Path(__file__).parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(
    not DATA.exists(), reason="the real data are not on this machine"
)


@needs_data
def test_published_files():
    (x, y), (x_test, _) = datasets.adult(DATA)
    assert x.shape == (1605, 123) and x_test.shape == (30956, 123)
    assert y.mean() == pytest.approx(0.246, abs=0.001)
    (x, y), (x_test, _) = datasets.mnist(DATA)
    assert x.shape == (60000, 28, 28) and x_test.shape == (10000, 28, 28)
    assert list(y[:5]) == [5, 0, 4, 1, 9]
    graph = datasets.citation("cora", DATA)
    assert (graph.num_nodes, graph.num_features) == (2708, 1433)
    assert graph.num_classes == 7 and graph.a.nnz == 2 * 5278
    np.testing.assert_allclose(graph.x.sum(axis=1), 1.0, rtol=1e-5)


@pytest.fixture
def small_citation(tmp_path, monkeypatch):
    """Writes a graph of five nodes."""
    one_hot = np.eye(2, dtype="int32")
    x = sparse.csr_matrix(np.array([[1.0, 0, 1], [0, 2, 0], [3, 1, 0]]))
    parts = {
        "x": x[:1],
        "y": one_hot[[0]],
        "allx": x,
        "ally": one_hot[[0, 1, 1]],
        "tx": x[[2, 1]],
        "ty": one_hot[[1, 0]],
        "graph": {0: [1, 1, 0], 1: [0], 2: [4], 3: [], 4: [2]},
    }
    folder = tmp_path / "Citation" / "small"
    folder.mkdir(parents=True)
    for part in datasets.PARTS:
        content = pickle.dumps(parts[part]) if part in parts else b"4\n3\n"
        (folder / f"ind.small.{part}").write_bytes(content)
        checksum = hashlib.sha256(content).hexdigest()
        place = f"Citation/small/ind.small.{part}"
        monkeypatch.setitem(datasets.SOURCES, place, ("", checksum))
    return tmp_path


def test_citation_graph(small_citation):
    graph = datasets.citation("small", small_citation)
    assert list(graph.y) == [0, 1, 1, 0, 1]
    np.testing.assert_array_equal(
        graph.x.toarray(),
        [[0.5, 0, 0.5], [0, 1, 0], [0.75, 0.25, 0], [0, 1, 0], [0.75, 0.25, 0]],
    )
    assert sorted(zip(*graph.a.nonzero())) == [(0, 1), (1, 0), (2, 4), (4, 2)]
    assert list(np.flatnonzero(graph.train_mask)) == [0]
    assert list(np.flatnonzero(graph.val_mask)) == [1, 2]
    assert list(np.flatnonzero(graph.test_mask)) == [3, 4]


def test_changed_pickles_are_not_read(small_citation):
    path = small_citation / "Citation" / "small" / "ind.small.x"
    path.write_bytes(b"cos\nsystem\n(Vtrue\ntR.")
    with pytest.raises(datasets.DamagedFile, match="differs from the publ"):
        datasets.citation("small", small_citation)


def test_downloads(tmp_path, monkeypatch):
    content = b"-1 1:1\n"
    (tmp_path / "origin").write_bytes(content)
    source = (
        (tmp_path / "origin").as_uri(),
        hashlib.sha256(content).hexdigest(),
    )
    for place in ("adult/a1a", "adult/a1a.t"):
        monkeypatch.setitem(datasets.SOURCES, place, source)
    (x, y), _ = datasets.adult(tmp_path / "data", download=True)
    assert x[0, 0] == 1 and list(y) == [0]
    assert (tmp_path / "data" / "adult" / "a1a").read_bytes() == content
