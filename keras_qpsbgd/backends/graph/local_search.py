"""Descent by single flips, for all columns at once.

Each lane (a column) holds a state g and the field
h_i = sum_{j != i} Q_ij g_j + s_i / 2. Flipping variable i changes the energy by
4 d_i with d_i = -g_i h_i, and the field by -2 g_i Q_i. At each step, every lane
flips its best variable, until no flip lowers an energy.

The search runs on integers: couplings and fields are rounded to a unit of about
1e-7 of the largest possible field. Sums are then exact, so compiled and plain
graphs take the same steps, and ties are detected exactly. In addition, d and
the index of its variable fit in one number, the key. The smallest key is the
best flip, and ties go to the lower index.

A variable without couplings to others is fixed at sign(-s), which is its
optimum. Otherwise flips of such variables would use up the steps.
"""

import tensorflow as tf

from keras_qpsbgd import ops

# The key that means no flip.
NO_FLIP = tf.int32.max
# To find its smallest key, a lane is split into at most this many pieces, with
# at least `MIN_WIDTH` entries each.
PIECES = 16
MIN_WIDTH = 8


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
