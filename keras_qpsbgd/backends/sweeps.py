"""Sweeps over the variables of a wide layer, in blocks.

Variable i is set to the sign of t_i = z_i'r, r = v - Z g being the residual
without i: the better of its two values, given the others. All columns move
together. Within a block of variables this is done one by one, between blocks by
matrix products. The start is g = 0, so the first sweep rounds the variables one
after the other and later sweeps are 1-opt; the order is random.

With rows the residual itself is kept, and no n x n matrix exists. With
couplings only, z_i'r = -(Qg + s/2)_i.
"""

import tensorflow as tf

from keras_qpsbgd import ops

BLOCK = 8


def cyclic_sweeps(problem, seed, sweeps):
    """States (n, m) after `sweeps` sweeps from zero."""
    n, m = problem.fields.shape
    blocks = -(-n // BLOCK)
    padding = blocks * BLOCK - n
    # Integers: philox gives compiled and plain graphs the same integers but not
    # the same floats.
    random = tf.random.stateless_uniform(
        (n,), seed, minval=None, maxval=None, dtype=tf.int32, alg="philox"
    )
    order = tf.argsort(random, stable=True)
    if problem.couplings is None:
        z = tf.gather(problem.normalized_rows, order, axis=1)
        step = _ResidualStep(tf.pad(z, [[0, 0], [0, padding]]))
        state = problem.row_gradients
    else:
        q = tf.gather(tf.gather(problem.couplings, order), order, axis=1)
        fields = tf.gather(problem.fields, order)
        step = _FieldStep(
            tf.pad(q, [[0, padding], [0, padding]]),
            tf.pad(fields, [[0, padding], [0, 0]]),
        )
        state = tf.zeros(())

    def body(index, g, state):
        begin = (index % blocks) * BLOCK
        old = tf.slice(g, (begin, 0), (BLOCK, m))
        t, q = step.open(begin, g, state)
        new = []
        for i in range(BLOCK):
            value = ops.sign(t[i] + q[i, i] * old[i])
            t -= q[:, i, None] * (value - old[i])[None, :]
            new.append(value)
        new = tf.stack(new)
        state = step.close(begin, new - old, state)
        rows = (begin + tf.range(BLOCK))[:, None]
        return index + 1, tf.tensor_scatter_nd_update(g, rows, new), state

    zeros = tf.zeros((blocks * BLOCK, m))
    _, g, _ = tf.while_loop(
        lambda index, *_: index < sweeps * blocks, body, (0, zeros, state)
    )
    return tf.gather(g[:n], tf.argsort(order, stable=True))


class _ResidualStep:
    def __init__(self, z):
        self.z = z

    def open(self, begin, g, residual):
        del g
        z = self._block(begin)
        return (
            tf.matmul(z, residual, transpose_a=True),
            tf.matmul(z, z, transpose_a=True),
        )

    def close(self, begin, change, residual):
        return residual - tf.matmul(self._block(begin), change)

    def _block(self, begin):
        return tf.slice(self.z, (0, begin), (tf.shape(self.z)[0], BLOCK))


class _FieldStep:
    def __init__(self, q, fields):
        self.q = q
        self.half_fields = fields / 2.0

    def open(self, begin, g, state):
        del state
        n, m = self.half_fields.shape
        q = tf.slice(self.q, (begin, 0), (BLOCK, n))
        s = tf.slice(self.half_fields, (begin, 0), (BLOCK, m))
        block = tf.slice(self.q, (begin, begin), (BLOCK, BLOCK))
        return -(tf.matmul(q, g) + s), block

    def close(self, begin, change, state):
        del begin, change
        return state
