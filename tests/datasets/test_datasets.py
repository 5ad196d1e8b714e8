"""Data sets: small files of the same formats, and the real ones if there."""

import ast
import collections
import gzip
import hashlib
import http.server
import io
import json
import os
import pathlib
import pickle
import pickletools
import struct
import sys
import threading

import numpy as np
import pytest

from keras_qpsbgd import datasets
from keras_qpsbgd.datasets import files
from keras_qpsbgd.datasets import mnist_digits
from keras_qpsbgd.datasets import safe_pickle

pytestmark = pytest.mark.once

sparse = pytest.importorskip("scipy.sparse")

ROOT = pathlib.Path(__file__).parents[2]
REAL = pathlib.Path(
    os.environ.get("KERAS_QPSBGD_DATA") or ROOT.parent / "shared" / "data"
)


@pytest.fixture
def real():
    if not (REAL / "mnist.npz").is_file():
        pytest.skip("the real data are not on this machine")
    return REAL


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    """No folder is found by chance."""
    monkeypatch.delenv("KERAS_QPSBGD_DATA", raising=False)
    monkeypatch.setenv("KERAS_QPSBGD_CACHE", str(tmp_path / "cache"))


# --- small Planetoid files ---


class Python2Pickler(pickle._Pickler):
    """Writes bytes as Python 2 did, and the module names of its time."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_bytes(self, content):
        size = struct.pack("<i", len(content))
        self.write(pickle.BINSTRING + size + content)

    dispatch[bytes] = save_bytes


def python2_dumps(value):
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
    """Features, classes and edges of a small graph."""
    rng = np.random.default_rng(0)
    x = rng.random((NODES, FEATURES)) * (rng.random((NODES, FEATURES)) < 0.6)
    y = np.arange(NODES) % CLASSES
    edges = {(i, (i + 3) % NODES) for i in range(NODES)} | {(0, 1), (2, 10)}
    return x.astype("float32"), y, edges


def parts(test_nodes=TEST_NODES):
    """What is in the files of the small graph, by their last names."""
    x, y, edges = truth()
    one_hot = np.eye(CLASSES, dtype="int32")[y]
    graph = collections.defaultdict(list)
    for i, j in sorted(edges):
        graph[i] += [j, j]  # twice
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


@pytest.mark.parametrize("writer", WRITERS)
def test_planetoid_files_of_any_age(tmp_path, writer):
    write(tmp_path, dumps=WRITERS[writer])
    data = datasets.citation("tiny", tmp_path)
    x, y, edges = truth()
    assert sparse.isspmatrix_csr(data.x) and sparse.isspmatrix_csr(data.a)
    assert data.x.dtype == data.a.dtype == "float32"
    np.testing.assert_array_equal(data.x.toarray(), x)
    np.testing.assert_array_equal(data.y, y)
    np.testing.assert_array_equal(data.a.toarray(), adjacency(edges))
    assert list(np.flatnonzero(data.train_mask)) == [0, 1, 2]
    assert list(np.flatnonzero(data.val_mask)) == [3, 4, 5, 6]
    assert list(np.flatnonzero(data.test_mask)) == sorted(TEST_NODES)
    assert repr(data) == (
        "GraphData('tiny', 12 nodes, 14 edges, 5 features, 3 classes, 3/4/5)"
    )


def test_python2_writer_names_what_the_real_files_name():
    named = set()
    for content in parts().values():
        if isinstance(content, bytes):
            continue
        for opcode, argument, _ in pickletools.genops(python2_dumps(content)):
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


def test_arrays_in_any_order_and_byte_order():
    for array in (
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array([[True, False]]),
    ):
        for writer in WRITERS.values():
            found = safe_pickle.load(writer(array), "path")
            np.testing.assert_array_equal(found, array)
            assert found.dtype == array.dtype.newbyteorder("=")
            assert found.flags.writeable


def test_test_nodes_that_are_missing(tmp_path):
    present = [9, 11, 7]
    write(tmp_path, parts(present))
    data = datasets.citation("tiny", tmp_path)
    x, y, edges = truth()
    x[[8, 10]] = 0.0
    y[[8, 10]] = -1
    np.testing.assert_array_equal(data.x.toarray(), x)
    np.testing.assert_array_equal(data.y, y)
    np.testing.assert_array_equal(data.a.toarray(), adjacency(edges))
    assert list(np.flatnonzero(data.test_mask)) == sorted(present)
    masks = data.train_mask | data.val_mask | data.test_mask
    assert not masks[[8, 10]].any()


def test_normalize_x(tmp_path):
    contents = parts([9, 11, 7])
    write(tmp_path, contents)
    x = datasets.citation("tiny", tmp_path).x.toarray()
    normal = datasets.citation("tiny", tmp_path, normalize_x=True).x
    assert normal.dtype == "float32"
    sums = x.sum(axis=1, keepdims=True)
    assert (sums == 0).any()
    expected = np.divide(x, sums, out=np.zeros_like(x), where=sums > 0)
    np.testing.assert_allclose(normal.toarray(), expected, rtol=1e-6)


@pytest.mark.parametrize("layout", ["Citation/tiny", "tiny", "."])
def test_layouts(tmp_path, layout, monkeypatch):
    write(tmp_path / layout)
    assert datasets.citation("tiny", str(tmp_path)).num_nodes == NODES
    monkeypatch.setenv("KERAS_QPSBGD_DATA", str(tmp_path))
    assert datasets.citation("tiny").num_nodes == NODES
    with pytest.raises(datasets.MissingFile):
        datasets.citation("tiny", tmp_path / "elsewhere")


# --- pickles that want more ---


def call(module, name, argument):
    """A pickle that calls a global with a text."""
    return f"c{module}\n{name}\n(V{argument}\ntR.".encode()


def dotted(module, name):
    """A global as protocol 4 names it."""
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
def test_other_globals_are_refused(tmp_path, module, name):
    trace = tmp_path / "trace"
    argument = f"touch {trace}"
    if name == "eval":
        argument = f"open({str(trace)!r}, 'w')"
    for part in ("x", "y", "graph"):
        contents = parts()
        contents[part] = call(module, name, argument)
        write(tmp_path, contents)
        with pytest.raises(datasets.DamagedFile) as error:
            datasets.citation("tiny", tmp_path)
        assert str(error.value).endswith(f"Received: {module}.{name}")
        assert str(tmp_path / f"ind.tiny.{part}") in str(error.value)
        assert not trace.exists()


def test_the_refused_pickle_would_have_run(tmp_path):
    trace = tmp_path / "trace"
    pickle.loads(call("os", "system", f"touch {trace}"))
    assert trace.exists()


@pytest.mark.parametrize("name", ["ndarray.__class__", "dtype.__reduce__"])
def test_attributes_of_globals_are_refused(name):
    with pytest.raises(datasets.DamagedFile, match=f"Received: numpy.{name}"):
        safe_pickle.load(dotted("numpy", name), "path")


@pytest.mark.parametrize(
    "target",
    [name.rpartition(".")[::2] for name in safe_pickle.GLOBALS],
    ids=".".join,
)
def test_classes_cannot_be_changed(target):
    """With real classes, this changes SciPy's for the whole process."""
    state = b"N(V_changed\nI1\nd\x86"  # (None, {"_changed": 1})
    content = b"\x80\x02c%s\n%s\n" % tuple(t.encode() for t in target)
    with pytest.raises(datasets.DamagedFile):
        safe_pickle.load(content + state + b"b.", "path")
    for known in (sparse.csr_matrix, *safe_pickle.GLOBALS.values()):
        assert not hasattr(known, "_changed")


