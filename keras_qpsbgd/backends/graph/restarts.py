"""Several local optima of each column, found from random states."""

import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd.backends.graph import local_search
from keras_qpsbgd.backends.graph import sweeps


def sample(problem, seed, count, is_wide):
    """Returns local optima of shape `(count, n, m)`.

    Args:
        problem: An `ops.Problem`.
        seed: Int32 tensor of shape `(2,)`.
        count: Integer. Number of random states per column.
        is_wide: Boolean. Whether to use sweeps instead of single flips.
    """
    n, m = problem.fields.shape
    # Integers, because philox gives compiled and plain graphs the same integers
    # but not the same floats.
    random = tf.random.stateless_uniform(
        (n, count * m), seed, minval=0, maxval=2, dtype=tf.int32, alg="philox"
    )
    gradients = problem.row_gradients
    lanes = ops.Problem(
        couplings=problem.couplings,
        fields=tf.tile(problem.fields, (1, count)),
        offset=tf.tile(problem.offset, (count,)),
        normalized_rows=problem.normalized_rows,
        row_gradients=None
        if gradients is None
        else tf.tile(gradients, (1, count)),
        start=tf.cast(2 * random - 1, tf.float32),
    )
    if is_wide:
        found = sweeps.cyclic_sweeps(lanes, seed, 1)
    else:
        found = local_search.greedy(lanes, seed)
    found = ops.never_ascend(found, lanes.fields)
    return tf.transpose(tf.reshape(found, (n, count, m)), (1, 0, 2))
