r"""Formulas of a QP-SBGD step, as TensorFlow operations.

In a training step, a binary layer multiplies its rows \(X\) (`rows`,
\(B \times n\)) by the weights \(W\) (\(n \times m\)). Weights of \(b\) bits
are \(W = q / L\), where \(q\) are odd integers and \(L = 2^b - 1\). One bit is
\(W = \mathrm{sign}(\Omega)\). Backpropagation gives the gradient \(V\)
(`row_gradients`, \(B \times m\)) of the loss with respect to the product
\(R = XW\). Definition 1 of the paper turns \(X\) and \(V\) into one quadratic
unconstrained binary optimization problem (QUBO) for each column \(j\) of \(W\),

$$\min_{g \in \{-1,+1\}^n} \sum_b (v_{bj} - z_b^T g)^2
  = g^T Q g + s_j^T g + \mathrm{offset}_j ,$$

and the step is \(\Omega_j \leftarrow \Omega_j - \alpha g_j\) with the solution
\(g_j\) and the learning rate \(\alpha\).

| Formula                                               | Function            |
|-------------------------------------------------------|---------------------|
| \(q = 2 \lfloor \Omega L / 2 \rfloor + 1\), clipped   | `levels`            |
| Weights \(W = q / L\), straight-through gradient      | `binarize`          |
| Normalized rows \(z_b = x_b / \lVert x_b \rVert^2\)   | `normalize`         |
| Couplings \(Q = \sum_b z_b z_b^T\), for all columns   | `gram_problem`      |
| Fields \(s_j = -2 \sum_b v_{bj} z_b\)                 | `fields`            |
| Offset \(\mathrm{offset}_j = \sum_b v_{bj}^2\)        | `gram_problem`      |
| The same problem without \(Q\), for wide layers       | `rows_problem`      |
| The problem of the scaled gradient \(cV\)             | `scale_problem`     |
| Mean energy of a random state                         | `random_energy`     |
| \(-g\) in place of \(g\) where \(s_j^T g > 0\)        | `never_ascend`      |
| The entries of \(\Omega\) that the step may change    | `has_information`   |

The factor \(c\) is in `optimizers/gradient_scale.py`, and the update of
\(\Omega\) in `optimizers/rules/gradient.py`. The formulas of a binary Newton
step are in `recording/newton.py`. `Qubo` is the same problem in NumPy.

Reference: Krahn et al., "Projected Stochastic Gradient Descent with Quantum
Annealed Binary Gradients", BMVC 2024, https://arxiv.org/abs/2310.15128
"""

import math
from typing import Any
from typing import NamedTuple
from typing import Optional

import numpy as np
import tensorflow as tf

from keras_qpsbgd import products

# Maximum number of bits of a weight.
MAX_BITS = 4
# A field summed in float32 that is smaller than this share of its terms is a
# rounding error.
FIELD_ROUNDING = 2.0**-22
# The same for sums over the outputs of a layer. The limit is the larger of this
# share and four units in the last place. It is this large because the
# difference between 1 and a probability close to 1 has lost most of its digits.
SUM_ROUNDING = 2.0**-7
# Tensors with at most this many entries are checked together.
SMALL_CHECK = 4096
# Machine epsilon: the distance from 1 to the next larger number.
EPSILON = {
    tf.float64: 2.0**-52,
    tf.float32: 2.0**-23,
    tf.float16: 2.0**-10,
    tf.bfloat16: 2.0**-7,
}


class Problem(NamedTuple):
    """The QUBOs of one layer as tensors: `m` columns with `n` variables each.

    The `gram` form sets `couplings`. The `rows` form, for wide layers, sets
    `normalized_rows` and `row_gradients` and does not need an n x n matrix. A
    problem in the `gram` form also has the rows if they are available, because
    some backends use them.
    """

    couplings: Optional[tf.Tensor]  # n x n
    fields: tf.Tensor  # n x m
    offset: tf.Tensor  # m
    normalized_rows: Optional[tf.Tensor] = None  # B x n
    row_gradients: Optional[tf.Tensor] = None  # B x m
    start: Optional[tf.Tensor] = None  # n x m, initial states of a search
    diagonal: Optional[tf.Tensor] = None  # n, of the couplings, if known
    informative: Optional[tf.Tensor] = None  # n x m, `has_information` if known


class Statistics(NamedTuple):
    """Statistics of the rows of one update, for the gradient scales."""

    max_gradient: tf.Tensor  # max |V|
    kept_rows: tf.Tensor  # number of rows with a nonzero gradient
    row_norms: tf.Tensor  # sum of the l1 norms of the kept normalized rows
    batch: tf.Tensor  # sum of the leading dimensions of the layer's inputs


def sign(x):
    """Returns the sign, with `sign(0) = +1`, so every weight is +1 or -1."""
    return tf.where(x >= 0, tf.constant(1, x.dtype), tf.constant(-1, x.dtype))


