"""Citation graphs in the Planetoid format: Cora, PubMed, Citeseer.

Z. Yang, W. W. Cohen and R. Salakhutdinov, Revisiting Semi-Supervised Learning
with Graph Embeddings, ICML 2016. A graph is stored in eight files
`ind.<name>.<part>`:

| part | content |
| --- | --- |
| `x`, `y` | features and one-hot classes of the training nodes 0, 1, ... |
| `allx`, `ally` | same for all nodes except test nodes, `x` and `y` first |
| `tx`, `ty` | same for the test nodes |
| `test.index` | node numbers of the rows of `tx`, as text |
| `graph` | neighbors of each node, `{node: [node, ...]}` |

Some node numbers among the test nodes may be missing from `test.index`, as in
Citeseer. Those nodes have no features and no class.
"""

import os

import numpy as np

from keras_qpsbgd.datasets import files
from keras_qpsbgd.datasets import graph_data
from keras_qpsbgd.datasets import safe_pickle
from keras_qpsbgd.datasets.graph_data import GraphData

NAMES = tuple(files.CITATION)
VALIDATION_NODES = 500


def citation(
    name: str,
    data_dir: str | os.PathLike | None = None,
    download: bool = False,
    normalize_x: bool = False,
) -> GraphData:
    """Loads a citation graph with the Planetoid split.

    Nodes are papers, features are their words, and edges are citations in
    either direction. The split has 20 training nodes per class, the following
    500 nodes for validation, and 1,000 other nodes for testing. As in Spektral,
    duplicate edges and self-loops are removed.

    Args:
        name: String. `"cora"`, `"pubmed"` or `"citeseer"` (not case-sensitive),
            or the name of other data in the same format. Other data cannot be
            downloaded.
        data_dir: Path of the data folder (optional). The files `ind.<name>.*`
            are in the folder itself or in its subfolder `Citation/<name>` or
            `<name>`. Defaults to the environment variable `KERAS_QPSBGD_DATA`,
            or the user cache if the variable is not set.
        download: Boolean. Whether to download missing files. Defaults to
            `False`.
        normalize_x: Boolean. Whether to divide the features of each node by
            their sum. Defaults to `False`.

    Returns:
        A `GraphData` with sparse features.

    Raises:
        MissingFile: If a file is missing and `download` is `False`.
        DamagedFile: If a file is corrupt, or if the files do not match.
        DownloadFailed: If a download fails.

    Example:
        ```python
        keras_qpsbgd.datasets.citation("cora", download=True)
        # GraphData('cora', 2708 nodes, 5278 edges, 1433 features, 7 classes,
        # 140/500/1000)
        ```

    Reference:
        - [Yang et al., 2016](https://arxiv.org/abs/1603.08861)
    """
    graph_data.import_sparse()
    if not isinstance(name, str) or os.path.basename(name) != name or not name:
        raise ValueError(
            f"`name` must be one of {', '.join(map(repr, NAMES))}, or the "
            "<name> in other files `ind.<name>.*` (pass their folder as "
            f"`data_dir`). Received: name={name!r}"
        )
    if name.lower() in NAMES:
        name = name.lower()
    parts = {
        part: _Part(name, part, data_dir, download) for part in files.PARTS
    }
    x, labels = parts["x"].features(), parts["y"].labels()
    all_x, all_labels = parts["allx"].features(), parts["ally"].labels()
    test_x, test_labels = parts["tx"].features(), parts["ty"].labels()
    for features, classes, key in (
        (x, labels, "y"),
        (all_x, all_labels, "ally"),
        (test_x, test_labels, "ty"),
    ):
        parts[key].require(
            features.shape[0] == len(classes),
            f"must have a row for each of the {features.shape[0]} rows of "
            "features",
            f"{len(classes)} rows",
        )
    for features, key in ((x, "x"), (test_x, "tx")):
        parts[key].require(
            features.shape[1] == all_x.shape[1],
            f"must have {all_x.shape[1]} columns, like `allx`",
            f"{features.shape[1]} columns",
        )
    num_train, num_known = len(labels), len(all_labels)
    parts["x"].require(
        num_train <= num_known,
        f"must have no more rows than `allx`, which has {num_known}",
        f"{num_train} rows",
    )

    test_nodes = parts["test.index"].nodes(num_known, len(test_labels))
    num_nodes = int(test_nodes.max()) + 1
    # The last row is for nodes without features and class.
    row = np.full(num_nodes, num_known + len(test_nodes))
    row[:num_known] = np.arange(num_known)
    row[test_nodes] = num_known + np.arange(len(test_nodes))
    x = _stack(all_x, test_x)[row]
    y = np.concatenate([all_labels, test_labels, [-1]])[row].astype("int32")
    if normalize_x:
        x = _normalize(x)
    first, second = parts["graph"].edges(num_nodes)
    return graph_data.GraphData(
        name=name,
        x=x,
        a=graph_data.adjacency(first, second, num_nodes),
        y=y,
        train_mask=_mask(slice(num_train), num_nodes),
        val_mask=_mask(
            slice(num_train, min(num_train + VALIDATION_NODES, num_known)),
            num_nodes,
        ),
        test_mask=_mask(test_nodes, num_nodes),
    )


