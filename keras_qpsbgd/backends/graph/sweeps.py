"""Sweeps over the variables of a wide layer, in blocks.

Each update sets variable i to the sign of t_i = z_i'r, where r = v - Z g is the
residual without i. This is the better of its two values, given the others. All
columns are updated together, and the order of the variables is random. The
sweeps start from g = 0, so the first sweep rounds the variables one by one, and
later sweeps are 1-opt. If the problem has start states, all sweeps are 1-opt.

Between blocks of 16 variables, t and r are computed by matrix products. Within
a block, the variables are updated one by one, in groups of 4. Groups are small
because XLA fuses the steps of a group and computes them again for each of their
results.

With rows, the residual itself is stored, and no n x n matrix exists. With
couplings, z_i'r = -(Qg + s/2)_i.
"""

import tensorflow as tf

from keras_qpsbgd import ops

BLOCK = 16
GROUP = 4


def cyclic_sweeps(problem, seed, sweeps):
    """Returns the states (n, m) after `sweeps` sweeps.

    Args:
        problem: An `ops.Problem`.
        seed: Int32 tensor of shape `(2,)`.
        sweeps: Integer.
    """
    n, m = problem.fields.shape
    blocks = -(-n // BLOCK)
    padding = blocks * BLOCK - n
    # Integers, because philox gives compiled and plain graphs the same integers
    # but not the same floats.
    random = tf.random.stateless_uniform(
        (n,), seed, minval=None, maxval=None, dtype=tf.int32, alg="philox"
    )
    order = tf.argsort(random, stable=True)
    first = tf.zeros((blocks, BLOCK, m))
    if problem.start is not None:
        first = tf.gather(problem.start, order)
        first = tf.pad(first, [[0, padding], [0, 0]])
        first = tf.reshape(first, (blocks, BLOCK, m))
    if problem.couplings is None:
        z = tf.gather(problem.normalized_rows, order, axis=1)
        z = tf.pad(z, [[0, 0], [0, padding]])
        step = _ResidualStep(tf.reshape(z, (-1, blocks, BLOCK)))
        state = problem.row_gradients
        if problem.start is not None:
            state -= tf.matmul(problem.normalized_rows, problem.start)
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
        t, q = step.begin(block, g, state)
        new, change = _round_block(t, q, old)
        state = step.end(block, change, state)
        return index + 1, g.write(block, new), state

    # XLA turns writes to a tensor array into copies of one block, but writes to
    # a tensor into a scatter.
    start = tf.TensorArray(
        tf.float32, blocks, element_shape=(BLOCK, m), clear_after_read=False
    ).unstack(first)
    _, g, _ = tf.while_loop(
        lambda index, *_: index < sweeps * blocks, body, (0, start, state)
    )
    return tf.gather(_stack_blocks(g)[:n], tf.argsort(order, stable=True))


def _round_block(t, q, old):
    """Updates the variables of a block, one by one.

    Args:
        t: Tensor of shape `(BLOCK, m)`. Z'r for the variables of the block.
        q: Tensor of shape `(BLOCK, BLOCK)`. Their couplings.
        old: Tensor of shape `(BLOCK, m)`. Their current values.

    Returns:
        The new values and the changes, both of shape `(BLOCK, m)`.
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


def _stack_blocks(g):
    stacked = g.stack()
    return tf.reshape(stacked, (-1, stacked.shape[2]))


class _ResidualStep:
    """Block updates that store the residual, for problems with rows."""

    def __init__(self, z):
        self.z = tf.transpose(z, (1, 0, 2))  # blocks x B x BLOCK

    def begin(self, block, g, residual):
        del g
        z = self.z[block]
        return (
            tf.matmul(z, residual, transpose_a=True),
            tf.matmul(z, z, transpose_a=True),
        )

    def end(self, block, change, residual):
        return residual - tf.matmul(self.z[block], change)


class _FieldStep:
    """Block updates for problems with couplings."""

    def __init__(self, q, fields):
        n, m = fields.shape
        self.q = tf.reshape(q, (-1, BLOCK, n))
        self.half_fields = tf.reshape(fields / 2.0, (-1, BLOCK, m))

    def begin(self, block, g, state):
        del state
        q = self.q[block]
        within = tf.slice(q, (0, block * BLOCK), (BLOCK, BLOCK))
        fields = tf.matmul(q, _stack_blocks(g)) + self.half_fields[block]
        return -fields, within

    def end(self, block, change, state):
        del block, change
        return state
