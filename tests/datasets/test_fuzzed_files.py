"""Damaged and hostile files: the right data or a clear error, no code runs.

Every kind of file is mutated at random, pickles also opcode by opcode. Files
with a checksum give the right data or an error of ours that names the file; a
cache gives the right data in any case. Citation graphs of other names have no
checksum: where an error is not raised, what is read must be a graph.
"""

import collections
import contextlib
import gzip
import hashlib
import io
import itertools
import multiprocessing
import os
import pathlib
import pickle
import pickletools
import random
import resource
import stat
import struct
import sys
import warnings
import zipfile

import numpy as np
import pytest
import test_datasets

from keras_qpsbgd import datasets
from keras_qpsbgd import disk
from keras_qpsbgd.backends.dwave import embedding
from keras_qpsbgd.datasets import files
from keras_qpsbgd.datasets import mnist_digits
from keras_qpsbgd.datasets import safe_pickle
from research.experiments.tasks import mnist_pairs

pytestmark = pytest.mark.once

sparse = pytest.importorskip("scipy.sparse")

COUNTS = [100, pytest.param(2000, marks=pytest.mark.slow)]
# Memory that all mutations of a kind may take in all, in KiB.
MOST_MEMORY = 300 * 1024


# --- a guard that sees code run ---

FORBIDDEN = (
    "ctypes.",
    "exec",
    "ftplib.",
    "import",
    "os.",
    "pickle.find_class",
    "pty.",
    "shutil.",
    "socket.",
    "subprocess.",
    "urllib.",
    "webbrowser.",
)
# What reading a folder does, and what NumPy looks up.
HARMLESS = ("os.listdir", "os.scandir", "os.walk")
_seen = None


def _hook(event, arguments):
    if _seen is None:
        return
    if event == "open":
        _, mode, flags = arguments
        writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND
        if not (flags or 0) & writes and not set(mode or "r") & set("wax+"):
            return
    elif event in HARMLESS or not event.startswith(FORBIDDEN):
        return
    _seen.append((event, str(arguments)[:200]))
    raise PermissionError(f"{event} of a hostile file")


@pytest.fixture(scope="module")
def guard():
    """A context in which nothing may be run, imported or written."""
    sys.addaudithook(_hook)

    @contextlib.contextmanager
    def guard():
        global _seen
        _seen = seen = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield seen
        finally:
            _seen = None

    return guard


@pytest.mark.parametrize(
    "content",
    [
        test_datasets.call("os", "system", "true"),
        test_datasets.call("builtins", "exec", "pass"),
        test_datasets.call("builtins", "__import__", "this"),
        test_datasets.call("subprocess", "Popen", "true"),
        b"cbuiltins\nopen\n(Vtrace\nVw\ntR.",
        b"cbuiltins\nlist\n.",
    ],
)
def test_the_guard_sees_it(guard, content):
    with guard() as seen, contextlib.suppress(PermissionError):
        pickle.loads(content)
    assert seen


# --- mutations ---


def mutate(content, rng):
    """A few random changes of bytes."""
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


def text(value):
    return pickle.BINUNICODE + struct.pack("<I", len(value)) + value.encode()


