"""Damaged and hostile files: correct data or a clear error, no code runs.

Every kind of file is mutated at random, pickles also opcode by opcode. Files
with a checksum give the correct data or a `DamagedFile` error that names the
file. Cache files always give the correct data. Citation graphs with other names
have no checksum: if no error is raised, the result must be a valid graph.
"""

import collections
import contextlib
import gzip
import hashlib
import itertools
import pickle
import pickletools
import random
import resource
import struct

import hostile
import numpy as np
import planetoid
import pytest

from keras_qpsbgd import datasets
from keras_qpsbgd import disk
from keras_qpsbgd.backends.dwave.chip import cliques
from keras_qpsbgd.datasets import files
from keras_qpsbgd.datasets import mnist_digits
from research.experiments.tasks import mnist_pairs

pytestmark = pytest.mark.once

sparse = pytest.importorskip("scipy.sparse")

COUNTS = [40, pytest.param(500, marks=pytest.mark.slow)]


@pytest.mark.parametrize(
    "content",
    [
        planetoid.call("os", "system", "true"),
        planetoid.call("builtins", "exec", "pass"),
        planetoid.call("builtins", "__import__", "this"),
        planetoid.call("subprocess", "Popen", "true"),
        b"cbuiltins\nopen\n(Vtrace\nVw\ntR.",
        b"cbuiltins\nlist\n.",
    ],
)
def test_guard_detects_executed_code(guard, content):
    with guard() as seen, contextlib.suppress(PermissionError):
        pickle.loads(content)
    assert seen


# --- mutations ---


def mutate(content, rng):
    """Changes a few random bytes."""
    content = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        start = rng.randrange(len(content) + 1)
        stop = min(len(content), start + rng.choice((1, 2, 8, 64, 1000)))
        piece = content[start:stop]
        kind = rng.randrange(8)
        if kind == 0 and piece:
            content[start] ^= 1 << rng.randrange(8)
        elif kind == 1 and piece:
            content[start] = rng.randrange(256)
        elif kind == 2:
            del content[start:]
        elif kind == 3:
            content[start:start] = rng.randbytes(rng.choice((1, 4, 100)))
        elif kind == 4:
            other = rng.randrange(len(content) + 1)
            content[other:other] = piece
        elif kind == 5:
            del content[start:stop]
        elif kind == 6:
            content[start:stop] = rng.choice((b"\0", b"\xff")) * len(piece)
        else:
            number = rng.choice((0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1))
            code = rng.choice("<I <Q >I >Q".split())
            number %= 2 ** (8 * struct.calcsize(code))
            content[start : start + 4] = struct.pack(code, number)
    return bytes(content)


def mutate_opcodes(content, rng):
    """Moves, repeats, removes and adds complete opcodes."""
    starts = [start for _, _, start in pickletools.genops(content)]
    ends = [*starts[1:], len(content)]
    pieces = [content[a:b] for a, b in zip(starts, ends)]
    for _ in range(rng.choice((1, 1, 2, 5))):
        one, other = (rng.randrange(len(pieces)) for _ in range(2))
        kind = rng.randrange(5)
        if kind == 0:
            pieces[one], pieces[other] = pieces[other], pieces[one]
        elif kind == 1:
            pieces.insert(one, pieces[other])
        elif kind == 2 and len(pieces) > 1:
            del pieces[one]
        elif kind == 3:
            pieces[one] = rng.choice(hostile.FRAGMENTS)
        else:
            pieces.insert(one, rng.choice(hostile.FRAGMENTS))
    return b"".join(pieces)


# --- kinds of files ---


def same(one, other):
    """Returns whether nested tuples of arrays are bitwise equal."""
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if sparse.issparse(one):
        return same(
            (one.indptr, one.indices, one.data, np.array(one.shape)),
            (other.indptr, other.indices, other.data, np.array(other.shape)),
        )
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.tobytes() == other.tobytes()
    )


def arrays_of(graph):
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    return graph.x, graph.a, graph.y, *masks


def assert_graph(x, a, y, *masks):
    """Asserts everything that `GraphData` guarantees."""
    assert x.dtype == a.dtype == "float32"
    assert x.shape[0] == a.shape[0] == a.shape[1] == len(y)
    for matrix in (x, a):
        matrix.check_format(full_check=True)
        assert np.isfinite(matrix.data).all()
    assert (a != a.T).nnz == 0 and set(a.data) <= {1.0}
    assert not a.diagonal().any()
    assert y.min() >= -1
    for one, other in itertools.combinations(masks, 2):
        assert not (one & other).any()


class Kind:
    """A file and how to read it.

    Args:
        path: The undamaged file.
        read: Function that reads it.
        pickled: Whether it is a pickle.
        check: Function that checks the result if it may differ from the
            original data.
        errors: Whether reading may raise errors.
    """

    def __init__(self, path, read, pickled=False, check=None, errors=True):
        self.path = path
        self.content = path.read_bytes()
        self.read = read
        self.pickled = pickled
        self.check = check
        self.errors = errors

    def mutated(self, rng):
        if self.pickled and rng.random() < 0.6:
            content = mutate_opcodes(self.content, rng)
            return mutate(content, rng) if rng.random() < 0.2 else content
        return mutate(self.content, rng)


