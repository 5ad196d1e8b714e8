r"""The formulas of a QP-SBGD step, as TensorFlow operations.

One binary layer multiplies rows \(X\) (`rows`, \(B \times n\)) with
\(W = \mathrm{sign}(\Omega)\) and receives the gradient \(V\)
(`row_gradients`, \(B \times m\)) of the loss with respect to \(R = XW\).
From these the paper's Definition 1 makes one quadratic unconstrained binary
problem per column \(j\),

$$\min_{g \in \{-1,+1\}^n} \sum_b (v_{bj} - z_b^T g)^2
  = g^T Q g + s_j^T g + \mathrm{offset}_j ,$$

with the normalised rows \(z_b = x_b / \lVert x_b \rVert^2\), the couplings
\(Q = \sum_b z_b z_b^T\), shared by all columns, the fields
\(s_j = -2 \sum_b v_{bj} z_b\) and \(\mathrm{offset}_j = \sum_b v_{bj}^2\).

Reference: Krahn et al., "Projected Stochastic Gradient Descent with Quantum
Annealed Binary Gradients", BMVC 2024, https://arxiv.org/abs/2310.15128
"""

import math
from typing import NamedTuple
from typing import Optional

import tensorflow as tf

# Share of its terms below which a field, summed in float32, is rounding error.
FIELD_ROUNDING = 2.0**-22
# The same for sums over the outputs of a layer: at least this, and four units
# in the last place. Where a probability is close to 1, its difference to 1 has
# lost most of its digits.
SUM_ROUNDING = 2.0**-7
# The distance of 1 to the next number.
EPSILON = {
    tf.float64: 2.0**-52,
    tf.float32: 2.0**-23,
    tf.float16: 2.0**-10,
    tf.bfloat16: 2.0**-7,
}


class Problem(NamedTuple):
    """The QUBOs of one layer as tensors: `m` columns, `n` variables each.

    In the `gram` form `couplings` is set; in the `rows` form, for wide layers,
    `normalized_rows` and `row_gradients` are, and no n x n matrix exists. Where
    the rows of a `gram` problem are at hand they are there too: some backends
    have a use for them.
    """

    couplings: Optional[tf.Tensor]  # n x n
    fields: tf.Tensor  # n x m
    offset: tf.Tensor  # m
    normalized_rows: Optional[tf.Tensor] = None  # B x n
    row_gradients: Optional[tf.Tensor] = None  # B x m
    start: Optional[tf.Tensor] = None  # n x m, states to start a search from


class Statistics(NamedTuple):
    """What the gradient scales need to know about the rows of one update."""

    max_gradient: tf.Tensor  # max |V|
    kept_rows: tf.Tensor  # rows with a non-zero gradient
    row_norms: tf.Tensor  # sum of the l1 norms of the kept normalised rows
    batch: tf.Tensor  # leading dimensions of the layer's inputs


def sign(x):
    """Sign with `sign(0) = +1`, so that every weight is +1 or -1."""
    return tf.where(x >= 0, tf.constant(1, x.dtype), tf.constant(-1, x.dtype))


@tf.custom_gradient
def binarize(kernel):
    """`sign(kernel)` forward, identity backward (straight-through)."""
    return sign(kernel), lambda upstream: upstream


def hard_tanh(x):
    """The paper's activation: clips `x` to [-1, 1]."""
    return tf.clip_by_value(x, -1.0, 1.0)


def to_dense(sparse):
    """The dense tensor of a sparse one, with entries in any order.

    Repeated entries are summed, as sparse products do. `tf.sparse.to_dense`
    raises in both cases.
    """
    shape = tf.cast(sparse.dense_shape, sparse.indices.dtype)
    dense = tf.scatter_nd(sparse.indices, sparse.values, shape)
    return tf.ensure_shape(dense, sparse.shape)


