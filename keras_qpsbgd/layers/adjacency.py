r"""Operations on the adjacency matrix of graph layers.

The modes are those of Spektral. The ranks of the node features `x` and of the
adjacency matrix `a` determine the mode:

| mode | `x` | `a` |
|---|---|---|
| single, disjoint | (nodes, features) | (nodes, nodes) |
| mixed | (graphs, nodes, features) | (nodes, nodes) |
| batch | (graphs, nodes, features) | (graphs, nodes, nodes) |

In each mode, `a` is a dense tensor or a `tf.SparseTensor`.
"""

import warnings

import numpy as np
import tensorflow as tf

from keras_qpsbgd import _keras

RANKS = ((2, 2), (3, 2), (3, 3))

# The most likely reason for a shape mismatch.
BATCHING_HINT = (
    "If Keras split one graph into batches, pass "
    "`batch_size=<number of nodes>` to `fit`, `evaluate` and `predict`, and "
    "`shuffle=False` to `fit`, or use a loader. "
)

# The filters \(D^{-1/2} A D^{-1/2}\) and \(D^{-1} A\) have no eigenvalue above
# 1, so the mean of their row sums, \(1^T A 1 / N\), is at most 1, and slightly
# larger if the graph is directed. Without a filter, the mean of the row sums is
# the mean degree of the graph.
MAX_MEAN_ROW_SUM = 1.5
# The approximate number of rows of a dense matrix that are checked.
CHECKED_ROWS = 64


def gcn_filter(a):
    r"""Applies the filter of Kipf and Welling, \(D^{-1/2} (A + I) D^{-1/2}\).

    \(D\) is the diagonal matrix of the row sums of \(A + I\).

    Args:
        a: NumPy array of shape `(nodes, nodes)` or `(graphs, nodes, nodes)`, or
            a SciPy sparse matrix.

    Returns:
        The filtered matrix, a sparse CSR matrix if `a` is sparse.

    Raises:
        ValueError: If `a` has another type or is not square.
    """
    if hasattr(a, "tocsr"):
        return _sparse_gcn_filter(a)
    if not isinstance(a, np.ndarray) or a.ndim not in (2, 3):
        raise ValueError(
            "`a` must be a NumPy array of rank 2 or 3, or a SciPy sparse "
            f"matrix. Received: a of type {type(a).__name__}"
        )
    _check_square(a.shape)
    a = a + np.eye(a.shape[-1], dtype=_real_dtype(a))
    scale = _inverse_root(a.sum(axis=-1))
    return scale[..., :, None] * a * scale[..., None, :]


def _sparse_gcn_filter(a):
    from scipy import sparse

    _check_square(a.shape)
    a = a.tocsr().astype(_real_dtype(a))
    a = a + sparse.eye(a.shape[0], dtype=a.dtype, format="csr")
    scale = sparse.diags(_inverse_root(np.asarray(a.sum(axis=1)).ravel()))
    a = (scale @ a @ scale).tocsr()
    a.sort_indices()
    return a


def _inverse_root(degrees):
    positive = degrees > 0
    return np.where(positive, np.where(positive, degrees, 1) ** -0.5, 0).astype(
        degrees.dtype
    )


def _real_dtype(a):
    return a.dtype if np.issubdtype(a.dtype, np.floating) else np.float32


def _check_square(shape):
    if shape[-1] != shape[-2]:
        raise ValueError(
            "`a` must be square, with one row and one column per node. "
            f"Received: a of shape {tuple(shape)}"
        )


def check_shapes(x_shape, a_shape, name):
    """Raises a `ValueError` if the known dimensions match no mode."""
    x_shape, a_shape = tuple(x_shape), tuple(a_shape)
    received = f"Received: x of shape {x_shape} and a of shape {a_shape}"
    if (len(x_shape), len(a_shape)) not in RANKS:
        raise ValueError(
            f"The inputs `[x, a]` of `{name}` must have ranks (2, 2) in single "
            "and disjoint mode, (3, 2) in mixed mode, or (3, 3) in batch mode. "
            + received
        )
    rows, columns, nodes = a_shape[-2], a_shape[-1], x_shape[-2]
    if None not in (rows, columns) and rows != columns:
        raise ValueError(
            f"The adjacency matrix `a` of `{name}` must be square, with one "
            "row and one column per node. " + BATCHING_HINT + received
        )
    known = {size for size in (rows, columns, nodes) if size is not None}
    if len(known) > 1:
        raise ValueError(
            f"`x` and `a` of `{name}` must have the same number of nodes. "
            + received
        )
    if len(a_shape) == 3 and None not in (x_shape[0], a_shape[0]):
        if x_shape[0] != a_shape[0]:
            raise ValueError(
                f"`x` and `a` of `{name}` must have the same number of "
                "graphs. " + received
            )


def static_shape(a):
    """Returns the static shape of `a`, which may be a sparse tensor.

    The static shape of a sparse tensor may lack dimensions that its
    `dense_shape` contains.
    """
    if not isinstance(a, tf.SparseTensor):
        return a.shape
    known = tf.get_static_value(a.dense_shape, partial=True)
    if known is None or a.shape.rank is None:
        return a.shape
    return a.shape.merge_with([None if d is None else int(d) for d in known])