def broken_matrix(**changes):
    """A pickle of a matrix whose arrays contradict each other."""
    matrix = sparse.csr_matrix(np.eye(TRAIN, FEATURES, dtype="float32"))
    for key, value in changes.items():
        setattr(matrix, key, value)
    return matrix


ARRAY = np.int32
HOSTILE = {
    "column outside": broken_matrix(indices=ARRAY([0, 1, 10**6])),
    "negative column": broken_matrix(indices=ARRAY([0, 1, -1])),
    "row ends before it starts": broken_matrix(indptr=ARRAY([0, 9, 1, 3])),
    "row outside": broken_matrix(indptr=ARRAY([0, 1, 2, 10**6])),
    # SciPy looks no further if the matrix seems to be empty.
    "row outside, empty": broken_matrix(indptr=ARRAY([0, 10**6, 0, 0])),
    "negative end": broken_matrix(indptr=ARRAY([0, 1, 2, -5])),
    "values too many": broken_matrix(indptr=ARRAY([0, 1, 2, 2])),
    "too few rows": broken_matrix(indptr=ARRAY([0, 3])),
    "no values": broken_matrix(data=np.zeros(1, "float32")),
    "shape": broken_matrix(_shape=(10**6, 2)),
    "shape is text": broken_matrix(_shape="ab"),
    "indices are real": broken_matrix(indices=np.zeros(3)),
    "data are objects": broken_matrix(data=np.array([{}, {}, {}])),
    "data are a list": broken_matrix(data=[1.0, 1.0, 1.0]),
    "no data": broken_matrix(data=None),
    "own check": broken_matrix(
        indices=ARRAY([0, 1, 10**6]), check_format=collections.defaultdict
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_matrices_that_contradict_themselves(tmp_path, kind):
    contents = parts()
    write(tmp_path, {**contents, "x": HOSTILE[kind]})
    with pytest.raises(datasets.DamagedFile, match="Received: ") as error:
        datasets.citation("tiny", tmp_path)
    assert "ind.tiny.x" in str(error.value)


def changed(part, value):
    contents = parts()
    contents[part] = value(contents[part])
    return contents


def with_edge(start, end):
    def change(graph):
        graph[start].append(end)
        return graph

    return change


WRONG = {
    "y has a row less": ("y", lambda y: y[:-1]),
    "ty has a row less": ("ty", lambda y: y[:-1]),
    "ally has a row more": ("ally", lambda y: np.vstack([y, y[:1]])),
    "x is narrow": ("x", lambda x: x[:, :-1]),
    "tx is narrow": ("tx", lambda x: x[:, :-1]),
    "x is an array": ("x", lambda x: x.toarray()),
    "x is infinite": ("x", lambda x: x * np.float32(np.inf)),
    "y is sparse": ("y", sparse.csr_matrix),
    "y is flat": ("y", np.ravel),
    "y has two classes": ("y", lambda y: np.ones_like(y)),
    "y has large entries": ("y", lambda y: 2 * y),
    "graph is a list": ("graph", list),
    "graph has text": ("graph", with_edge(0, "1")),
    "graph has reals": ("graph", with_edge(0, 1.0)),
    "graph has sets": ("graph", lambda graph: {0: {1: 2}}),
    "node too high": ("graph", with_edge(0, NODES)),
    "node too low": ("graph", with_edge(-1, 0)),
    "no pickle": ("graph", lambda graph: b"node 1: 2, 3"),
    "half a pickle": ("allx", lambda x: python2_dumps(x)[:-100]),
    "empty": ("tx", lambda x: b""),
    "no number": ("test.index", lambda text: text + b"x\n"),
    "no line": ("test.index", lambda text: b""),
    "one line more": ("test.index", lambda text: text + b"12\n"),
    "twice": ("test.index", lambda text: text.replace(b"9\n", b"7\n")),
    "known node": ("test.index", lambda text: text.replace(b"9\n", b"6\n")),
    "far node": (
        "test.index",
        lambda text: text.replace(b"9\n", b"%d" % 9**12),
    ),
    "huge": (
        "test.index",
        lambda text: text.replace(b"9\n", b"9" * 99 + b"\n"),
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_files_that_do_not_fit(tmp_path, kind):
    part, change = WRONG[kind]
    write(tmp_path, changed(part, change))
    with pytest.raises(datasets.DamagedFile, match="Received: ") as error:
        datasets.citation("tiny", tmp_path)
    # Which of two files is wrong cannot be known.
    assert "ind.tiny." in str(error.value)


def test_one_wrong_number_does_not_fill_the_memory():
    for content in (b"\x80\x02]r\xff\xff\xff\x7f.", b"]p2147483647\n."):
        with pytest.raises(datasets.DamagedFile, match="number 2147483647"):
            safe_pickle.load(content, "path")


# Python warns of escapes in texts that the damage made.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_random_damage_is_an_error_of_ours():
    rng = np.random.default_rng(0)
    refused = 0
    for value in parts().values():
        if isinstance(value, bytes):
            continue
        content = np.frombuffer(python2_dumps(value), "uint8")
        for _ in range(150):
            damaged = content.copy()
            places = rng.integers(len(content), size=3)
            damaged[places] = rng.integers(256, size=3)
            try:
                safe_pickle.load(damaged.tobytes(), "path")
            except datasets.DamagedFile:
                refused += 1
    assert refused > 300


def test_names():
    for name in ("", "a/b", 3):
        with pytest.raises(ValueError, match="`name`.*Received: name="):
            datasets.citation(name)


# --- where files come from ---


def test_missing_file(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError) as error:
        datasets.citation("cora", tmp_path)
    message = str(error.value)
    for expected in (
        "ind.cora.x",
        str(tmp_path / "Citation" / "cora" / "ind.cora.x"),
        f"{tmp_path / 'cora'}, {tmp_path}",
        "`download=True`",
        "https://",
        "KERAS_QPSBGD_DATA",
        "Received: ",
    ):
        assert expected in message
    with pytest.raises(datasets.MissingFile, match="a1a or a1a.gz"):
        datasets.adult(tmp_path)
    cache = tmp_path / "cache" / "datasets"
    with pytest.raises(datasets.MissingFile, match=str(cache)):
        datasets.mnist()
    with pytest.raises(datasets.MissingFile, match="cannot be downloaded"):
        datasets.citation("tiny", tmp_path, download=True)
    assert not list(tmp_path.iterdir())


def test_cache_without_platformdirs(monkeypatch, tmp_path):
    monkeypatch.delenv("KERAS_QPSBGD_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert files.folder().parent.name == "keras_qpsbgd"
    assert files.folder().name == "datasets"


def test_damaged_file_is_named_and_kept(tmp_path):
    write(tmp_path, name="cora")
    path = tmp_path / "ind.cora.x"
    before = path.read_bytes()
    with pytest.raises(datasets.DamagedFile) as error:
        datasets.citation("Cora", tmp_path, download=True)
    message = str(error.value)
    assert str(path) in message and "delete it" in message
    place = "Citation/cora/ind.cora.x"
    assert files.SOURCES[place][1] in message
    assert message.endswith(hashlib.sha256(before).hexdigest())
    assert path.read_bytes() == before


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Makes a file the published one of a place."""

    def publish(place, content, address=None):
        if address is None:
            path = tmp_path / "origin" / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            address = path.as_uri()
        checksum = hashlib.sha256(content).hexdigest()
        monkeypatch.setitem(files.SOURCES, place, (address, checksum))

    return publish


def publish_tiny(source, folder):
    write(folder)
    for path in folder.iterdir():
        source(f"Citation/tiny/{path.name}", path.read_bytes())


def test_download_to_cache_and_folder(tmp_path, source, monkeypatch):
    publish_tiny(source, tmp_path / "published")
    data = datasets.citation("tiny", download=True)
    assert data.num_nodes == NODES
    folder = tmp_path / "cache" / "datasets" / "Citation" / "tiny"
    names = {f"ind.tiny.{part}" for part in files.PARTS}
    assert {path.name for path in folder.iterdir()} == names
    # It is there now: nothing is fetched again.
    monkeypatch.setattr(files, "_download", None)
    datasets.citation("tiny", download=True)
    datasets.citation("tiny")
    monkeypatch.undo()

    publish_tiny(source, tmp_path / "published")
    own = tmp_path / "own"
    monkeypatch.setenv("KERAS_QPSBGD_DATA", str(own))
    with pytest.raises(datasets.MissingFile):
        datasets.citation("tiny")
    datasets.citation("tiny", download=True)
    assert (own / "Citation" / "tiny" / "ind.tiny.graph").is_file()


class HalfAnswer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"half")

    def log_message(self, *_):
        pass


def test_failed_downloads_leave_nothing(tmp_path, source):
    server = http.server.HTTPServer(("127.0.0.1", 0), HalfAnswer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}/a1a"
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"something else")
    missing = tmp_path / "no such file"
    try:
        for address in (here, wrong.as_uri(), missing.as_uri()):
            source("adult/a1a", b"+1 1:1\n", address)
            with pytest.raises(datasets.DownloadFailed) as error:
                datasets.adult(tmp_path / "data", download=True)
            assert address in str(error.value)
            assert "Received: " in str(error.value)
            assert not list((tmp_path / "data" / "adult").iterdir())
    finally:
        server.shutdown()
        server.server_close()


# --- the single data sets ---


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
    # Archives with different bytes, members in different order.
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


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_mnist_archives_that_are_none(tmp_path):
    path, trace = tmp_path / "mnist.npz", tmp_path / "trace"
    np.savez(path, **dict.fromkeys(mnist_digits.KEYS, np.array([Trap(trace)])))
    good = io.BytesIO()
    np.savez(good, x_train=np.zeros(3))
    array = io.BytesIO()
    np.save(array, np.zeros(3))
    for content in (
        path.read_bytes(),
        good.getvalue(),
        good.getvalue()[:-20],
        array.getvalue(),
        pickle.dumps(Trap(trace)),
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


def test_spektral_view(tmp_path, monkeypatch):
    spektral_data = pytest.importorskip("spektral.data")
    monkeypatch.setattr(spektral_data.Dataset, "download", None)
    write(tmp_path, parts([9, 11, 7]))
    data = datasets.citation("tiny", tmp_path)
    seen = []

    def transform(graph):
        seen.append(graph)
        graph.a = graph.a * 2
        graph.x += 1.0
        return graph

    dataset = data.to_spektral(transforms=[transform])
    assert len(dataset) == dataset.n_graphs == len(seen) == 1
    assert dataset.n_labels == CLASSES and dataset.n_nodes == NODES
    graph = dataset[0]
    assert type(graph.x) is np.ndarray and graph.x.dtype == "float32"
    np.testing.assert_array_equal(graph.x, data.x.toarray() + 1)
    assert (graph.a != 2 * data.a).nnz == 0  # the data stayed
    assert graph.y.dtype == "float32"
    np.testing.assert_array_equal(graph.y.argmax(1)[:8], data.y[:8])
    assert not graph.y[[8, 10]].any() and graph.y.sum() == NODES - 2

    loader = spektral_data.SingleLoader(dataset, sample_weights=dataset.mask_va)
    (x, a), y, weights = next(iter(loader.load()))
    np.testing.assert_array_equal(x, graph.x)
    np.testing.assert_array_equal(y, graph.y)
    np.testing.assert_array_equal(weights, data.val_mask)
    assert a.shape == (NODES, NODES)
    # Features that are dense already.
    karate = datasets.karate()
    dataset = karate.to_spektral()
    np.testing.assert_array_equal(dataset[0].x, karate.x)
    assert dataset.mask_tr.sum() == 20 and dataset.mask_te.sum() == 14


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_cora_is_spektrals(real, monkeypatch):
    theirs = pytest.importorskip("spektral.datasets.citation")
    # Spektral needs an attribute that SciPy has no longer.
    dense = property(lambda matrix: matrix.toarray())
    monkeypatch.setattr(sparse.csr_matrix, "A", dense, raising=False)
    monkeypatch.setattr(theirs, "DATASET_FOLDER", str(real))
    for normalize_x in (False, True):
        expected = theirs.Citation("cora", normalize_x=normalize_x)
        found = datasets.citation("Cora", real, normalize_x=normalize_x)
        found = found.to_spektral()
        np.testing.assert_array_equal(found[0].x, expected[0].x)
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


def test_karate_is_the_stored_one(real):
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
def test_what_is_imported_at_once(path):
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


def test_cache_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_QPSBGD_CACHE", "~/here")
    assert files.folder() == tmp_path / "here" / "datasets"


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(datasets.DownloadFailed, match="by hand. Received"):
        datasets.adult(tmp_path / "file", download=True)