# Pieces that a pickle gets in the middle.
FRAGMENTS = [
    b"cos\nsystem\n(Vtrue\ntR",
    b"cposix\nsystem\n",
    b"cbuiltins\neval\n",
    b"c__builtin__\neval\n",
    text("os") + text("system") + b"\x93",
    text("builtins") + text("getattr") + b"\x93",
    text("numpy") + text("ndarray.__class__") + b"\x93",
    b"(Vtrue\nios\nsystem\n",  # INST
    b"(cos\nsystem\nVtrue\no",  # OBJ
    b"cos\nsystem\n)\x81",  # NEWOBJ
    b"cos\nsystem\n)}\x92",  # NEWOBJ_EX
    b"\x82\x01",  # EXT1
    b"\x83\x01\x00",
    b"\x84\x01\x00\x00\x00",
    b"P1\n",  # a persistent object
    b"K\x01Q",
    b"\x97",  # the next buffer
    b"\x98",
    b"N}Vx\nK\x01s\x86b",  # (None, {"x": 1}) as the state
    b"}Vx\nK\x01sb",
    b"2",  # DUP
    b"0",  # POP
    b"1",
    b"\x8f(\x90",
    b"(\x91",
    b"\x85",
    b"t",
    b"R",
    b"b",
    b"s",
    b"u",
    b"a",
    b"e",
    b"d",
    b"l",
    b"(",
    b")",
    b"]",
    b"}",
    b"N",
    b"I1\n",
    b"I-1\n",
    b"L99999999999999999999L\n",
    b"\x8b\xff\xff\xff\x7f",  # LONG4 of 2 GiB
    b"B\xff\xff\xff\x7f",  # bytes of 2 GiB
    b"X\xff\xff\xff\xff",
    b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x96\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f",  # a frame
    b"r\xff\xff\xff\x7f",  # object number 2**31 - 1
    b"p99999999\n",
    b"h\x00",
    b"h\x01",
    b"q\x00",
    b"q\x01",
    b"j\x00\x00\x00\x00",
    b"\x94",
    *(
        b"c%s\n%s\n" % (module.encode(), name.encode())
        for module, _, name in (
            known.rpartition(".") for known in safe_pickle.GLOBALS
        )
    ),
]


def mutate_opcodes(content, rng):
    """Moves, repeats, removes and adds whole opcodes."""
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
            pieces[one] = rng.choice(FRAGMENTS)
        else:
            pieces.insert(one, rng.choice(FRAGMENTS))
    return b"".join(pieces)


# --- kinds of files ---


