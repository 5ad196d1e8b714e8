"""Location and download of dataset files.

All files are in one folder: the argument `data_dir` if given, else the
environment variable `KERAS_QPSBGD_DATA` if set, else the folder `datasets` in
the user cache (`KERAS_QPSBGD_CACHE`, or the cache folder of the operating
system). Its layout is:

```
mnist.npz
adult/a1a  adult/a1a.t              or compressed: adult/a1a.gz ...
Citation/cora/ind.cora.x  ...       as in Spektral
```

Files are downloaded only with `download=True`, and only if their checksum is
known. Existing files are never replaced or deleted. If the checksum of an
existing file is wrong, an error is raised and the user decides what to do.
"""

import gzip
import hashlib
import io
import os
import pathlib
import shutil
import tempfile
import zlib

from keras_qpsbgd import disk

# Far larger than the published files. Without a limit, a small archive could
# expand to terabytes.
MAX_BYTES = 2**26
PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")

_PLANETOID = "https://raw.githubusercontent.com/kimiyoung/planetoid/master/data"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
_KERAS = "https://storage.googleapis.com/tensorflow/tf-keras-datasets"

# SHA-256 of the published files, uncompressed, in the order of `PARTS`.
CITATION = {
    "cora": (
        "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
        "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
        "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
        "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
        "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
        "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
        "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
        "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    ),
    "pubmed": (
        "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
        "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
        "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
        "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
        "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
        "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
        "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
        "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
    ),
    "citeseer": (
        "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
        "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    ),
}

# Path relative to the data folder -> URL and SHA-256 of the file.
SOURCES = {
    "mnist.npz": (
        f"{_KERAS}/mnist.npz",
        "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
    ),
    "adult/a1a": (
        f"{_LIBSVM}/a1a",
        "eb54c45f1bdb51286f803dd092eb8202b44637a858fc6c4e533a2d64a0d94b4e",
    ),
    "adult/a1a.t": (
        f"{_LIBSVM}/a1a.t",
        "0212d0c4a3996fe6fb6a0ab54033d9f4fa4b60369b6e3bb141821d9ffc40c04d",
    ),
    **{
        f"Citation/{name}/ind.{name}.{part}": (
            f"{_PLANETOID}/ind.{name}.{part}",
            checksum,
        )
        for name, checksums in CITATION.items()
        for part, checksum in zip(PARTS, checksums)
    },
}


class MissingFile(FileNotFoundError):
    """Raised if a file is missing. The message explains how to get it."""


class DamagedFile(ValueError):
    """Raised if a file is corrupt or is not the expected file."""


class DownloadFailed(OSError):
    """Raised if a download fails. No partial file is left behind."""


def folder(data_dir=None):
    """Returns the folder that holds the files."""
    if data_dir is not None:
        return pathlib.Path(data_dir).expanduser()
    if os.environ.get("KERAS_QPSBGD_DATA"):
        return pathlib.Path(os.environ["KERAS_QPSBGD_DATA"]).expanduser()
    return disk.cache_folder() / "datasets"


def find(place, others=(), data_dir=None, download=False):
    """Returns the path of a file.

    Args:
        place: String. Path of the file relative to the data folder.
        others: Iterable of strings (optional). Alternative relative paths.
        data_dir: Path of the data folder (optional). Defaults to the
            environment variable `KERAS_QPSBGD_DATA`, or the user cache if the
            variable is not set.
        download: Boolean. Whether to download the file to `place` if it does
            not exist. Defaults to `False`.

    Returns:
        A `pathlib.Path`.

    Raises:
        MissingFile: If the file does not exist and `download` is `False` or
            no download source is known.
        DownloadFailed: If the download fails.
    """
    root = folder(data_dir)
    candidates = [root / path for path in (place, *others)]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    if download and place in SOURCES:
        return _download(place, root)
    names = " or ".join(dict.fromkeys(path.name for path in candidates))
    searched = ", ".join(dict.fromkeys(str(path.parent) for path in candidates))
    if place in SOURCES:
        advice = (
            "Pass `download=True` to download it, save "
            f"{SOURCES[place][0]} as {candidates[0]}"
        )
    else:
        known = ", ".join(map(repr, CITATION))
        advice = (
            "It cannot be downloaded (the citation graphs that can be "
            f"downloaded are {known}). Save it as {candidates[0]}"
        )
    raise MissingFile(
        f"A dataset file is missing: {names}. {advice}, or specify the folder "
        "that contains it with `data_dir` or the environment variable "
        f"KERAS_QPSBGD_DATA. Received: no such file in {searched}"
    )


def read(path, place):
    """Returns the content of a file as bytes, decompressed if it is `.gz`.

    Raises:
        DamagedFile: If the file cannot be decompressed, or if its content
            differs from the file published for `place`.
    """
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = _uncompressed(content)
        except (EOFError, OSError, zlib.error) as error:
            raise DamagedFile(
                f"{path} is not a complete gzip file. {what_to_do(path)} "
                f"Received: {error}"
            ) from error
    if place in SOURCES:
        check(path, SOURCES[place][1], hashlib.sha256(content).hexdigest())
    return content


def _uncompressed(content):
    with gzip.open(io.BytesIO(content)) as file:
        found = file.read(MAX_BYTES + 1)
    if len(found) > MAX_BYTES:
        raise OSError(f"more than {MAX_BYTES} bytes uncompressed")
    return found


def check(path, expected, received):
    """Raises `DamagedFile` if the two checksums differ."""
    if received != expected:
        raise DamagedFile(
            f"{path} differs from the published file, which has "
            f"sha256 {expected}. {what_to_do(path)} "
            f"Received: sha256 {received}"
        )


def what_to_do(path):
    """Returns advice for a file that is corrupt or has unexpected content."""
    return (
        "It is corrupt or a different file. To fix this, delete it and call "
        f"again with `download=True`, or save a good copy as {path}."
    )


def _download(place, root):
    from tensorflow import keras

    address, checksum = SOURCES[place]
    target = root / place
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        disk.remove_leftovers(target.parent, ".download-*")
        # In the same file system as the target, so that `os.replace` is
        # atomic.
        temporary = tempfile.mkdtemp(prefix=".download-", dir=target.parent)
        arrived = keras.utils.get_file(
            target.name,
            address,
            file_hash=checksum,
            hash_algorithm="sha256",
            cache_dir=temporary,
            cache_subdir="",
        )
        os.replace(arrived, target)
    except Exception as error:  # Keras raises bare `Exception`
        raise DownloadFailed(
            f"Failed to download {address}. Try again, or download the file "
            f"manually and save it as {target}. Received: {error}"
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return target