def shape_assertions(x, a, name):
    """Returns operations that check dimensions known only at run time."""
    if tf.executing_eagerly():
        return []

    def required(shape):
        """Returns the shape that `a` must have, given the shape of `x`."""
        nodes = [shape[-2], shape[-2]]
        return [shape[0], *nodes] if len(a.shape) == 3 else nodes

    if None not in (*required(x.shape), *a.shape):
        return []
    return [
        tf.debugging.assert_equal(
            tf.cast(tf.shape(a), tf.int32),
            tf.stack(required(tf.shape(x))),
            f"`x` and `a` of `{name}` must have the same number of nodes and "
            "of graphs. "
            + BATCHING_HINT
            + "Received: first the shape of a, then the shape that x requires:",
        )
    ]


def propagate(a, x):
    """Returns the product of `a` and `x`, (..., nodes, features)."""
    if not isinstance(a, tf.SparseTensor):
        return tf.matmul(a, x)  # broadcasts `a` in mixed mode
    if x.dtype == tf.float16:
        # TensorFlow has no float16 sparse product on a CPU.
        a, x32 = tf.cast(a, tf.float32), tf.cast(x, tf.float32)
        return tf.cast(propagate(a, x32), x.dtype)
    if len(x.shape) == 2:
        return tf.sparse.sparse_dense_matmul(a, x)
    if len(a.shape) == 2:
        return _sparse_mixed(a, x)
    return _sparse_batch(a, x)


def _sparse_mixed(a, x):
    graphs, nodes, features = tf.unstack(tf.shape(x))
    columns = tf.reshape(tf.transpose(x, (1, 0, 2)), (nodes, graphs * features))
    product = tf.sparse.sparse_dense_matmul(a, columns)
    product = tf.reshape(product, (nodes, graphs, features))
    return tf.ensure_shape(tf.transpose(product, (1, 0, 2)), x.shape)


def _sparse_batch(a, x):
    """Multiplies `x` by the block-diagonal matrix of all graphs."""
    graphs, nodes, features = tf.unstack(tf.shape(x, out_type=tf.int64))
    graph, row, column = tf.unstack(a.indices, axis=1)
    union = tf.SparseTensor(
        tf.stack([graph * nodes + row, graph * nodes + column], axis=1),
        a.values,
        tf.stack([graphs * nodes, graphs * nodes]),
    )
    product = tf.sparse.sparse_dense_matmul(
        union, tf.reshape(x, (graphs * nodes, features))
    )
    return tf.ensure_shape(tf.reshape(product, tf.shape(x)), x.shape)


def _row_sums(a):
    """Returns the absolute row sums of all graphs as a vector.

    For a dense matrix, only about `CHECKED_ROWS` evenly spaced rows are summed.
    The cost is negligible compared with the product.
    """
    if not isinstance(a, tf.SparseTensor):
        stride = tf.maximum(tf.shape(a)[-2] // CHECKED_ROWS, 1)
        a = tf.cast(a[..., ::stride, :], tf.float32)
        return tf.reshape(tf.reduce_sum(tf.abs(a), axis=-1), (-1,))
    shape = a.dense_shape[:-1]
    row = a.indices[:, 0]
    if len(a.shape) == 3:
        row = row * shape[1] + a.indices[:, 1]
    values = tf.abs(tf.cast(a.values, tf.float32))
    return tf.math.unsorted_segment_sum(values, row, tf.reduce_prod(shape))


class NormalizationCheck:
    """Warns once if an adjacency matrix is not normalized.

    Raises a `ValueError` if the matrix is not finite. Both checks use the mean
    of the row sums. Only some rows of a dense matrix are checked.

    Args:
        name: String. The name of the layer, for messages.
    """

    def __init__(self, name):
        self.name = name
        self.warned = False

    def __call__(self, a):
        if _keras.inside_xla():
            return  # XLA cannot call Python
        sums = _row_sums(a)
        # Nodes without neighbors, such as padding, do not count.
        rows = tf.reduce_sum(tf.cast(sums != 0, tf.float32))
        mean = tf.math.divide_no_nan(tf.reduce_sum(sums), rows)
        if tf.executing_eagerly():
            if not mean <= MAX_MEAN_ROW_SUM:
                self.report(mean)
            return
        tf.cond(
            mean <= MAX_MEAN_ROW_SUM,
            lambda: 0,
            lambda: tf.numpy_function(self.report, [mean], tf.int32),
        )

    def report(self, mean):
        if not np.isfinite(mean):
            raise ValueError(
                f"The adjacency matrix `a` of `{self.name}` must be finite. "
                "Received: a with NaN or infinite entries"
            )
        if not self.warned:
            self.warned = True
            warnings.warn(
                f"The adjacency matrix `a` of `{self.name}` is not normalized. "
                f"The mean of its row sums is {mean:.3g}. Normalize it with "
                "`BinaryGraphConv.preprocess(a)`. A normalized matrix of a "
                "directed graph may also have such row sums. In that case, "
                "pass `check_adjacency=False`.",
                stacklevel=2,
            )
        return np.int32(0)
