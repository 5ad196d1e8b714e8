"""Pickles that contain more than data, and files that do not match."""

import collections
import pickle

import numpy as np
import planetoid
import pytest

from keras_qpsbgd import datasets
from keras_qpsbgd.datasets import safe_pickle

pytestmark = pytest.mark.once

sparse = pytest.importorskip("scipy.sparse")


def dotted(module, name):
    """Returns a pickle of a global in protocol 4."""
    texts = b"".join(
        pickle.SHORT_BINUNICODE + bytes([len(text)]) + text.encode()
        for text in (module, name)
    )
    return pickle.PROTO + b"\4" + texts + pickle.STACK_GLOBAL + b"."


@pytest.mark.parametrize(
    "module, name",
    [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("__builtin__", "eval"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy._core.multiarray", "fromfile"),
        ("scipy.sparse.csr", "load_npz"),
        ("copyreg", "_reconstructor"),
    ],
)
def test_other_globals_are_rejected(tmp_path, module, name):
    trace = tmp_path / "trace"
    argument = f"touch {trace}"
    if name == "eval":
        argument = f"open({str(trace)!r}, 'w')"
    for part in ("x", "y", "graph"):
        contents = planetoid.parts()
        contents[part] = planetoid.call(module, name, argument)
        planetoid.write(tmp_path, contents)
        with pytest.raises(datasets.DamagedFile) as error:
            datasets.citation("tiny", tmp_path)
        assert str(error.value).endswith(f"Received: {module}.{name}")
        assert str(tmp_path / f"ind.tiny.{part}") in str(error.value)
        assert not trace.exists()


def test_rejected_pickle_would_execute_code(tmp_path):
    trace = tmp_path / "trace"
    pickle.loads(planetoid.call("os", "system", f"touch {trace}"))
    assert trace.exists()


@pytest.mark.parametrize("name", ["ndarray.__class__", "dtype.__reduce__"])
def test_attributes_of_globals_are_rejected(name):
    with pytest.raises(datasets.DamagedFile, match=f"Received: numpy.{name}"):
        safe_pickle.load(dotted("numpy", name), "path")


@pytest.mark.parametrize(
    "target",
    [name.rpartition(".")[::2] for name in safe_pickle.GLOBALS],
    ids=".".join,
)
def test_classes_cannot_be_changed(target):
    """With the real classes, this would modify SciPy in the whole process."""
    state = b"N(V_changed\nI1\nd\x86"  # (None, {"_changed": 1})
    content = b"\x80\x02c%s\n%s\n" % tuple(t.encode() for t in target)
    with pytest.raises(datasets.DamagedFile):
        safe_pickle.load(content + state + b"b.", "path")
    for known in (sparse.csr_matrix, *safe_pickle.GLOBALS.values()):
        assert not hasattr(known, "_changed")


def broken_matrix(**changes):
    """Returns a matrix with inconsistent arrays."""
    shape = planetoid.TRAIN, planetoid.FEATURES
    matrix = sparse.csr_matrix(np.eye(*shape, dtype="float32"))
    for key, value in changes.items():
        setattr(matrix, key, value)
    return matrix


ARRAY = np.int32
HOSTILE = {
    "column outside": broken_matrix(indices=ARRAY([0, 1, 10**6])),
    "negative column": broken_matrix(indices=ARRAY([0, 1, -1])),
    "row ends before it starts": broken_matrix(indptr=ARRAY([0, 9, 1, 3])),
    "row outside": broken_matrix(indptr=ARRAY([0, 1, 2, 10**6])),
    # SciPy skips the other checks if the matrix seems to be empty.
    "row outside, empty": broken_matrix(indptr=ARRAY([0, 10**6, 0, 0])),
    "negative end": broken_matrix(indptr=ARRAY([0, 1, 2, -5])),
    "too many values": broken_matrix(indptr=ARRAY([0, 1, 2, 2])),
    "too few rows": broken_matrix(indptr=ARRAY([0, 3])),
    "no values": broken_matrix(data=np.zeros(1, "float32")),
    "shape": broken_matrix(_shape=(10**6, 2)),
    "shape is a string": broken_matrix(_shape="ab"),
    "indices are floats": broken_matrix(indices=np.zeros(3)),
    "data are objects": broken_matrix(data=np.array([{}, {}, {}])),
    "data are a list": broken_matrix(data=[1.0, 1.0, 1.0]),
    "no data": broken_matrix(data=None),
    "custom check": broken_matrix(
        indices=ARRAY([0, 1, 10**6]), check_format=collections.defaultdict
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_inconsistent_matrices(tmp_path, kind):
    contents = planetoid.parts()
    planetoid.write(tmp_path, {**contents, "x": HOSTILE[kind]})
    with pytest.raises(datasets.DamagedFile, match="Received: ") as error:
        datasets.citation("tiny", tmp_path)
    assert "ind.tiny.x" in str(error.value)


def changed(part, value):
    contents = planetoid.parts()
    contents[part] = value(contents[part])
    return contents


def with_edge(start, end):
    def change(graph):
        graph[start].append(end)
        return graph

    return change


WRONG = {
    "y has a row too few": ("y", lambda y: y[:-1]),
    "ty has a row too few": ("ty", lambda y: y[:-1]),
    "ally has a row too many": ("ally", lambda y: np.vstack([y, y[:1]])),
    "x has a column too few": ("x", lambda x: x[:, :-1]),
    "tx has a column too few": ("tx", lambda x: x[:, :-1]),
    "x is an array": ("x", lambda x: x.toarray()),
    "x is infinite": ("x", lambda x: x * np.float32(np.inf)),
    "y is sparse": ("y", sparse.csr_matrix),
    "y is flat": ("y", np.ravel),
    "y has two classes": ("y", lambda y: np.ones_like(y)),
    "y has large entries": ("y", lambda y: 2 * y),
    "graph is a list": ("graph", list),
    "graph has strings": ("graph", with_edge(0, "1")),
    "graph has floats": ("graph", with_edge(0, 1.0)),
    "graph has dictionaries": ("graph", lambda graph: {0: {1: 2}}),
    "node too large": ("graph", with_edge(0, planetoid.NODES)),
    "negative node": ("graph", with_edge(-1, 0)),
    "not a pickle": ("graph", lambda graph: b"node 1: 2, 3"),
    "half a pickle": ("allx", lambda x: planetoid.python2_dumps(x)[:-100]),
    "empty": ("tx", lambda x: b""),
    "not a number": ("test.index", lambda text: text + b"x\n"),
    "no lines": ("test.index", lambda text: b""),
    "extra line": ("test.index", lambda text: text + b"12\n"),
    "duplicate node": ("test.index", lambda text: text.replace(b"9\n", b"7\n")),
    "known node": ("test.index", lambda text: text.replace(b"9\n", b"6\n")),
    "far too large node": (
        "test.index",
        lambda text: text.replace(b"9\n", b"%d" % 9**12),
    ),
    "integer overflow": (
        "test.index",
        lambda text: text.replace(b"9\n", b"9" * 99 + b"\n"),
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_files_that_do_not_match(tmp_path, kind):
    part, change = WRONG[kind]
    planetoid.write(tmp_path, changed(part, change))
    with pytest.raises(datasets.DamagedFile, match="Received: ") as error:
        datasets.citation("tiny", tmp_path)
    # The reader cannot know which of two files is wrong.
    assert "ind.tiny." in str(error.value)


def test_wrong_memo_index_does_not_exhaust_the_memory():
    for content in (b"\x80\x02]r\xff\xff\xff\x7f.", b"]p2147483647\n."):
        with pytest.raises(datasets.DamagedFile, match="index 2147483647"):
            safe_pickle.load(content, "path")


# The random damage can create invalid escapes, which Python warns about.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_random_damage_raises_damaged_file():
    rng = np.random.default_rng(0)
    rejected = 0
    for value in planetoid.parts().values():
        if isinstance(value, bytes):
            continue
        content = np.frombuffer(planetoid.python2_dumps(value), "uint8")
        for _ in range(150):
            damaged = content.copy()
            places = rng.integers(len(content), size=3)
            damaged[places] = rng.integers(256, size=3)
            try:
                safe_pickle.load(damaged.tobytes(), "path")
            except datasets.DamagedFile:
                rejected += 1
    assert rejected > 300