def same(one, other):
    """Whether nested tuples of arrays are equal to the bit."""
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
    """All that `GraphData` promises."""
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
    """A file and how it is read.

    Args:
        path: the file, which is there and whole.
        read: function that reads it.
        pickled: whether it is a pickle.
        check: function of what was read, where it may be something else.
        errors: whether there may be errors.
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


WRITERS = {
    "python2": test_datasets.python2_dumps,
    "protocol2": lambda value: pickle.dumps(value, 2),
    "protocol5": lambda value: pickle.dumps(value, 5),
}


def citation(part, writer="python2", known=False):
    def make(folder, publish, monkeypatch):
        test_datasets.write(folder, dumps=WRITERS[writer])
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
        first = embedding.Cliques(graph, folder)
        copies, largest = first.copies(12), first.largest()
        # The search has its own tests.
        found = first._known["largest"][0][0]
        monkeypatch.setattr(embedding, "_search", lambda *_: (copies, True))
        monkeypatch.setattr(embedding, "_largest_copy", lambda _: found)
        assert len(found) == largest
        known = embedding.Cliques(graph, folder)
        # What is damaged is replaced, but not in this test.
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
    monkeypatch.setattr(disk, "write_sealed", lambda *_: None)
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
    expected = kind.read()  # also imports what is needed
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
            # Of two files that do not fit either may be the wrong one.
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
    assert after - before < MOST_MEMORY
    if kind.errors:
        assert outcomes["error"] > count // 10
    print(f"{name}: {dict(outcomes)}")


# --- hostile pickles ---

ARRAY = (
    b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
    b"(K\x00tS'b'\ntR(K\x01%bcnumpy\ndtype\n(S'f4'\nI0\nI1\ntR"
    b"(I3\nS'<'\nNNNI-1\nI-1\nI0\ntbI00\nS'abcd'\ntb."
)


def wide_key(before):
    """Each tuple has the one before a thousand times; the last is hashed.

    Args:
        before: opcodes before a tuple is remembered, which leave it as it is.
    """
    levels = (
        b"(" + (b"h%c" % k) * 1000 + b"t" + before + b"q%c" % (k + 1)
        for k in range(6)
    )
    return b"(t" + before + b"q\x00" + b"".join(levels) + b"}h\x06K\x01s."


HOSTILE = {
    # A tuple is no graph, whatever is in it.
    **{f"fragment {k}": b"(%bt." % piece for k, piece in enumerate(FRAGMENTS)},
    "state of a class": b"cscipy.sparse.csr\ncsr_matrix\nN}Vx\nK\x01s\x86b.",
    "state of list": b"cbuiltins\nlist\n}Vx\nK\x01sb.",
    "two names of an object": b"]q\x00h\x00a" + b"cos\nsystem\n.",
    "name from the memo": text("os")
    + b"q\x00"
    + text("system")
    + b"q\x01"
    + b"h\x00h\x01\x93(Vtrue\ntR.",
    "shape of a tuple": ARRAY % b"(K\x01K\x01tJ\xff\xff\xff\x7f\x86",
    "shape of a text": ARRAY % b"(VAAAA\nJ\xff\xff\xff\x7ft",
    "shape of many numbers": ARRAY
    % (b"(" + b"J\xff\xff\xff\x7f" * 10**5 + b"t"),
    "shape of long numbers": ARRAY
    % (b"(" + b"\x8b\x00\x00\x01\x00" + b"\x7f" * 65536 + b"t"),
    "deep list": b"]" * 300_000 + b"a" * 299_999 + b".",
    "deep state": b"(cnumpy\ndtype\nq\x00"
    + b"h\x00)\x81" * 200_000
    + b"b" * 199_999
    + b"t.",
    "deep key": b"})" + b"\x85" * 10**6 + b"K\x01s.",
    "wide key": wide_key(b""),
    "wide key, nothing appended": wide_key(b"(e"),
    "wide key, nothing built": wide_key(b"Nb"),
    "wide key, in a frame": wide_key(b"\x95" + bytes(8)),
    "lists of a list": b"(cbuiltins\nlist\nq\x010"
    + text("A" * 10**6)
    + b"\x85q\x02"
    + b"h\x01h\x02R" * 10**5
    + b"t.",
    "lists of a text": text("A" * 10**6)
    + b"q\x02cbuiltins\nlist\nq\x01"
    + b"h\x01h\x02\x85R" * 900
    + b"t.",
    "dictionaries of a dictionary": b"}("
    + b"".join(b"J%bN" % struct.pack("<i", k) for k in range(10**5))
    + b"uq\x00ccollections\ndefaultdict\nq\x01"
    + b"h\x01Nh\x00\x86R" * 900
    + b".",
    "bytes of a text": text("A" * 10**6)
    + b"q\x02c_codecs\nencode\nq\x01"
    + b"h\x01h\x02Vlatin1\n\x86R" * 900
    + b"t.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles(name, guard, tmp_path):
    """Each in a process that ends if it takes long or much memory."""
    path = tmp_path / "ind.tiny.graph"
    test_datasets.write(tmp_path)
    path.write_bytes(HOSTILE[name])
    process = multiprocessing.get_context("fork").Process(
        target=_read_hostile, args=(guard, tmp_path)
    )
    process.start()
    process.join(120)
    process.kill()
    process.join()
    assert process.exitcode == 0


def _read_hostile(guard, folder):
    resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    most = used * resource.getpagesize() + 2**28
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    message = ""
    with guard() as seen:
        try:
            datasets.citation("tiny", folder)
        except datasets.DamagedFile as error:
            message = str(error)
    right = "ind.tiny.graph" in message and "Received: " in message
    os._exit(0 if right and "MemoryError" not in message and not seen else 1)


def test_extensions_are_not_called(guard, monkeypatch):
    """Python takes them from a cache, without `find_class`."""
    import copyreg

    called = []
    monkeypatch.setitem(copyreg._inverted_registry, 1, ("a", "b"))
    monkeypatch.setitem(copyreg._extension_cache, 1, called.append)
    content = b"\x80\x02\x82\x01K\x07\x85R."
    pickle.loads(content)
    assert called == [7]
    with pytest.raises(datasets.DamagedFile, match="Received: .*EXT1"):
        safe_pickle.load(content, "path")
    assert called == [7]


# --- hostile archives ---


def archive(members, **changes):
    """An archive of MNIST's names; `members` replace or add some."""
    content = io.BytesIO()
    array = io.BytesIO()
    np.save(array, np.zeros(3, "uint8"))
    found = {f"{key}.npy": array.getvalue() for key in mnist_digits.KEYS}
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for name, member in {**found, **members}.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            for key, value in changes.items():
                setattr(info, key, value)
            file.writestr(info, member)
    return content.getvalue()