def max_level(bits):
    """Returns `L`, the largest level of a weight with `bits` bits."""
    return 2**bits - 1


def levels(x, bits):
    """Returns the odd integers from `-L` to `L` that are nearest to `L * x`.

    With one bit, this is the sign. With more bits, a NaN stays a NaN.
    """
    if bits == 1:
        return sign(x)
    limit = max_level(bits)
    nearest = 2 * tf.floor(x * (limit / 2)) + 1
    clipped = tf.clip_by_value(nearest, -limit, limit)
    return tf.where(tf.math.is_nan(x), x, clipped)


def binarize(kernel, bits=1):
    """Returns the weights, `levels / L`. The backward pass is the identity."""

    @tf.custom_gradient
    def straight_through(kernel):
        weights = levels(kernel, bits)
        if bits > 1:
            # A division would have another last digit in compiled code.
            weights *= 1 / max_level(bits)
        return weights, lambda upstream: upstream

    return straight_through(kernel)


def hard_tanh(x):
    """Clips `x` to [-1, 1], the activation function of the paper."""
    return tf.clip_by_value(x, -1.0, 1.0)


def to_dense(sparse):
    """Converts a sparse tensor to a dense one.

    The entries may be in any order, and repeated entries are summed, as in
    sparse products. `tf.sparse.to_dense` raises in both cases.
    """
    shape = tf.cast(sparse.dense_shape, sparse.indices.dtype)
    dense = tf.scatter_nd(sparse.indices, sparse.values, shape)
    return tf.ensure_shape(dense, sparse.shape)


def without_rounding_noise(gradient, upstream, binary_kernel, feature_axis):
    r"""Removes rounding noise from the gradient of a layer's inputs.

    The gradient of input \(j\) in row \(b\) is \(\sum_k w_{jk} v_{bk}\). If
    all outgoing weights of the input are equal, this is a multiple of
    \(\sum_k v_{bk}\), which is zero if a softmax follows. In floating-point
    arithmetic a rounding error remains, and its value depends on the order of
    summation. The layer below would treat it as a gradient, because a binary
    step does not depend on the size of the gradient. These inputs therefore get
    a gradient of zero if the sums are small compared to their terms.

    Args:
        gradient: Gradient of the inputs.
        upstream: V, the gradient of the product.
        binary_kernel: W, with the inputs on the second-to-last axis.
        feature_axis: Axis of the inputs in `gradient`. Unless it is the last
            axis, it is also the axis of the outputs in `upstream`.

    Returns:
        Tensor with the shape of `gradient`.
    """
    rank = gradient.shape.rank
    others = list(range(len(binary_kernel.shape)))
    others.pop(-2)
    largest = tf.reduce_max(binary_kernel, others)
    equal = largest == tf.reduce_min(binary_kernel, others)
    upstream = tf.cast(upstream, tf.float32)
    sums = tf.reduce_sum(upstream, 1 if feature_axis == 1 else -1)
    limit = max(SUM_ROUNDING, 4 * EPSILON[gradient.dtype])
    # Strictly less, so that infinite terms are not set to zero.
    cancels = tf.nn.l2_loss(sums) < limit**2 * tf.nn.l2_loss(upstream)
    noise = equal & cancels
    if feature_axis != rank - 1:
        noise = tf.reshape(noise, [-1] + [1] * (rank - 1 - feature_axis))
    return tf.where(noise, tf.zeros((), gradient.dtype), gradient)


def may_cancel(outgoing):
    """Returns whether this many random binary weights can all be equal.

    More than 32 random weights are practically never all equal, and a single
    weight has no sum that could cancel.
    """
    return 1 < outgoing <= 32


def row_weights(rows, kept=1.0):
    r"""Returns the weight of each row, \(w_b = 1 / \lVert x_b \rVert^2\).

    This is the normalization \(z_b = w_b x_b\) of the paper: the couplings are
    \(\sum_b w_b^2 x_b x_b^T\) and the fields are
    \(-2 \sum_b w_b v_{bj} x_b\). All-zero rows get a weight of zero. Rows whose
    norm overflows get NaN, because a weight of zero would silently drop them.

    Args:
        rows: Tensor of shape (B, n).
        kept: Tensor of shape (B, 1) (optional). 1 for each row that is kept and
            0 for the others, whose weight is zero. Defaults to `1.0`.

    Returns:
        Tensor of shape (B, 1).
    """
    squares = tf.reduce_sum(tf.square(rows), axis=-1, keepdims=True)
    weights = tf.math.divide_no_nan(kept, squares)
    return tf.where(tf.math.is_inf(squares), math.nan, weights)