def without_rounding_noise(gradient, upstream, binary_kernel, feature_axis):
    r"""The gradient of a layer's inputs, zero where it is rounding noise.

    With weights of +1 and -1 the gradient of input \(j\) is
    \(\sum_k \pm v_{bk}\). If all weights that go out of it are equal, that is
    \(\pm \sum_k v_{bk}\), which is zero before a softmax. In floating-point
    arithmetic a rounding error remains, of another value for another order of
    summation. The layer below would take it for a gradient: the size of a
    gradient does not matter to a binary step. So such inputs get zero if these
    sums are small compared with what they are sums of.

    Args:
        gradient: gradient of the inputs.
        upstream: V, the gradient of the product.
        binary_kernel: the weights, inputs along the last axis but one.
        feature_axis: axis of the inputs in `gradient` and, if it is not the
            last one, of the outputs in `upstream`.
    """
    rank = gradient.shape.rank
    others = list(range(len(binary_kernel.shape)))
    others.pop(-2)
    outgoing = math.prod(binary_kernel.shape[axis] for axis in others)
    equal = tf.abs(tf.reduce_sum(binary_kernel, others)) >= outgoing
    upstream = tf.cast(upstream, tf.float32)
    sums = tf.reduce_sum(upstream, 1 if feature_axis == 1 else -1)
    limit = max(SUM_ROUNDING, 4 * EPSILON[gradient.dtype])
    # Strictly: infinite terms hide nothing.
    cancelled = tf.nn.l2_loss(sums) < limit**2 * tf.nn.l2_loss(upstream)
    noise = equal & cancelled
    if feature_axis != rank - 1:
        noise = tf.reshape(noise, [-1] + [1] * (rank - 1 - feature_axis))
    return tf.where(noise, tf.zeros((), gradient.dtype), gradient)


def may_cancel(outgoing):
    """Whether this many random weights of +1 and -1 are ever all equal.

    With more than 32 of them it does not happen; with one there is no sum.
    """
    return 1 < outgoing <= 32


def row_weights(rows):
    r"""Weights of the rows in couplings and fields, shape (B, 1).

    Couplings are \(\sum_b w_b^2 x_b x_b^T\), fields are
    \(-2 \sum_b w_b v_{bj} x_b\); the paper's normalisation is
    \(w_b = 1 / \lVert x_b \rVert^2\). All-zero rows get weight zero. Rows
    whose norm overflows get NaN: with a weight of zero they would be left out
    silently.
    """
    squares = tf.reduce_sum(tf.square(rows), axis=1, keepdims=True)
    weights = tf.math.divide_no_nan(1.0, squares)
    return tf.where(tf.math.is_inf(squares), math.nan, weights)


class LayerCall(NamedTuple):
    """What one call of a layer leaves in a backward pass."""

    rows: tf.Tensor  # B x n
    row_gradients: tf.Tensor  # B x m
    kept: Optional[tf.Tensor]  # B x 1, or `None`: rows with a gradient
    batch: tf.Tensor  # scalar, the leading dimension of the layer's input


def scale_call(call, factor):
    """The call with `factor` times its row gradients."""
    if isinstance(factor, float) and factor == 1.0:
        return call
    gradients = tf.cast(call.row_gradients, tf.float32)
    return call._replace(row_gradients=gradients * factor)


def kept_rows(row_gradients, kept=None):
    """Rows that enter the problem, 1 or 0, shape (B, 1).

    A row whose gradient is zero along the whole last axis says nothing about
    the update (a masked sample, a node outside the batch).
    """
    if kept is None:
        kept = tf.reduce_any(row_gradients != 0, axis=1, keepdims=True)
    return tf.cast(kept, tf.float32)


class CallRows(NamedTuple):
    """Normalised rows and gradients of one call of a layer, float32."""

    normalized_rows: tf.Tensor  # B x n, zero where not kept
    row_gradients: tf.Tensor  # B x m
    kept: tf.Tensor  # B x 1, 1 or 0
    batch: tf.Tensor  # scalar


def normalize(rows, row_gradients, kept=None, *, batch):
    """`CallRows` of one call of a layer.

    Rows that are not kept are set to zero and drop out of couplings and fields.

    Args:
        rows: (B, n), what the kernel is multiplied with.
        row_gradients: (B, m).
        kept: (B, 1), which rows to keep; `None` means those with a gradient.
        batch: scalar, the leading dimension of the layer's input.
    """
    rows = tf.cast(rows, tf.float32)
    row_gradients = tf.cast(row_gradients, tf.float32)
    kept = kept_rows(row_gradients, kept)
    return CallRows(
        rows * (row_weights(rows) * kept),
        row_gradients,
        kept,
        tf.cast(batch, tf.float32),
    )