def header(**changes):
    """An `.npy` file of 3 bytes whose header says something else."""
    entries = {"descr": "|u1", "fortran_order": False, "shape": (3,)}
    line = repr({**entries, **changes}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(line)) + line + b"abc"


def objects():
    content = io.BytesIO()
    np.save(content, np.array([test_datasets.Trap("trace")]), allow_pickle=True)
    return content.getvalue()


ARCHIVES = {
    "path above": lambda: archive({"../../evil.npy": b"x"}),
    "path from the root": lambda: archive({"/tmp/evil.npy": b"x"}),
    "link": lambda: archive({}, external_attr=(stat.S_IFLNK | 0o777) << 16),
    "bomb": lambda: archive({"x_train.npy": bytes(2**26 + 1)}),
    "bomb without an ending": lambda: archive({"x_train": bytes(2**26 + 1)}),
    "huge shape": lambda: archive({"x_train.npy": header(shape=(10**15,))}),
    "large shape": lambda: archive({"x_train.npy": header(shape=(10**10,))}),
    "negative shape": lambda: archive({"x_train.npy": header(shape=(-3,))}),
    "objects": lambda: archive({"x_train.npy": objects()}),
    "object dtype": lambda: archive({"x_train.npy": header(descr="|O")}),
    "dates": lambda: archive(
        {"x_train.npy": header(descr="<M8[s]", shape=(0,))}
    ),
    "code for a header": lambda: archive(
        {"x_train.npy": b"\x93NUMPY\x01\x00\x1a\x00__import__('os').getcwd()\n"}
    ),
    "open bracket": lambda: archive(
        {"x_train.npy": b"\x93NUMPY\x01\x00\x04\x00{((\n"}
    ),
    "deep header": lambda: archive(
        {"x_train.npy": b"\x93NUMPY\x01\x00\x40\x1f" + b"(" * 8000}
    ),
    "archive in it": lambda: archive({"x_train.npy": archive({})}),
    "pickle in it": lambda: archive(
        {"x_train.npy": pickle.dumps(test_datasets.Trap("trace"))}
    ),
    "unknown compression": lambda: archive({}).replace(
        b"PK\x01\x02\x14\x03\x14\x00\x00\x00\x08",
        b"PK\x01\x02\x14\x03\x14\x00\x00\x00\x0e",
    ),
    "encrypted": lambda: archive({}).replace(
        b"PK\x01\x02\x14\x03\x14\x00\x00\x00",
        b"PK\x01\x02\x14\x03\x14\x00\x01\x00",
    ),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_hostile_archives(name, guard, tmp_path, monkeypatch):
    path = tmp_path / "mnist.npz"
    np.savez(path, **dict.fromkeys(mnist_digits.KEYS, np.zeros(3, "uint8")))
    with pytest.raises(datasets.DamagedFile, match="differs"):
        datasets.mnist(tmp_path)  # imports what is needed
    path.write_bytes(ARCHIVES[name]())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with guard() as seen, pytest.raises(datasets.DamagedFile) as error:
        datasets.mnist(tmp_path)
    assert str(path) in str(error.value)
    assert "Received: " in str(error.value)
    assert not seen
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < MOST_MEMORY
    assert list(tmp_path.iterdir()) == [path]


def test_gzip_bomb(guard, tmp_path):
    (tmp_path / "adult").mkdir()
    path = tmp_path / "adult" / "a1a.gz"
    path.write_bytes(gzip.compress(bytes(2**26 + 1)))
    with guard() as seen, pytest.raises(datasets.DamagedFile) as error:
        datasets.adult(tmp_path)
    assert str(error.value).endswith("more than 67108864 bytes uncompressed")
    assert str(path) in str(error.value) and not seen
