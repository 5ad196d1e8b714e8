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
        return _sweep([problem], sweeps)[0]
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
    (states,) = _sweep([shuffled], sweeps)
    return tf.gather(states, tf.argsort(order, stable=True))


def partial_sweep(problems, step, parts):
    """Returns the states after visiting every `parts`-th block once.

    Consecutive steps visit different blocks, so that `parts` steps make a whole
    sweep.

    Args:
        problems: List of `ops.Problem` of the same shape, with `start`.
        step: Scalar int32 tensor.
        parts: Integer.

    Returns:
        List of tensors of shape `(n, m)`.
    """
    return _sweep(problems, 1, step % parts, parts)


def _sweep(problems, sweeps, first_block=0, stride=1):
    """Sweeps over several problems in one loop, which compiles faster."""
    n, m = problems[0].fields.shape
    blocks = -(-n // BLOCK)
    padding = blocks * BLOCK - n
    total = blocks * len(problems)

    def in_blocks(parts):
        x = tf.stack(parts) if len(parts) > 1 else parts[0][None]
        x = tf.pad(x, [[0, 0], [0, padding], [0, 0]]) if padding else x
        return tf.reshape(x, (total, BLOCK, x.shape[2]))

    first = tf.zeros((total, BLOCK, m))
    if problems[0].start is not None:
        first = in_blocks([problem.start for problem in problems])
    q = in_blocks([problem.couplings for problem in problems])
    q = tf.pad(q, [[0, 0], [0, 0], [0, padding]]) if padding else q
    half_fields = in_blocks([problem.fields / 2.0 for problem in problems])

    def body(index, g):
        block = index % total
        problem, place = block // blocks, block % blocks
        states = g.stack()
        if len(problems) > 1:
            begin = (problem * blocks, 0, 0)
            states = tf.slice(states, begin, (blocks, BLOCK, m))
        states = tf.reshape(states, (blocks * BLOCK, m))
        forces = tf.matmul(q[block], states) + half_fields[block]
        inside = tf.slice(q[block], (0, place * BLOCK), (BLOCK, BLOCK))
        new = _round_block(-forces, inside, g.read(block))
        return index + stride, g.write(block, new)

    # XLA turns writes to a tensor array into copies of one block, but writes to
    # a tensor into a scatter.
    start = tf.TensorArray(
        tf.float32, total, element_shape=(BLOCK, m), clear_after_read=False
    ).unstack(first)
    # As the initial value of a loop variable, the first block may vary. Used
    # inside of the loop, each value of it would compile the search again.
    _, g = tf.while_loop(
        lambda index, _: index < sweeps * total, body, (first_block, start)
    )
    states = tf.reshape(g.stack(), (len(problems), blocks * BLOCK, m))
    return tf.unstack(states[:, :n])


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
