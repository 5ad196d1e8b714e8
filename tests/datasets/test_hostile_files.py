"""Hostile pickles and archives raise errors and execute no code."""

import gzip
import io
import multiprocessing
import os
import pathlib
import pickle
import resource
import stat
import struct
import zipfile

import hostile
import numpy as np
import planetoid
import pytest

from keras_qpsbgd import datasets
from keras_qpsbgd.datasets import mnist_digits
from keras_qpsbgd.datasets import safe_pickle

pytestmark = pytest.mark.once

# --- hostile pickles ---

ARRAY = (
    b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
    b"(K\x00tS'b'\ntR(K\x01%bcnumpy\ndtype\n(S'f4'\nI0\nI1\ntR"
    b"(I3\nS'<'\nNNNI-1\nI-1\nI0\ntbI00\nS'abcd'\ntb."
)


def wide_key(before):
    """Each tuple contains the previous one 1,000 times. The last is hashed.

    Args:
        before: Opcodes before a tuple is stored in the memo that do not change
            the tuple.
    """
    levels = (
        b"(" + (b"h%c" % k) * 1000 + b"t" + before + b"q%c" % (k + 1)
        for k in range(6)
    )
    return b"(t" + before + b"q\x00" + b"".join(levels) + b"}h\x06K\x01s."


HOSTILE = {
    # A tuple is not a graph, regardless of its content.
    **{
        f"fragment {k}": b"(%bt." % piece
        for k, piece in enumerate(hostile.FRAGMENTS)
    },
    "state of a class": b"cscipy.sparse.csr\ncsr_matrix\nN}Vx\nK\x01s\x86b.",
    "state of list": b"cbuiltins\nlist\n}Vx\nK\x01sb.",
    "global after a self-reference": b"]q\x00h\x00a" + b"cos\nsystem\n.",
    "name from the memo": hostile.text("os")
    + b"q\x00"
    + hostile.text("system")
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
    + hostile.text("A" * 10**6)
    + b"\x85q\x02"
    + b"h\x01h\x02R" * 10**5
    + b"t.",
    "lists of a text": hostile.text("A" * 10**6)
    + b"q\x02cbuiltins\nlist\nq\x01"
    + b"h\x01h\x02\x85R" * 900
    + b"t.",
    "dictionaries of a dictionary": b"}("
    + b"".join(b"J%bN" % struct.pack("<i", k) for k in range(10**5))
    + b"uq\x00ccollections\ndefaultdict\nq\x01"
    + b"h\x01Nh\x00\x86R" * 900
    + b".",
    "bytes of a text": hostile.text("A" * 10**6)
    + b"q\x02c_codecs\nencode\nq\x01"
    + b"h\x01h\x02Vlatin1\n\x86R" * 900
    + b"t.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles(name, guard, tmp_path):
    """Reads each pickle in a process with limited time and memory."""
    path = tmp_path / "ind.tiny.graph"
    planetoid.write(tmp_path)
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
    limit = used * resource.getpagesize() + 2**28
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    message = ""
    with guard() as seen:
        try:
            datasets.citation("tiny", folder)
        except datasets.DamagedFile as error:
            message = str(error)
    right = "ind.tiny.graph" in message and "Received: " in message
    os._exit(0 if right and "MemoryError" not in message and not seen else 1)


def test_extensions_are_not_called(guard, monkeypatch):
    """Python takes extensions from a cache, without calling `find_class`."""
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
    """Returns an archive with the MNIST names, updated with `members`."""
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
    """Returns an `.npy` file with 3 bytes and a different header."""
    entries = {"descr": "|u1", "fortran_order": False, "shape": (3,)}
    line = repr({**entries, **changes}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(line)) + line + b"abc"


def objects():
    content = io.BytesIO()
    np.save(content, np.array([planetoid.Trap("trace")]), allow_pickle=True)
    return content.getvalue()


ARCHIVES = {
    "parent path": lambda: archive({"../../evil.npy": b"x"}),
    "absolute path": lambda: archive({"/tmp/evil.npy": b"x"}),
    "link": lambda: archive({}, external_attr=(stat.S_IFLNK | 0o777) << 16),
    "bomb": lambda: archive({"x_train.npy": bytes(2**26 + 1)}),
    "bomb without a suffix": lambda: archive({"x_train": bytes(2**26 + 1)}),
    "huge shape": lambda: archive({"x_train.npy": header(shape=(10**15,))}),
    "large shape": lambda: archive({"x_train.npy": header(shape=(10**10,))}),
    "negative shape": lambda: archive({"x_train.npy": header(shape=(-3,))}),
    "objects": lambda: archive({"x_train.npy": objects()}),
    "object dtype": lambda: archive({"x_train.npy": header(descr="|O")}),
    "dates": lambda: archive(
        {"x_train.npy": header(descr="<M8[s]", shape=(0,))}
    ),
    "code in the header": lambda: archive(
        {"x_train.npy": b"\x93NUMPY\x01\x00\x1a\x00__import__('os').getcwd()\n"}
    ),
    "open bracket": lambda: archive(
        {"x_train.npy": b"\x93NUMPY\x01\x00\x04\x00{((\n"}
    ),
    "deep header": lambda: archive(
        {"x_train.npy": b"\x93NUMPY\x01\x00\x40\x1f" + b"(" * 8000}
    ),
    "nested archive": lambda: archive({"x_train.npy": archive({})}),
    "nested pickle": lambda: archive(
        {"x_train.npy": pickle.dumps(planetoid.Trap("trace"))}
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
        datasets.mnist(tmp_path)  # triggers the imports
    path.write_bytes(ARCHIVES[name]())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with guard() as seen, pytest.raises(datasets.DamagedFile) as error:
        datasets.mnist(tmp_path)
    assert str(path) in str(error.value)
    assert "Received: " in str(error.value)
    assert not seen
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < hostile.MAX_MEMORY
    assert list(tmp_path.iterdir()) == [path]


def test_gzip_bomb(guard, tmp_path):
    (tmp_path / "adult").mkdir()
    path = tmp_path / "adult" / "a1a.gz"
    path.write_bytes(gzip.compress(bytes(2**26 + 1)))
    with guard() as seen, pytest.raises(datasets.DamagedFile) as error:
        datasets.adult(tmp_path)
    assert str(error.value).endswith("more than 67108864 bytes uncompressed")
    assert str(path) in str(error.value) and not seen
