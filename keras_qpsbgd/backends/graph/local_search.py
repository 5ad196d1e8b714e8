"""Descents for all columns at once: by single flips, and in sweeps.

**Single flips.** Each lane (a column) holds a state g and the field
h_i = sum_{j != i} Q_ij g_j + s_i / 2. Flipping variable i changes the energy by
4 d_i with d_i = -g_i h_i, and the field by -2 g_i Q_i. At each step, every lane
flips its best variable, until no flip lowers an energy.

The descent runs on integers: couplings and fields are rounded to a unit of
about 1e-7 of the largest possible field. Sums are then exact, so compiled and
plain graphs take the same steps, and ties are detected exactly. In addition, d
and the index of its variable fit in one number, the key. The smallest key is
the best flip, and ties go to the lower index.

A variable without couplings to others is fixed at sign(-s), which is its
optimum. Otherwise flips of such variables would use up the steps.

**Sweeps.** Each update sets variable i to the sign of -h_i, which is the better
of its two values, given the others. The variables are updated one after the
other, in all columns and all problems of a stack at once.

A matrix product computes the forces f on a block of the variables. Within a
block, the new states g solve g = sign(-(f + L (g - old))), where L is the
strict lower triangle of the couplings. Each repetition of this equation makes
at least one more variable exact. From the states of the last update, few
variables change. Two repetitions are then enough for nearly all of them, and
blocks can be large (`warm_sweep`). Otherwise, blocks of 16 variables are exact
(`sweep`).
"""

import numpy as np
import tensorflow as tf

from keras_qpsbgd.qubo import ops

# The key that means no flip.
NO_FLIP = tf.int32.max
# To find its smallest key, a lane is split into at most this many pieces, with
# at least `MIN_WIDTH` entries each.
PIECES = 16
MIN_WIDTH = 8
# Variables of a block of a sweep.
BLOCK = 16
# Maximum number of variables of a block of a warm sweep, and its repetitions.
# Energies are within 0.1 percent of those of single updates.
WARM_BLOCK = 48
REPETITIONS = 2
# With one repetition fewer than variables, the states are exact.
EXACT = BLOCK - 1
# Maximum number of blocks whose forces are computed together.
PART = 6


def greedy(problem):
    """Best-improvement descent from `problem.start`, or from sign(-s).

    Args:
        problem: An `ops.Problem`.

    Returns:
        A float32 tensor of shape `(n, m)` with the values +1.0 and -1.0.
    """
    lanes = _Lanes(problem)

    def improves(step, h, signs, key):
        del h, signs
        return (step < 2 * lanes.n) & tf.reduce_any(key < 0)

    def descend(step, h, signs, key):
        h, signs = lanes.flip(h, signs, tf.where(key < 0, key, NO_FLIP))
        return step + 1, h, signs, lanes.best_key(h, signs)

    h = lanes.field(lanes.start)
    signs = tf.where(lanes.start > 0, -1, 1)
    loop = (0, h, signs, lanes.best_key(h, signs))
    _, _, signs, _ = tf.while_loop(improves, descend, loop)
    return tf.transpose(-tf.cast(signs, tf.float32))