class LayerCall(NamedTuple):
    """Rows and row gradients of one call of a layer, from a backward pass."""

    rows: tf.Tensor  # B x n
    row_gradients: tf.Tensor  # B x m
    kept: Optional[tf.Tensor]  # B x 1; `None` keeps all rows with a gradient
    batch: tf.Tensor  # scalar, the leading dimension of the layer's input
    output_factor: Any = 1.0  # scalar or (m,), what the layer scales R by


def scale_call(call, factor):
    """Multiplies the row gradients of a call by `factor`."""
    if isinstance(factor, float) and factor == 1.0:
        return call
    gradients = tf.cast(call.row_gradients, tf.float32)
    return call._replace(row_gradients=gradients * factor)


def kept_rows(row_gradients, kept=None):
    """Returns 1 for each row that is part of the problem and 0 for the others.

    A row whose gradient is zero in all columns carries no information about the
    update, for example a masked sample or a node outside the batch.

    Args:
        row_gradients: Tensor of shape (B, m).
        kept: Tensor of shape (B, 1) (optional). The rows to keep. By default,
            keeps the rows with a nonzero gradient.

    Returns:
        Float32 tensor of shape (B, 1).
    """
    if kept is None:
        kept = tf.reduce_any(row_gradients != 0, axis=-1, keepdims=True)
    return tf.cast(kept, tf.float32)


class CallRows(NamedTuple):
    """Normalized rows and row gradients of one call of a layer, in float32."""

    normalized_rows: tf.Tensor  # B x n, zero where not kept
    row_gradients: tf.Tensor  # B x m
    kept: tf.Tensor  # B x 1, 1 or 0
    batch: tf.Tensor  # scalar
    weights: tf.Tensor  # B x 1, the factors of the rows


def normalize(rows, row_gradients, kept=None, *, batch):
    r"""Normalizes the rows of one call, \(z_b = x_b / \lVert x_b \rVert^2\).

    Rows that are not kept are set to zero, so they do not contribute to
    couplings and fields.

    Args:
        rows: X, tensor of shape (B, n). The rows that the layer multiplies by
            the kernel.
        row_gradients: V, tensor of shape (B, m).
        kept: Tensor of shape (B, 1) (optional). The rows to keep. By default,
            keeps the rows with a nonzero gradient.
        batch: Scalar. The leading dimension of the layer's input.

    Returns:
        A `CallRows`.
    """
    rows = tf.cast(rows, tf.float32)
    row_gradients = tf.cast(row_gradients, tf.float32)
    kept = kept_rows(row_gradients, kept)
    weights = row_weights(rows, kept)
    batch = tf.cast(batch, tf.float32)
    return CallRows(rows * weights, row_gradients, kept, batch, weights)


def statistics(call):
    """Returns the `Statistics` of one call."""
    return Statistics(
        max_gradient=tf.reduce_max(tf.abs(call.row_gradients), axis=(-2, -1)),
        kept_rows=tf.reduce_sum(call.kept, axis=(-2, -1)),
        row_norms=tf.reduce_sum(tf.abs(call.normalized_rows), axis=(-2, -1)),
        batch=call.batch,
    )


def fields(normalized_rows, row_gradients):
    r"""Returns the fields \(s_j = -2 \sum_b v_{bj} z_b\), shape (n, m)."""
    return -2.0 * products.product(
        normalized_rows, row_gradients, transpose_a=True
    )


def gram_problem(normalized_rows, row_gradients):
    r"""Returns the problem with its couplings, for layers that are not wide.

    The couplings are \(Q = \sum_b z_b z_b^T\) and the offset is
    \(\mathrm{offset}_j = \sum_b v_{bj}^2\).
    """
    return Problem(
        couplings=products.product(
            normalized_rows, normalized_rows, transpose_a=True
        ),
        fields=fields(normalized_rows, row_gradients),
        offset=tf.reduce_sum(tf.square(row_gradients), axis=-2),
    )


def rows_problem(normalized_rows, row_gradients):
    """Returns the problem with its rows, without an n x n matrix."""
    return Problem(
        couplings=None,
        fields=fields(normalized_rows, row_gradients),
        offset=tf.reduce_sum(tf.square(row_gradients), axis=-2),
        normalized_rows=normalized_rows,
        row_gradients=row_gradients,
        diagonal=tf.reduce_sum(tf.square(normalized_rows), axis=-2),
    )


def coupling_diagonal(problem):
    r"""Returns the diagonal of \(Q\), shape (n,), in either form.

    This function, `never_ascend` and `has_information` also accept a stack of
    problems, whose tensors have one more axis in front.
    """
    if problem.diagonal is not None:
        return problem.diagonal
    if problem.couplings is not None:
        return tf.linalg.diag_part(problem.couplings)
    return tf.reduce_sum(tf.square(problem.normalized_rows), axis=-2)