@pytest.fixture
def publish(monkeypatch):
    def publish(place, content):
        checksum = hashlib.sha256(content).hexdigest()
        monkeypatch.setitem(files.SOURCES, place, ("https://a.test", checksum))

    return publish


def citation(part, writer="python2", known=False):
    def make(folder, publish, monkeypatch):
        planetoid.write(folder, dumps=planetoid.WRITERS[writer])
        path = folder / f"ind.tiny.{part}"
        if known:
            publish(f"Citation/tiny/{path.name}", path.read_bytes())
        return Kind(
            path,
            lambda: arrays_of(datasets.citation("tiny", folder)),
            pickled=part != "test.index",
            check=None if known else assert_graph,
        )

    return make


def adult(packed):
    def make(folder, publish, monkeypatch):
        (folder / "adult").mkdir()
        for name in ("a1a", "a1a.t"):
            content = b"-1 3:1 11:1 \n+1 119:1 \n" * 20
            publish(f"adult/{name}", content)
            path = folder / "adult" / (name + packed * ".gz")
            path.write_bytes(gzip.compress(content) if packed else content)
        return Kind(path, lambda: datasets.adult(folder))

    return make


def mnist(save):
    def make(folder, publish, monkeypatch):
        rng = np.random.default_rng(0)
        arrays = {
            "x_train": rng.integers(255, size=(9, 4, 4)).astype("uint8"),
            "y_train": np.arange(9, dtype="uint8"),
            "x_test": rng.integers(255, size=(3, 4, 4)).astype("uint8"),
            "y_test": np.arange(3, dtype="uint8"),
        }
        checksum = mnist_digits.checksum(arrays.values())
        monkeypatch.setattr(mnist_digits, "SHA256", checksum)
        save(folder / "mnist.npz", **arrays)
        return Kind(folder / "mnist.npz", lambda: datasets.mnist(folder))

    return make


def embeddings(name):
    def make(folder, publish, monkeypatch):
        lattices = pytest.importorskip("dwave.graphs")
        pytest.importorskip("minorminer")
        graph = lattices.pegasus_graph(3)
        first = cliques.Cliques(graph, folder)
        copies, largest = first.copies(12), first.largest()
        # The search itself is tested elsewhere.
        found = first._known["largest"][0][0]
        monkeypatch.setattr(cliques.search, "extend", lambda *_: (copies, True))
        monkeypatch.setattr(cliques.search, "largest_copy", lambda _: found)
        assert len(found) == largest
        known = cliques.Cliques(graph, folder)
        # Normally, damaged files are replaced.
        monkeypatch.setattr(known, "_store", lambda *_: None)

        def read():
            known._known.clear()
            if name == "largest":
                return np.array(known.largest())
            rows = [list(copy.values()) for copy in known.copies(12)]
            return np.array(repr(rows))

        return Kind(known._path(name), read, errors=False)

    return make


def half_planes(folder, publish, monkeypatch):
    monkeypatch.setenv("KERAS_QPSBGD_CACHE", str(folder))
    images = np.arange(400, dtype="uint8").reshape(4, 10, 10)
    monkeypatch.setattr(
        mnist_pairs.half_planes, "features", lambda x: x[:, 0] > 3
    )
    mnist_pairs.cached_features(images)
    (path,) = folder.iterdir()
    monkeypatch.setattr(disk, "write_with_checksum", lambda *_: None)
    return Kind(path, lambda: mnist_pairs.cached_features(images), errors=False)


KINDS = {
    "matrix of python 2": citation("allx"),
    "matrix of protocol 2": citation("x", "protocol2"),
    "matrix of protocol 5": citation("tx", "protocol5"),
    "classes of python 2": citation("ally"),
    "classes of protocol 5": citation("ty", "protocol5"),
    "graph of python 2": citation("graph"),
    "graph of protocol 5": citation("graph", "protocol5"),
    "test nodes": citation("test.index"),
    "published matrix": citation("allx", known=True),
    "published graph": citation("graph", known=True),
    "adult": adult(False),
    "adult, compressed": adult(True),
    "mnist": mnist(np.savez),
    "mnist, compressed": mnist(np.savez_compressed),
    "embeddings": embeddings(12),
    "largest embedding": embeddings("largest"),
    "half-planes": half_planes,
}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", KINDS)
def test_mutations(name, count, guard, publish, tmp_path, monkeypatch):
    kind = KINDS[name](tmp_path, publish, monkeypatch)
    expected = kind.read()  # also triggers the imports
    rng = random.Random(name)
    outcomes = collections.Counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(count):
        content = kind.mutated(rng)
        kind.path.write_bytes(content)
        try:
            with guard() as seen:
                found = kind.read()
        except datasets.DamagedFile as error:
            outcomes["error"] += 1
            message, _, received = str(error).partition("Received: ")
            # If two files do not match, either may be the wrong one.
            assert str(kind.path.parent) in message and received.strip()
            assert len(str(error)) < 2000
            assert kind.errors
        else:
            if same(found, expected):
                outcomes["right"] += 1
            else:
                outcomes["other"] += 1
                assert kind.check is not None
                kind.check(*found)
        assert not seen
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < hostile.MAX_MEMORY
    if kind.errors:
        assert outcomes["error"] > count // 10
    print(f"{name}: {dict(outcomes)}")
