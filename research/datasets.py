"""Data sets of the experiments: karate club, Cora, PubMed, Adult, MNIST.

All files are in one folder: `data_dir` if given, else the environment variable
`KERAS_QPSBGD_DATA` if set, else the folder `datasets` in the user cache. Its
layout is:

```
mnist.npz
adult/a1a  adult/a1a.t              or compressed: adult/a1a.gz ...
Citation/cora/ind.cora.x  ...       as in Spektral
```

Every file is checked against its SHA-256 before it is used, so the pickles of
the citation graphs are the published ones. Missing files are downloaded with
`download=True`. Existing files are never replaced.
"""

import gzip
import hashlib
import io
import os
import pathlib
import pickle
import warnings
from typing import Any
from typing import NamedTuple

import numpy as np
from platformdirs import user_cache_dir
from scipy import sparse
from sklearn.datasets import load_svmlight_file
from tensorflow import keras

PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
VALIDATION_NODES = 500
ADULT_FEATURES = 123
MNIST_KEYS = ("x_train", "y_train", "x_test", "y_test")
# Of the arrays (see `checksum`), because archives of the same arrays differ.
MNIST_SHA256 = (
    "52cd6c10ae77107af32269dd9d10ca19c1b749e83235a0c75e2f0729ebeaf141"
)

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

# The four groups of the karate club with maximum modularity, one digit per
# member.
KARATE_GROUPS = "1111333100311100310101022202200200"


class MissingFile(FileNotFoundError):
    """Raised if a file is missing. The message explains how to get it."""


class DamagedFile(ValueError):
    """Raised if a file is not the published one."""


class GraphData(NamedTuple):
    """A graph for node classification, with N nodes and F features.

    Attributes:
        name: String. Name of the data set.
        x: Array or `csr_matrix` of shape `(N, F)`, float32. Node features.
        a: `csr_matrix` of shape `(N, N)`, float32. Adjacency matrix.
        y: Integer array of shape `(N,)`. Classes.
        train_mask: Boolean array of shape `(N,)`. Training nodes.
        val_mask: Boolean array of shape `(N,)`. Validation nodes.
        test_mask: Boolean array of shape `(N,)`. Test nodes.
    """

    name: str
    x: Any
    a: Any
    y: np.ndarray
    train_mask: np.ndarray
    val_mask: np.ndarray
    test_mask: np.ndarray

    @property
    def num_nodes(self):
        """Number of nodes."""
        return self.x.shape[0]

    @property
    def num_features(self):
        """Number of features per node."""
        return self.x.shape[1]

    @property
    def num_classes(self):
        """Number of classes: the largest class plus 1."""
        return int(self.y.max()) + 1


def adult(data_dir=None, download=False):
    """Loads UCI Adult from LIBSVM, with 1,605 training and 30,956 test rows.

    Returns:
        `(x_train, y_train), (x_test, y_test)`. The features are float32 arrays
        of shape `(rows, 123)` with entries 0 and 1. The classes are 1 for
        people who earn more than 50,000 dollars and 0 for the others.
    """
    return tuple(
        _adult_rows(place, data_dir, download)
        for place in ("adult/a1a", "adult/a1a.t")
    )


def _adult_rows(place, data_dir, download):
    path = find(place, data_dir, download)
    x, labels = load_svmlight_file(
        io.BytesIO(_read(path, place)),
        n_features=ADULT_FEATURES,
        dtype="float32",
        zero_based=False,
    )
    return x.toarray(), (labels > 0).astype("int32")


def mnist(data_dir=None, download=False):
    """Loads MNIST as `keras.datasets.mnist.load_data()` does.

    It accepts any archive with the same arrays.
    """
    path = find("mnist.npz", data_dir, download)
    with np.load(path, allow_pickle=False) as file:
        arrays = [file[key] for key in MNIST_KEYS]
    _check(path, MNIST_SHA256, checksum(arrays))
    x_train, y_train, x_test, y_test = arrays
    return (x_train, y_train), (x_test, y_test)