def scale_problem(problem, factor):
    r"""Returns the problem of the gradient \(cV\), where `factor` is \(c\).

    Multiplies the fields by \(c\) and the offset by \(c^2\). The couplings do
    not depend on \(V\).
    """
    gradients = problem.row_gradients
    return problem._replace(
        fields=problem.fields * factor,
        offset=problem.offset * tf.square(factor),
        row_gradients=None if gradients is None else gradients * factor,
    )


def random_energy(problem):
    r"""Returns the mean energy of a random state, shape (m,).

    It is \(\mathrm{offset}_j + \mathrm{tr}\, Q\).
    """
    return problem.offset + tf.reduce_sum(coupling_diagonal(problem))


def never_ascend(states, problem_fields):
    r"""Replaces \(g\) by \(-g\) in columns where \(s_j^T g > 0\).

    The quadratic part of the energy is the same for both signs, so the energy
    of \(-g\) is lower.
    """
    ascent = tf.reduce_sum(problem_fields * states, axis=-2, keepdims=True) > 0
    return states * tf.where(ascent, -1.0, 1.0)


def has_information(problem, coupled=None):
    r"""Returns a mask of the entries for which the problem has information.

    The optimizer does not change the other entries. The mask is false for

    - a column in which all fields are zero,
    - an input whose row of couplings is zero, because it was never active in
      the update,
    - an entry with neither a field nor couplings to other entries, because both
      signs have the same energy. In the `rows` form, only if `coupled` is
      given.

    A field that is only the rounding error of its sum counts as zero.

    Args:
        problem: A `Problem`. If it has `informative`, this is returned.
        coupled: Boolean tensor of shape (n,) (optional). The result of
            `has_couplings`, for a problem in the `rows` form.

    Returns:
        Boolean tensor of shape (n, m).
    """
    if problem.informative is not None:
        return problem.informative
    diagonal = coupling_diagonal(problem)
    # By Cauchy-Schwarz, this bounds the sum of the absolute terms of a field.
    terms = 2.0 * tf.sqrt(diagonal)[..., None]
    terms *= tf.sqrt(problem.offset)[..., None, :]
    has_field = tf.abs(problem.fields) > FIELD_ROUNDING * terms
    column_has_field = tf.reduce_any(has_field, axis=-2, keepdims=True)
    # An input that was never active has neither couplings nor fields.
    if problem.couplings is not None:
        coupled = tf.reduce_sum(tf.abs(problem.couplings), axis=-1) > diagonal
    elif coupled is None:
        coupled = diagonal > 0
    return (coupled[..., None] | has_field) & column_has_field


def has_couplings(rows, weights=1.0):
    r"""Returns which inputs have couplings to others, without an n x n matrix.

    Multiplies the couplings without their diagonal by a vector of positive
    numbers \(r\). An entry of the product is zero only if all of its terms
    are, because the numbers are random. A product that is only a rounding error
    counts as zero.

    Args:
        rows: Tensor of shape (B, n).
        weights: Tensor of shape (B, 1) (optional). The normalized rows are
            `rows * weights`. Defaults to `1.0`.

    Returns:
        Boolean tensor of shape (n,).
    """
    random = np.random.default_rng(0).uniform(0.5, 1.5, rows.shape[-1])
    parts = rows * tf.constant(random, tf.float32)
    total = tf.reduce_sum(parts, axis=-1, keepdims=True)
    sizes = tf.reduce_sum(tf.abs(parts), axis=-1, keepdims=True)
    # Squares of the weights could overflow.
    normalized_rows = rows * weights
    product = normalized_rows * (weights * (total - parts))
    product = tf.reduce_sum(product, axis=-2)
    terms = tf.abs(normalized_rows) * (weights * sizes)
    terms = tf.reduce_sum(terms, axis=-2)
    return tf.abs(product) > FIELD_ROUNDING * terms


def bounds(problem):
    """Returns tensors that are finite only if the whole problem is finite.

    The diagonal of the couplings and the offset are sums of squares that bound
    all couplings and fields (Cauchy-Schwarz), so only n + m numbers need to be
    checked.
    """
    return [problem.offset, coupling_diagonal(problem)]


def is_finite(tensors):
    """Returns a scalar that is true if all entries are finite.

    Small tensors are checked together, because an operation takes longer to
    start than to check a few numbers. Of others, only the sum is checked. A sum
    of finite numbers that overflows counts as infinite.
    """
    parts = []
    for tensor in tensors:
        tensor = tf.cast(tensor, tf.float32)
        size = tensor.shape.num_elements()
        if size is None or size > SMALL_CHECK:
            tensor = tf.reduce_sum(tensor)
        if tensor.shape.rank != 1:
            tensor = tf.reshape(tensor, (-1,))
        parts.append(tensor)
    if not parts:
        return tf.constant(True)
    return tf.reduce_all(tf.math.is_finite(tf.concat(parts, 0)))
