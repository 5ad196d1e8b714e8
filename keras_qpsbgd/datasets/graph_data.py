"""One graph with features, labels and a split of its nodes."""

import dataclasses
import os
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GraphData:
    """A graph for node classification.

    `N` is the number of nodes and `F` the number of features.

    Args:
        name: String. Name of the dataset.
        x: NumPy array or `scipy.sparse.csr_matrix` of shape `(N, F)`, float32.
            Node features.
        a: `scipy.sparse.csr_matrix` of shape `(N, N)`, float32. Adjacency
            matrix.
        y: Integer array of shape `(N,)`. Node classes, -1 for unknown classes.
        train_mask: Boolean array of shape `(N,)`. Training nodes.
        val_mask: Boolean array of shape `(N,)`. Validation nodes.
        test_mask: Boolean array of shape `(N,)`. Test nodes.

    Example:
        ```python
        keras_qpsbgd.datasets.karate()
        # GraphData('karate', 34 nodes, 78 edges, 6 features, 4 classes,
        # 20/0/14)
        ```
    """

    name: str
    x: Any
    a: Any
    y: np.ndarray
    train_mask: np.ndarray
    val_mask: np.ndarray
    test_mask: np.ndarray

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.x.shape[0]

    @property
    def num_features(self) -> int:
        """Number of features per node."""
        return self.x.shape[1]

    @property
    def num_edges(self) -> int:
        """Number of undirected edges, including self-loops."""
        loops = np.count_nonzero(self.a.diagonal())
        return int(self.a.nnz + loops) // 2

    @property
    def num_classes(self) -> int:
        """Number of classes: the largest class in `y` plus 1."""
        return int(self.y.max()) + 1

    def to_spektral(self, transforms: Any = None) -> Any:
        """Converts the graph to a Spektral dataset.

        The dataset has the same form as `spektral.datasets.Citation`: one
        `Graph` with dense features and one-hot labels (all zeros for unknown
        classes), and the attributes `mask_tr`, `mask_va` and `mask_te`. The
        dataset folders of Spektral are neither read nor written.

        Args:
            transforms: Callable or list of callables (optional). Applied to the
                graph, as in `spektral.data.Dataset`. Defaults to `None`.

        Returns:
            A `spektral.data.Dataset`.

        Raises:
            ImportError: If Spektral is not installed.

        Example:
            ```python
            dataset = keras_qpsbgd.datasets.citation("cora").to_spektral(
                transforms=[LayerPreprocess(GCNConv)]
            )
            loader = SingleLoader(dataset, sample_weights=dataset.mask_tr)
            ```
        """
        try:
            from spektral.data import Dataset
            from spektral.data import Graph
        except ImportError as error:
            raise ImportError(
                "`to_spektral` requires Spektral. Install it with "
                '`python -m pip install "keras_qpsbgd[spektral]"`. '
                f"Received: {error}"
            ) from error

        x = self.x if isinstance(self.x, np.ndarray) else self.x.toarray()
        y = np.zeros((self.num_nodes, self.num_classes), "float32")
        known = np.flatnonzero(self.y >= 0)
        y[known, self.y[known]] = 1.0
        # Copies, because transforms may modify the graph in place.
        graph = Graph(x=x.astype("float32"), a=self.a.copy(), y=y)

        class NodeDataset(Dataset):
            # An existing path, so that Spektral does not call `download`.
            path = os.curdir

            def read(self):
                return [graph]

        return NodeDataset(
            transforms=transforms,
            name=self.name,
            mask_tr=self.train_mask.copy(),
            mask_va=self.val_mask.copy(),
            mask_te=self.test_mask.copy(),
        )

    def __repr__(self):
        split = "/".join(
            str(np.count_nonzero(mask))
            for mask in (self.train_mask, self.val_mask, self.test_mask)
        )
        return (
            f"GraphData({self.name!r}, {self.num_nodes} nodes, "
            f"{self.num_edges} edges, {self.num_features} features, "
            f"{self.num_classes} classes, {split})"
        )


def import_sparse():
    """Returns `scipy.sparse`, or raises an error with the install command."""
    try:
        from scipy import sparse
    except ImportError as error:
        raise ImportError(
            "Graph datasets require SciPy. Install it with "
            '`python -m pip install "keras_qpsbgd[datasets]"`. '
            f"Received: {error}"
        ) from error
    return sparse


def adjacency(first, second, num_nodes):
    """Returns a symmetric 0/1 matrix without self-loops and duplicates."""
    sparse = import_sparse()
    first, second = np.asarray(first), np.asarray(second)
    apart = first != second
    first, second = first[apart], second[apart]
    rows = np.concatenate([first, second])
    columns = np.concatenate([second, first])
    ones = np.ones(len(rows), "float32")
    a = sparse.csr_matrix((ones, (rows, columns)), (num_nodes, num_nodes))
    a.data[:] = 1.0
    return a