class _Part:
    """One of the eight files, read and checked."""

    def __init__(self, name, part, data_dir, download):
        file = f"ind.{name}.{part}"
        place = f"Citation/{name}/{file}"
        others = [f"{name}/{file}", file]
        self.path = files.find(place, others, data_dir, download)
        self.content = files.read(self.path, place)

    def require(self, condition, expected, received):
        if not condition:
            raise files.DamagedFile(
                f"{self.path} {expected}. Download or create the file again. "
                f"Received: {received}"
            )

    def features(self):
        """Returns the features, a float32 matrix of shape (rows, F)."""
        sparse = graph_data.import_sparse()
        found = safe_pickle.load(self.content, self.path)
        self._require_matrix(sparse.issparse(found), found, "`csr_matrix`")
        found = sparse.csr_matrix(found, dtype="float32")
        self.require(
            np.isfinite(found.data).all(),
            "must have finite features",
            "infinite or NaN features",
        )
        found.sum_duplicates()
        found.eliminate_zeros()
        return found

    def labels(self):
        """Returns the class of each one-hot row, -1 if the row is zero."""
        found = safe_pickle.load(self.content, self.path)
        self._require_matrix(isinstance(found, np.ndarray), found, "array")
        ones = (found == 1).sum(axis=1)
        self.require(
            ((found == 0) | (found == 1)).all() and (ones <= 1).all(),
            "must have one-hot rows or rows of zeros",
            "other rows",
        )
        return np.where(ones == 1, found.argmax(axis=1), -1)

    def nodes(self, start, count):
        """Returns the test nodes, which are numbered from `start` on."""
        try:
            lines = self.content.decode("ascii").split()
            found = np.array([int(line) for line in lines], "int64")
        except (OverflowError, ValueError) as error:
            self.require(False, "must have one node number per line", error)
        self.require(
            len(found) == count > 0,
            f"must have a line for each of the {count} rows of `tx`",
            f"{len(found)} lines",
        )
        self.require(
            len(np.unique(found)) == len(found),
            "must not list a node twice",
            f"{len(found) - len(np.unique(found))} duplicates",
        )
        # Without this limit, one wrong number could exhaust the memory.
        stop = 2 * (start + count)
        self.require(
            found.min() >= start and found.max() < stop,
            f"must have node numbers from {start} (the number of rows of "
            f"`allx`) to {stop - 1} (less than twice the number of known "
            "nodes)",
            f"numbers from {found.min()} to {found.max()}",
        )
        return found

    def edges(self, num_nodes):
        """Returns the two endpoints of all edges."""
        found = safe_pickle.load(self.content, self.path)
        self.require(
            isinstance(found, dict)
            and all(type(node) is int for node in found)
            and all(type(ends) is list for ends in found.values())
            and all(type(e) is int for ends in found.values() for e in ends),
            "must have a dictionary from nodes to lists of nodes, all integers",
            f"{type(found).__name__} with other content",
        )
        total = sum(len(ends) for ends in found.values())
        # Each neighbor takes at least one byte, unless nodes share one list.
        self.require(
            total <= len(self.content),
            "must have a separate list for every node",
            f"{total} neighbors in {len(self.content)} bytes",
        )
        outside = [
            node
            for start, ends in found.items()
            for node in (start, *ends)
            if not 0 <= node < num_nodes
        ]
        self.require(
            not outside,
            f"must have nodes from 0 to {num_nodes - 1}",
            f"node {outside[:1]}",
        )
        lengths = [len(ends) for ends in found.values()]
        first = np.repeat(np.array(list(found), "int64"), lengths)
        second = [node for ends in found.values() for node in ends]
        return first, np.array(second, "int64")

    def _require_matrix(self, condition, found, kind):
        self.require(
            condition and found.ndim == 2 and min(found.shape) > 0,
            f"must have a {kind} with rows and columns",
            f"{type(found).__name__} of shape {getattr(found, 'shape', None)}",
        )


def _stack(all_x, test_x):
    sparse = graph_data.import_sparse()
    empty = sparse.csr_matrix((1, all_x.shape[1]), dtype="float32")
    return sparse.vstack([all_x, test_x, empty], format="csr")


def _normalize(x):
    sparse = graph_data.import_sparse()
    sums = np.asarray(x.sum(axis=1)).ravel()
    inverse = np.divide(1, sums, out=np.zeros_like(sums), where=sums != 0)
    return sparse.csr_matrix(sparse.diags(inverse) @ x, dtype="float32")


def _mask(nodes, num_nodes):
    mask = np.zeros(num_nodes, bool)
    mask[nodes] = True
    return mask