def checksum(arrays):
    """Returns the SHA-256 of the dtypes, shapes and contents of arrays."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(np.ascontiguousarray(array))
    return total.hexdigest()


def karate(train_per_class=5, seed=0):
    """Loads Zachary's karate club with a random split.

    The classes are the four groups with maximum modularity. Every class gets
    the same number of training nodes. All other nodes are test nodes. Each node
    has six features, as the network of the paper expects: the node number in
    binary with the highest bit first, as +1 and -1.

    Args:
        train_per_class: Integer. Number of training nodes in each class.
            Defaults to `5`, as in the paper.
        seed: Integer. Seed of the split. Defaults to `0`.
    """
    import networkx

    y = np.array([int(digit) for digit in KARATE_GROUPS], "int32")
    rng = np.random.default_rng(seed)
    train_mask = np.zeros(len(y), bool)
    for k in range(y.max() + 1):
        members = np.flatnonzero(y == k)
        train_mask[rng.choice(members, train_per_class, replace=False)] = True
    bits = np.arange(len(y))[:, None] >> np.arange(5, -1, -1) & 1
    pairs = networkx.karate_club_graph().edges
    return GraphData(
        name="karate",
        x=(2 * bits - 1).astype("float32"),
        a=_adjacency(*zip(*pairs), len(y)),
        y=y,
        train_mask=train_mask,
        val_mask=np.zeros(len(y), bool),
        test_mask=~train_mask,
    )


def citation(name, data_dir=None, download=False):
    """Loads Cora or PubMed with the Planetoid split.

    The split has 20 training nodes per class, the following 500 nodes for
    validation, and 1,000 other nodes for testing. As in Spektral, duplicate
    edges and self-loops are removed. The features of each node are divided by
    their sum.

    Args:
        name: String. `"cora"` or `"pubmed"`.
        data_dir: Path of the data folder (optional).
        download: Boolean. Whether to download missing files. Defaults to
            `False`.

    Returns:
        A `GraphData` with sparse features.

    Reference:
        - [Yang et al., 2016](https://arxiv.org/abs/1603.08861)
    """
    parts = {}
    for part in PARTS:
        place = f"Citation/{name}/ind.{name}.{part}"
        content = _read(find(place, data_dir, download), place)
        parts[part] = (
            np.array(content.split(), "int64")
            if part == "test.index"
            else _unpickled(content)
        )
    num_train, num_known = len(parts["y"]), len(parts["ally"])
    test_nodes = parts["test.index"]
    num_nodes = num_known + len(test_nodes)
    # The test nodes are listed in another order than their features.
    row = np.arange(num_nodes)
    row[test_nodes] = num_known + np.arange(len(test_nodes))
    x = sparse.vstack([parts["allx"], parts["tx"]], format="csr")[row]
    x = sparse.csr_matrix(x, dtype="float32")
    x.sum_duplicates()
    x.eliminate_zeros()
    sums = np.asarray(x.sum(axis=1)).ravel()
    inverse = np.divide(1, sums, out=np.zeros_like(sums), where=sums != 0)
    x = sparse.csr_matrix(sparse.diags(inverse) @ x, dtype="float32")
    one_hot = np.concatenate([parts["ally"], parts["ty"]])
    y = one_hot.argmax(axis=1)[row].astype("int32")
    pairs = [(i, j) for i, ends in parts["graph"].items() for j in ends]
    validation = slice(num_train, min(num_train + VALIDATION_NODES, num_known))
    return GraphData(
        name=name,
        x=x,
        a=_adjacency(*zip(*pairs), num_nodes),
        y=y,
        train_mask=_mask(slice(num_train), num_nodes),
        val_mask=_mask(validation, num_nodes),
        test_mask=_mask(test_nodes, num_nodes),
    )


def _unpickled(content):
    with warnings.catch_warnings():
        # The files have the module names of old versions.
        warnings.simplefilter("ignore")
        return pickle.loads(content, encoding="latin1")


def _adjacency(first, second, num_nodes):
    """Returns a symmetric 0/1 matrix without self-loops and duplicates."""
    first, second = np.asarray(first), np.asarray(second)
    apart = first != second
    first, second = first[apart], second[apart]
    rows = np.concatenate([first, second])
    columns = np.concatenate([second, first])
    ones = np.ones(len(rows), "float32")
    a = sparse.csr_matrix((ones, (rows, columns)), (num_nodes, num_nodes))
    a.data[:] = 1.0
    return a


def _mask(nodes, num_nodes):
    mask = np.zeros(num_nodes, bool)
    mask[nodes] = True
    return mask


def find(place, data_dir=None, download=False):
    """Returns the path of a file, or of the same file compressed as `.gz`.

    Args:
        place: String. Path of the file relative to the data folder.
        data_dir: Path of the data folder (optional).
        download: Boolean. Whether to download the file to `place` if it does
            not exist. Defaults to `False`.

    Raises:
        MissingFile: If the file does not exist, and `download` is `False` or
            the source is not known.
    """
    root = _folder(data_dir)
    candidates = [root / place, root / f"{place}.gz"]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    if download and place in SOURCES:
        address, sha256 = SOURCES[place]
        # Keras downloads to another folder if this one does not exist.
        candidates[0].parent.mkdir(parents=True, exist_ok=True)
        found = keras.utils.get_file(
            candidates[0].name,
            address,
            file_hash=sha256,
            hash_algorithm="sha256",
            cache_dir=str(candidates[0].parent),
            cache_subdir="",
        )
        return pathlib.Path(found)
    raise MissingFile(
        "A data file is missing. Pass `download=True`, save it as "
        f"{candidates[0]}, or pass its folder as `data_dir` or in the "
        f"environment variable KERAS_QPSBGD_DATA. Received: {place}"
    )


def _folder(data_dir):
    given = data_dir or os.environ.get("KERAS_QPSBGD_DATA")
    if given:
        return pathlib.Path(given).expanduser()
    return cache_folder() / "datasets"


def cache_folder():
    """Returns the folder that keeps datasets between runs.

    Returns:
        `KERAS_QPSBGD_CACHE` if it is set, otherwise a folder in the cache
        folder of the system.
    """
    if os.environ.get("KERAS_QPSBGD_CACHE"):
        return pathlib.Path(os.environ["KERAS_QPSBGD_CACHE"]).expanduser()
    return pathlib.Path(user_cache_dir("keras_qpsbgd"))


def _read(path, place):
    """Returns the content of a file, decompressed if it is `.gz`."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    _check(path, SOURCES[place][1], hashlib.sha256(content).hexdigest())
    return content


def _check(path, expected, received):
    if received != expected:
        raise DamagedFile(
            f"{path} differs from the published file, which has sha256 "
            f"{expected}. Delete it and call again with `download=True`. "
            f"Received: sha256 {received}"
        )
