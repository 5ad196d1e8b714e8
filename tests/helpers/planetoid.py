"""A small citation graph in the Planetoid format, and malicious pickles."""

import collections
import io
import os
import pickle
import struct

import numpy as np
import pytest

sparse = pytest.importorskip("scipy.sparse")


class Python2Pickler(pickle._Pickler):
    """Writes byte strings as Python 2 did."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_bytes(self, content):
        size = struct.pack("<i", len(content))
        self.write(pickle.BINSTRING + size + content)

    dispatch[bytes] = save_bytes


def python2_dumps(value):
    """Pickles a value with the byte strings and module names of Python 2."""
    file = io.BytesIO()
    Python2Pickler(file, 2).dump(value)
    content = file.getvalue()
    for new, old in (
        (b"cnumpy._core.", b"cnumpy.core."),
        (b"cscipy.sparse._csr\n", b"cscipy.sparse.csr\n"),
    ):
        content = content.replace(new, old)
    return content


NODES, KNOWN, TRAIN, FEATURES, CLASSES = 12, 7, 3, 5, 3
TEST_NODES = [9, 7, 11, 8, 10]


def truth():
    """Returns the features, classes and edges of a small graph."""
    rng = np.random.default_rng(0)
    x = rng.random((NODES, FEATURES)) * (rng.random((NODES, FEATURES)) < 0.6)
    y = np.arange(NODES) % CLASSES
    edges = {(i, (i + 3) % NODES) for i in range(NODES)} | {(0, 1), (2, 10)}
    return x.astype("float32"), y, edges


def parts(test_nodes=TEST_NODES):
    """Returns the contents of the files of the graph, by name suffix."""
    x, y, edges = truth()
    one_hot = np.eye(CLASSES, dtype="int32")[y]
    graph = collections.defaultdict(list)
    for i, j in sorted(edges):
        graph[i] += [j, j]  # a repeated edge
        graph[j].append(i)
    graph[4].append(4)
    return {
        "x": sparse.csr_matrix(x[:TRAIN]),
        "y": one_hot[:TRAIN],
        "allx": sparse.csr_matrix(x[:KNOWN]),
        "ally": one_hot[:KNOWN],
        "tx": sparse.csr_matrix(x[test_nodes]),
        "ty": one_hot[test_nodes],
        "graph": graph,
        "test.index": "".join(f"{node}\n" for node in test_nodes).encode(),
    }


def write(folder, contents=None, name="tiny", dumps=python2_dumps):
    folder.mkdir(parents=True, exist_ok=True)
    for part, content in (contents or parts()).items():
        if not isinstance(content, bytes):
            content = dumps(content)
        (folder / f"ind.{name}.{part}").write_bytes(content)


def adjacency(edges):
    a = np.zeros((NODES, NODES), "float32")
    for i, j in edges:
        a[i, j] = a[j, i] = 1.0
    return a


WRITERS = {
    "python2": python2_dumps,
    **{
        f"protocol{k}": lambda value, k=k: pickle.dumps(value, protocol=k)
        for k in (2, 4, 5)
    },
}


def call(module, name, argument):
    """Returns a pickle that calls a global with a string."""
    return f"c{module}\n{name}\n(V{argument}\ntR.".encode()


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)