class _Lanes:
    """Couplings, fields and start states of all lanes, lane-major (m x n).

    Fields are stored shifted left, which leaves bits for the index in a key.
    States are stored as their negated signs: -1 for +1, and 1 for -1.
    """

    def __init__(self, problem):
        couplings = problem.couplings
        self.n = problem.fields.shape[0]
        # Leaves enough low bits for a key, and keeps fields at or below 2^24,
        # so that the float32 sums of the start are exact.
        self.shift = max((self.n - 1).bit_length() + 1, 8)
        largest = 2 ** (31 - self.shift)

        couplings = tf.linalg.set_diag(couplings, tf.zeros((self.n,)))
        # The matrix is symmetric, and XLA is faster along this axis.
        reach = tf.reduce_sum(tf.abs(couplings), axis=0)
        self.active = reach > 0
        # A field larger than the reach of the couplings decides its variable,
        # regardless of its size. Clipping it saves bits for the other fields.
        half_fields = tf.clip_by_value(
            tf.transpose(problem.fields) / 2.0, -2.0 * reach, 2.0 * reach
        )
        bound = tf.reduce_max(reach + tf.reduce_max(tf.abs(half_fields), 0))
        # Rounding may add half a unit per coupling.
        bound *= 1.0 + self.n / largest
        unit = _power_of_two(bound) * (2.0 / largest)
        self.couplings = tf.round(tf.math.divide_no_nan(couplings, unit))
        self.half_fields = tf.round(tf.math.divide_no_nan(half_fields, unit))
        # Changes of the fields by a flip from +1, from -1, and by no flip.
        rows = tf.cast(self.couplings, tf.int32) * 2 ** (self.shift + 1)
        self.changes = tf.concat([-rows, rows, tf.zeros_like(rows[:1])], 0)

        self.start = ops.sign(-tf.transpose(problem.fields))
        if problem.start is not None:
            self.start = tf.where(
                self.active, tf.transpose(problem.start), self.start
            )

    def field(self, g):
        """Computes the shifted integer fields of the states g."""
        h = tf.matmul(g, self.couplings) + self.half_fields
        return tf.cast(h, tf.int32) * 2**self.shift

    def best_key(self, h, signs):
        """Returns the key of each lane's best flip.

        A key consists of d, the index, and one bit that is set if the variable
        is -1. It is `NO_FLIP` if all variables are fixed.
        """
        # XLA is slow at reducing a row, but not at the minimum of pieces of the
        # row that all have the same width.
        width = min(max(-(-self.n // PIECES), MIN_WIDTH), self.n)
        smallest = None
        for begin in range(0, self.n, width):
            begin = min(begin, self.n - width)
            part = slice(begin, begin + width)
            low_bits = 2 * tf.range(begin, begin + width) + 1
            # h where the variable is -1, else -h - 1. The 1 is subtracted from
            # the lowest bit.
            key = low_bits + tf.bitwise.bitwise_xor(
                h[:, part], tf.bitwise.right_shift(signs[:, part], 31)
            )
            key = tf.where(self.active[part], key, NO_FLIP)
            smallest = key if smallest is None else tf.minimum(smallest, key)
        return tf.reduce_min(smallest, axis=1)

    def flip(self, h, signs, key):
        """Flips the variables of the keys, and returns new fields and signs."""
        none = key == NO_FLIP
        low_bits = tf.bitwise.bitwise_and(key, 2**self.shift - 1)
        negative = low_bits % 2
        flip = tf.where(none, self.n, low_bits // 2)
        is_flipped = tf.range(self.n)[None, :] == flip[:, None]
        row = tf.where(none, 2 * self.n, flip + negative * self.n)
        h += tf.gather(self.changes, row)
        return h, tf.where(is_flipped, -signs, signs)


def _power_of_two(x):
    """Returns the largest power of two that is at most `x` (0 for 0)."""
    bits = tf.bitwise.bitwise_and(tf.bitcast(x, tf.int32), 0x7F800000)
    return tf.bitcast(bits, tf.float32)


def shuffled_sweep(problem, seed):
    """Returns the states (n, m) after a sweep in a random order.

    Args:
        problem: An `ops.Problem`.
        seed: Int32 tensor of shape `(2,)`, for the order of the variables.
    """
    # Integers, because philox gives compiled and plain graphs the same integers
    # but not the same floats.
    random = tf.random.stateless_uniform(
        (problem.fields.shape[0],),
        seed,
        minval=None,
        maxval=None,
        dtype=tf.int32,
        alg="philox",
    )
    order = tf.argsort(random, stable=True)
    couplings = tf.gather(tf.gather(problem.couplings, order), order, axis=1)
    start = problem.start
    shuffled = ops.Problem(
        couplings[None],
        tf.gather(problem.fields, order)[None],
        None if start is None else tf.gather(start, order)[None],
    )
    states = sweep(shuffled)[0]
    return tf.gather(states, tf.argsort(order, stable=True))


def warm_sweep(problem):
    """Returns the states after updating all variables, from a good start.

    Args:
        problem: A stack of `ops.Problem`: its tensors have one more axis in
            front. Must have a start.

    Returns:
        Tensor of shape `(stack, n, m)`.
    """
    couplings, states = problem.couplings, problem.start
    n = states.shape[1]
    size = -(-n // -(-n // WARM_BLOCK))
    for begin in range(0, n, size):
        block = slice(begin, min(begin + size, n))
        rows, old = couplings[:, block], states[:, block]
        inside = rows[:, :, block]
        forces = tf.matmul(rows, states) + problem.fields[:, block] / 2.0
        # A variable exerts no force on itself.
        forces -= tf.linalg.diag_part(inside)[..., None] * old
        new = _repeated(forces, old, inside, REPETITIONS)
        states = tf.concat(
            [states[:, :begin], new, states[:, begin + size :]], axis=1
        )
    return states


def sweep(problem):
    """Returns the states after updating all variables one after the other.

    If the problem has no start, the sweep starts from g = 0, so it rounds the
    variables one by one.

    Args:
        problem: A stack of `ops.Problem`: its tensors have one more axis in
            front.

    Returns:
        Tensor of shape `(stack, n, m)`.
    """
    stack, n, m = problem.fields.shape
    blocks = -(-n // BLOCK)
    # The number of blocks that needs the least padding.
    sizes = range(min(blocks, PART), 0, -1)
    blocks = min(sizes, key=lambda size: (-blocks % size) + 1 / size)
    parts = _Parts(problem.couplings, problem.fields, blocks)

    def body(part, states):
        return part + 1, parts.update(states, part)

    start = problem.start
    states = parts.divide(tf.zeros((stack, n, m)) if start is None else start)
    # XLA would compute the results of unrolled steps again for each of the
    # following ones.
    _, states = tf.while_loop(
        lambda part, _: part < parts.count, body, (0, states)
    )
    return parts.join(states)


class _Parts:
    """Divides the variables of a stack of problems into parts of equal size."""

    def __init__(self, couplings, fields, blocks):
        self.n = fields.shape[1]
        self.size = blocks * BLOCK
        self.count = -(-self.n // self.size)
        self._fields = self.divide(fields)
        self._couplings = self.divide(
            ops.padded(couplings, 2, self._padded_n())
        )

    def _padded_n(self):
        return self.count * self.size

    def divide(self, tensor):
        """Reshapes (stack, n, m) to (stack, parts, size, m)."""
        tensor = ops.padded(tensor, 1, self._padded_n())
        stack, _, m = tensor.shape
        return tf.reshape(tensor, (stack, self.count, self.size, m))

    def join(self, tensor):
        """Reverses `divide`."""
        stack, _, _, m = tensor.shape
        tensor = tf.reshape(tensor, (stack, self._padded_n(), m))
        return tensor[:, : self.n]

    def update(self, states, part):
        """Updates the variables of one part. See `sweep`."""
        couplings = _take(self._couplings, part)
        stack, size, _ = couplings.shape
        m = states.shape[-1]
        forces = tf.matmul(
            couplings, tf.reshape(states, (stack, self._padded_n(), m))
        )
        forces += _take(self._fields, part) / 2.0
        inside = tf.reshape(couplings, (stack, size, self.count, size))
        inside = _take(inside, part, axis=2)
        old = _take(states, part)
        # A variable exerts no force on itself.
        forces -= tf.linalg.diag_part(inside)[..., None] * old
        new = _updated(forces, old, inside)
        if self.count == 1:
            return new[:, None]
        is_updated = (tf.range(self.count) == part)[:, None, None]
        return tf.where(is_updated, new[:, None], states)


def _updated(forces, old, couplings):
    """Updates variables one after the other, in blocks.

    Args:
        forces: Tensor of shape `(stack, n, m)`. The forces on the old states.
        old: Tensor of the same shape. The old states.
        couplings: Tensor of shape `(stack, n, n)`.
    """
    stack, size, m = old.shape
    blocks = size // BLOCK
    couplings = tf.reshape(couplings, (stack, size, blocks, BLOCK))
    old = tf.reshape(old, (stack, blocks, BLOCK, m))

    def body(block, forces, states):
        before = _take(old, block)
        force = _take(tf.reshape(forces, old.shape), block)
        columns = _take(couplings, block, axis=2)
        inside = tf.reshape(columns, (stack, blocks, BLOCK, BLOCK))
        state = _repeated(force, before, _take(inside, block), EXACT)
        # The forces on the variables of this block are no longer needed.
        forces += tf.matmul(columns, state - before)
        here = (tf.range(blocks) == block)[:, None, None]
        return block + 1, forces, tf.where(here, state[:, None], states)

    _, _, new = tf.while_loop(
        lambda block, *_: block < blocks, body, (0, forces, old)
    )
    return tf.reshape(new, (stack, size, m))


def _repeated(forces, old, couplings, repetitions):
    """Updates the variables of a block, as described above."""
    size = old.shape[1]
    lower = np.tril(np.ones((size, size), np.float32), -1) * couplings
    new = ops.sign(-forces)
    for _ in range(repetitions):
        new = ops.sign(-(forces + tf.matmul(lower, new - old)))
    return new


def _take(tensor, index, axis=1):
    # `tensor[:, index]` would compile again for every value of `index`.
    return tf.gather(tensor, index, axis=axis)
