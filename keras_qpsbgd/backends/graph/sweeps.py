"""Sweeps over the variables of a wide layer, in blocks.

Each update sets variable i to the sign of -(sum_{j != i} Q_ij g_j + s_i / 2),
which is the better of its two values, given the others. All columns are updated
together, and the order of the variables is random. The sweeps start from g = 0,
so the first sweep rounds the variables one by one, and later sweeps are 1-opt.
If the problem has start states, all sweeps are 1-opt.

Between blocks of 16 variables, the forces are computed by matrix products.
Within a block, the variables are updated one by one, in groups of 4. Groups are
small because XLA fuses the steps of a group and computes them again for each of
their results.
"""

import tensorflow as tf

from keras_qpsbgd import ops

BLOCK = 16
GROUP = 4


def cyclic_sweeps(problem, seed, sweeps):
    """Returns the states (n, m) after `sweeps` sweeps.

    Args:
        problem: An `ops.Problem`.
        seed: Int32 tensor of shape `(2,)`, for the order of the variables.
            `None` keeps their order, which saves a copy of the couplings.
        sweeps: Integer.
    """
    if seed is None:
        return _sweep(problem, sweeps)
    n = problem.fields.shape[0]
    # Integers, because philox gives compiled and plain graphs the same integers
    # but not the same floats.
    random = tf.random.stateless_uniform(
        (n,), seed, minval=None, maxval=None, dtype=tf.int32, alg="philox"
    )
    order = tf.argsort(random, stable=True)
    couplings = tf.gather(tf.gather(problem.couplings, order), order, axis=1)
    start = problem.start
    shuffled = ops.Problem(
        couplings,
        tf.gather(problem.fields, order),
        None if start is None else tf.gather(start, order),
    )
    states = _sweep(shuffled, sweeps)
    return tf.gather(states, tf.argsort(order, stable=True))


def partial_sweep(problem, step, parts):
    """Returns the states (n, m) after visiting every `parts`-th block once.

    Consecutive steps visit different blocks, so that `parts` steps make a whole
    sweep.

    Args:
        problem: An `ops.Problem` with `start`.
        step: Scalar int32 tensor.
        parts: Integer.
    """
    return _sweep(problem, 1, step % parts, parts)


def _sweep(problem, sweeps, first_block=0, stride=1):
    n, m = problem.fields.shape
    blocks = -(-n // BLOCK)
    padding = blocks * BLOCK - n

    def in_blocks(x):
        x = tf.pad(x, [[0, padding], [0, 0]]) if padding else x
        return tf.reshape(x, (blocks, BLOCK, x.shape[1]))

    first = tf.zeros((blocks, BLOCK, m))
    if problem.start is not None:
        first = in_blocks(problem.start)
    q = problem.couplings
    q = in_blocks(tf.pad(q, [[0, 0], [0, padding]]) if padding else q)
    half_fields = in_blocks(problem.fields / 2.0)

    def body(index, g):
        block = (first_block + index * stride) % blocks
        forces = tf.matmul(q[block], _stack_blocks(g)) + half_fields[block]
        inside = tf.slice(q[block], (0, block * BLOCK), (BLOCK, BLOCK))
        new = _round_block(-forces, inside, g.read(block))
        return index + 1, g.write(block, new)

    # XLA turns writes to a tensor array into copies of one block, but writes to
    # a tensor into a scatter.
    start = tf.TensorArray(
        tf.float32, blocks, element_shape=(BLOCK, m), clear_after_read=False
    ).unstack(first)
    visits = -(-sweeps * blocks // stride)
    _, g = tf.while_loop(lambda index, _: index < visits, body, (0, start))
    return _stack_blocks(g)[:n]


def _round_block(t, q, old):
    """Updates the variables of a block, one by one.

    Args:
        t: Tensor of shape `(BLOCK, m)`. The negative forces on the variables
            of the block.
        q: Tensor of shape `(BLOCK, BLOCK)`. Their couplings.
        old: Tensor of shape `(BLOCK, m)`. Their current values.

    Returns:
        The new values, of shape `(BLOCK, m)`.
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
    return tf.concat(new, axis=0)


def _stack_blocks(g):
    stacked = g.stack()
    return tf.reshape(stacked, (-1, stacked.shape[2]))
