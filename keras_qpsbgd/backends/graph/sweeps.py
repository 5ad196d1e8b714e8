"""Sweeps over the variables of a wide layer, in blocks.

Variable i is set to the sign of t_i = z_i'r, r = v - Z g being the residual
without i: the better of its two values, given the others. All columns move
together. The start is g = 0, so the first sweep rounds the variables one after
the other and later sweeps are 1-opt; the order is random.

Between blocks of 16 variables t and r are matrix products. Within a block the
variables go one by one, in groups of 4: XLA fuses the steps of a group, and
computes them again for each of their results, which is why groups are small.

With rows the residual itself is kept, and no n x n matrix exists. With
couplings only, z_i'r = -(Qg + s/2)_i.
"""

import tensorflow as tf

from keras_qpsbgd import ops

BLOCK = 16
GROUP = 4


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
        z = tf.pad(z, [[0, 0], [0, padding]])
        step = _ResidualStep(tf.reshape(z, (-1, blocks, BLOCK)))
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
        block = index % blocks
        old = g.read(block)
        t, q = step.open(block, g, state)
        new, change = _round_block(t, q, old)
        state = step.close(block, change, state)
        return index + 1, g.write(block, new), state

    # A tensor array, since XLA turns its writes into copies of one block, and
    # those to a tensor into a scatter.
    zeros = tf.TensorArray(
        tf.float32, blocks, element_shape=(BLOCK, m), clear_after_read=False
    ).unstack(tf.zeros((blocks, BLOCK, m)))
    _, g, _ = tf.while_loop(
        lambda index, *_: index < sweeps * blocks, body, (0, zeros, state)
    )
    return tf.gather(_stacked(g)[:n], tf.argsort(order, stable=True))


def _round_block(t, q, old):
    """New values of a block, and their change, one variable after the other.

    Args:
        t: (BLOCK, m), Z'r for the variables of the block.
        q: (BLOCK, BLOCK), their couplings.
        old: (BLOCK, m), their values so far.
    """
    new, change = [], None
    for begin in range(0, BLOCK, GROUP):
        group = slice(begin, begin + GROUP)
        before, part = old[group], t[group]
        if begin:
            part -= tf.matmul(q[group, :begin], change)
        couplings = q[group, group]
        rounded = []
        for i in range(GROUP):
            value = ops.sign(part[i] + couplings[i, i] * before[i])
            part -= couplings[:, i, None] * (value - before[i])[None, :]
            rounded.append(value)
        new.append(tf.stack(rounded))
        moved = new[-1] - before
        change = tf.concat([change, moved], axis=0) if begin else moved
    return tf.concat(new, axis=0), change


def _stacked(g):
    stacked = g.stack()
    return tf.reshape(stacked, (-1, stacked.shape[2]))


class _ResidualStep:
    def __init__(self, z):
        self.z = tf.transpose(z, (1, 0, 2))  # a block's rows side by side

    def open(self, block, g, residual):
        del g
        z = self.z[block]
        return (
            tf.matmul(z, residual, transpose_a=True),
            tf.matmul(z, z, transpose_a=True),
        )

    def close(self, block, change, residual):
        return residual - tf.matmul(self.z[block], change)


class _FieldStep:
    def __init__(self, q, fields):
        n, m = fields.shape
        self.q = tf.reshape(q, (-1, BLOCK, n))
        self.half_fields = tf.reshape(fields / 2.0, (-1, BLOCK, m))

    def open(self, block, g, state):
        del state
        q = self.q[block]
        within = tf.slice(q, (0, block * BLOCK), (BLOCK, BLOCK))
        return -(tf.matmul(q, _stacked(g)) + self.half_fields[block]), within

    def close(self, block, change, state):
        del block, change
        return state
