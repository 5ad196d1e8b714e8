"""One graph with features, labels and a split of its nodes."""

import dataclasses
import os
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GraphData:
    """A graph whose nodes are to be classified.

    Args:
        name: what the data set is called.
        x: features of the nodes, (N, F) float32, a NumPy array or a
            `scipy.sparse.csr_matrix`.
        a: adjacency, (N, N) `scipy.sparse.csr_matrix`, float32.
        y: classes of the nodes, (N,) integers; -1 where none is known.
        train_mask: (N,) bool, and so are the next two.
        val_mask: nodes to validate on.
        test_mask: nodes to test on.

    Example:

    >>> keras_qpsbgd.datasets.karate()
    GraphData('karate', 34 nodes, 78 edges, 6 features, 4 classes, 20/0/14)
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
        return self.x.shape[0]

    @property
    def num_features(self) -> int:
        return self.x.shape[1]

    @property
    def num_edges(self) -> int:
        """Number of undirected edges, loops included."""
        loops = np.count_nonzero(self.a.diagonal())
        return int(self.a.nnz + loops) // 2

    @property
    def num_classes(self) -> int:
        """One more than the highest class."""
        return int(self.y.max()) + 1

    def to_spektral(self, transforms: Any = None) -> Any:
        """The graph as Spektral's own `Citation` holds it.

        It has one `Graph`, with dense features and one-hot labels (zeros where
        no class is known), and the attributes `mask_tr`, `mask_va`, `mask_te`.
        Spektral's folders are not touched.

        Args:
            transforms: as in `spektral.data.Dataset`: a callable, or a list of
                them, that is applied to the graph.

        Returns:
            A `spektral.data.Dataset`.

        Example:

        >>> dataset = keras_qpsbgd.datasets.citation("cora").to_spektral(
        ...     transforms=[LayerPreprocess(GCNConv)]
        ... )
        >>> loader = SingleLoader(dataset, sample_weights=dataset.mask_tr)
        """
        try:
            from spektral.data import Dataset
            from spektral.data import Graph
        except ImportError as error:
            raise ImportError(
                "`to_spektral` needs Spektral "
                '(`python -m pip install "keras_qpsbgd[spektral]"`). '
                f"Received: {error}"
            ) from error

        x = self.x if isinstance(self.x, np.ndarray) else self.x.toarray()
        y = np.zeros((self.num_nodes, self.num_classes), "float32")
        known = np.flatnonzero(self.y >= 0)
        y[known, self.y[known]] = 1.0
        # Transforms may work in place; the data stay as they are.
        graph = Graph(x=x.astype("float32"), a=self.a.copy(), y=y)

        class NodeDataset(Dataset):
            # Spektral downloads what is missing at `path`: nothing is.
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
    """`scipy.sparse`, or an error that says what to install."""
    try:
        from scipy import sparse
    except ImportError as error:
        raise ImportError(
            "Graphs need SciPy "
            '(`python -m pip install "keras_qpsbgd[datasets]"`). '
            f"Received: {error}"
        ) from error
    return sparse


def adjacency(first, second, num_nodes):
    """The symmetric 0/1 matrix of edges, without loops and repetitions."""
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