def statistics(call):
    """`Statistics` of one call."""
    return Statistics(
        max_gradient=tf.reduce_max(tf.abs(call.row_gradients)),
        kept_rows=tf.reduce_sum(call.kept),
        row_norms=tf.reduce_sum(tf.abs(call.normalized_rows)),
        batch=call.batch,
    )


def fields(normalized_rows, row_gradients):
    """s = -2 Z'V, shape (n, m)."""
    return -2.0 * tf.matmul(normalized_rows, row_gradients, transpose_a=True)


def gram_problem(normalized_rows, row_gradients):
    """The problem as sums over rows (small and middle layers)."""
    return Problem(
        couplings=tf.matmul(normalized_rows, normalized_rows, transpose_a=True),
        fields=fields(normalized_rows, row_gradients),
        offset=tf.reduce_sum(tf.square(row_gradients), axis=0),
    )


def rows_problem(normalized_rows, row_gradients):
    """The problem by its rows, for wide layers: no n x n matrix."""
    return Problem(
        couplings=None,
        fields=fields(normalized_rows, row_gradients),
        offset=tf.reduce_sum(tf.square(row_gradients), axis=0),
        normalized_rows=normalized_rows,
        row_gradients=row_gradients,
    )


def coupling_diagonal(problem):
    """Diagonal of Q, shape (n,), in either form."""
    if problem.couplings is not None:
        return tf.linalg.diag_part(problem.couplings)
    return tf.reduce_sum(tf.square(problem.normalized_rows), axis=0)


def scale_problem(problem, factor):
    """The problem for gradients `factor * V`; the couplings stay."""
    gradients = problem.row_gradients
    return problem._replace(
        fields=problem.fields * factor,
        offset=problem.offset * tf.square(factor),
        row_gradients=None if gradients is None else gradients * factor,
    )


def random_energy(problem):
    """Mean energy of a random state, offset + tr Q, shape (m,)."""
    return problem.offset + tf.reduce_sum(coupling_diagonal(problem))


def never_ascend(states, problem_fields):
    """Replaces a column g with s'g > 0 by -g, whose energy is lower."""
    ascent = tf.reduce_sum(problem_fields * states, axis=0, keepdims=True) > 0
    return states * tf.where(ascent, -1.0, 1.0)


def informed(problem):
    """Mask (n, m) of the entries about which the problem says something.

    False for a column whose fields are all zero, for an input whose coupling
    row is all zero (never active in the update), and for an entry with neither
    a field nor couplings to others, either sign of which is as good: they are
    held. A field that is a rounding error of its sum counts as zero.
    """
    diagonal = coupling_diagonal(problem)[:, None]
    # The terms of a field are at most this large (Cauchy-Schwarz).
    terms = 2.0 * tf.sqrt(diagonal) * tf.sqrt(problem.offset)
    moved = tf.abs(problem.fields) > FIELD_ROUNDING * terms
    steered = tf.reduce_any(moved, axis=0, keepdims=True)
    if problem.couplings is None:
        return (diagonal > 0) & steered
    # An input that was never active has neither.
    total = tf.reduce_sum(tf.abs(problem.couplings), axis=1, keepdims=True)
    return ((total > diagonal) | moved) & steered


def bounds(problem):
    """Tensors that are finite only if the whole problem is.

    Couplings and fields are bounded by the diagonal of the couplings and the
    offset (Cauchy-Schwarz), which are sums of squares: few numbers to look at.
    """
    return [problem.offset, coupling_diagonal(problem)]


def is_finite(tensors):
    """Scalar: whether every entry of every tensor is finite.

    Told from their sums: one operation a tensor. A sum of finite numbers that
    overflows counts as infinite.
    """
    sums = [tf.reduce_sum(tf.cast(tensor, tf.float32)) for tensor in tensors]
    return tf.math.is_finite(tf.add_n(sums)) if sums else tf.constant(True)
