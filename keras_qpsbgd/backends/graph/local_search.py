"""Local search by single flips, for all columns and restarts at once.

Each lane (a column and a restart) holds a state g and the field
h_i = sum_{j != i} Q_ij g_j + s_i / 2. Flipping variable i changes the energy by
4 d_i with d_i = -g_i h_i, and the field by -2 g_i Q_i. At each step, every lane
flips its best variable.

The search runs on integers: couplings and fields are rounded to a unit of about
1e-7 of the largest possible field. Sums are then exact, so compiled and plain
graphs take the same steps, and ties are detected exactly. In addition, d and
the index of its variable fit in one number, the key. The smallest key is the
best flip, and ties go to the lower index. (The parameters were chosen on other
instances than those of `python -m research bench solver`.)

A variable without couplings to others is fixed at sign(-s), which is its
optimum. Otherwise flips of such variables would use up the steps.
"""

import tensorflow as tf

from keras_qpsbgd import ops

# A flipped variable is tabu for 3 + U{0..5} steps.
TENURE = 3
TENURE_SPREAD = 6
TENURE_TABLE = 64
# The search ends early when fewer than a sixth of the lanes have improved
# within the last fifth of the steps, or within 16 steps if that is more.
WINDOW = 5
MIN_WINDOW = 16
IMPROVING = 6
# Energies of restarts closer than this, relative to the largest, are a tie.
TIE = 1e-6
# The key that means no flip.
NO_FLIP = tf.int32.max
# To find its smallest key, a lane is split into at most this many pieces, with
# at least `MIN_WIDTH` entries each.
PIECES = 16
MIN_WIDTH = 8


def greedy(problem, seed):
    """Best-improvement descent from `problem.start`, or from sign(-s)."""
    del seed
    lanes = _Lanes(problem, 1)

    def improves(step, h, moves, key):
        del h, moves
        return (step < 2 * lanes.n) & tf.reduce_any(key < 0)

    def descend(step, h, moves, key):
        key = tf.where(key < 0, key, NO_FLIP)
        h, moves, _, _ = lanes.flip(h, moves, key, 1)
        return step + 1, h, moves, lanes.best_key(h, moves, 1)

    h, moves = lanes.field(lanes.start), lanes.moves(2)
    loop = (0, h, moves, lanes.best_key(h, moves, 1))
    _, _, moves, _ = tf.while_loop(improves, descend, loop)
    return lanes.best(ops.sign(-tf.cast(moves, tf.float32)))


def tabu(problem, seed, steps, restarts):
    """1-opt tabu search.

    The first restart starts from `problem.start`, or from sign(-s) if that is
    `None`. The others start from random states. Each step takes the best flip
    that is not tabu, even if it raises the energy. A tabu flip is allowed if it
    beats the best energy of the lane.

    Args:
        problem: An `ops.Problem`.
        seed: Int32 tensor of shape `(2,)`.
        steps: Integer. Maximum number of flips per lane.
        restarts: Integer. Number of lanes per column.

    Returns:
        A float32 tensor of shape `(n, m)` with the values +1.0 and -1.0.
    """
    lanes = _Lanes(problem, restarts, seed)
    table = tf.random.stateless_uniform(
        (TENURE_TABLE, lanes.count),
        seed + [1, 0],
        minval=TENURE + 2,
        maxval=TENURE + 2 + TENURE_SPREAD,
        dtype=tf.int32,
        alg="philox",
    )
    history = tf.TensorArray(
        tf.int32, steps, element_shape=(lanes.count,), clear_after_read=False
    )
    window = max(steps // WINDOW, MIN_WINDOW)

    def is_improving(step, h, moves, excess, best_step, history):
        del h, moves, excess, history
        improving = best_step > step - window
        improving = tf.reduce_sum(tf.cast(improving, tf.int32))
        return (step < steps) & (
            (IMPROVING * improving >= lanes.count) | (step == 0)
        )

    def body(step, h, moves, excess, best_step, history):
        # The size of a move is the step, counted from 1, at which it is allowed
        # again. `excess` is the energy above the best energy of the lane.
        key = lanes.best_key(h, moves, step + 1, excess)
        until = step + tf.gather(table, step % TENURE_TABLE)
        h, moves, flip, d = lanes.flip(h, moves, key, until)
        excess += d
        best_step = tf.where(excess < 0, step + 1, best_step)
        excess = tf.maximum(excess, 0)
        return step + 1, h, moves, excess, best_step, history.write(step, flip)

    zero = tf.zeros((lanes.count,), tf.int32)
    h, moves = lanes.field(lanes.start), lanes.moves(tf.int32.max)
    *_, best_step, history = tf.while_loop(
        is_improving, body, (0, h, moves, zero, zero, history)
    )
    # Replaying the flips up to the best step is cheaper than copying every new
    # best state. Index n means no flip.
    flips = history.stack()
    index = tf.range(lanes.n)[None, :]

    def replay(step, g):
        flip = tf.where(step < best_step, flips[step], lanes.n)
        return step + 1, tf.where(index == flip[:, None], -g, g)

    last = tf.reduce_max(best_step)
    _, g = tf.while_loop(lambda step, _: step < last, replay, (0, lanes.start))
    return lanes.best(g)


class _Lanes:
    """Couplings, fields and start states of all lanes, lane-major (L x n).

    Fields are stored shifted left, which leaves bits for the index in a key.
    """

    def __init__(self, problem, restarts, seed=None):
        couplings = problem.couplings
        self.n, self.m = problem.fields.shape
        self.restarts = restarts
        self.count = self.m * restarts
        # Leaves enough low bits for a key, and keeps fields at or below 2^24,
        # so that the float32 sums of the start are exact.
        self.shift = max((self.n - 1).bit_length() + 1, 8)
        self.largest = 2 ** (31 - self.shift)

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
        bound *= 1.0 + self.n / self.largest
        unit = _power_of_two(bound) * (2.0 / self.largest)
        couplings = tf.round(tf.math.divide_no_nan(couplings, unit))
        half_fields = tf.round(tf.math.divide_no_nan(half_fields, unit))
        self.couplings = couplings
        # Changes of the fields by a flip from +1, from -1, and by no flip.
        rows = tf.cast(couplings, tf.int32) * 2 ** (self.shift + 1)
        self.changes = tf.concat([-rows, rows, tf.zeros_like(rows[:1])], 0)

        self.start = ops.sign(-tf.transpose(problem.fields))
        if problem.start is not None:
            self.start = tf.where(
                self.active, tf.transpose(problem.start), self.start
            )
        if restarts > 1:
            # Integers, because philox gives compiled and plain graphs the same
            # integers but not the same floats.
            random = tf.random.stateless_uniform(
                (self.count, self.n),
                seed,
                minval=0,
                maxval=2,
                dtype=tf.int32,
                alg="philox",
            )
            first = tf.range(self.count)[:, None] < self.m
            fixed = first | ~self.active[None, :]
            self.start = tf.tile(self.start, (restarts, 1))
            self.start = tf.where(
                fixed, self.start, tf.cast(2 * random - 1, tf.float32)
            )
            half_fields = tf.tile(half_fields, (restarts, 1))
        self.half_fields = half_fields

    def field(self, g):
        """Computes the shifted integer fields of the states g."""
        h = tf.matmul(g, self.couplings) + self.half_fields
        return tf.cast(h, tf.int32) * 2**self.shift

    def moves(self, fixed):
        """Returns the moves of the start: negative for +1, positive for -1.

        Their size is 1, or `fixed` for variables that must not be flipped.
        """
        size = tf.where(self.active, 1, fixed)
        return tf.where(self.start > 0, -size, size)

    def best_key(self, h, moves, step, excess=None):
        """Returns the key of each lane's best flip, or `NO_FLIP`.

        A key consists of d, the index, and one bit that is set if the variable
        is -1.

        Args:
            h: Fields.
            moves: Integers, see `moves`.
            step: Integer. Maximum size of the moves that are allowed.
            excess: Integers (optional). Larger moves are also allowed if
                d < -excess. Defaults to `None`.
        """
        limit = None
        if excess is not None:
            limit = tf.minimum(excess, self.largest - 1)[:, None]
            limit *= -(2**self.shift)
        # XLA is slow at reducing a row, but not at the minimum of pieces of the
        # row that all have the same width.
        width = min(max(-(-self.n // PIECES), MIN_WIDTH), self.n)
        smallest = None
        for begin in range(0, self.n, width):
            begin = min(begin, self.n - width)
            part = slice(begin, begin + width)
            low_bits = 2 * tf.range(begin, begin + width) + 1
            move = moves[:, part]
            # h where the variable is -1, else -h - 1. The 1 is subtracted from
            # the lowest bit.
            key = low_bits + tf.bitwise.bitwise_xor(
                h[:, part], tf.bitwise.right_shift(move, 31)
            )
            allowed = tf.abs(move) <= step
            if limit is not None:
                allowed |= key < limit
            key = tf.where(allowed, key, NO_FLIP)
            smallest = key if smallest is None else tf.minimum(smallest, key)
        return tf.reduce_min(smallest, axis=1)

    def flip(self, h, moves, key, size):
        """Flips one variable per lane.

        Args:
            h: Fields.
            moves: See `moves`.
            key: Keys returned by `best_key`.
            size: Integer or integers. Size of the new moves.

        Returns:
            Fields, moves, the indices of the flips (n for no flip) and their d.
        """
        none = key == NO_FLIP
        low_bits = tf.bitwise.bitwise_and(key, 2**self.shift - 1)
        negative = low_bits % 2
        flip = tf.where(none, self.n, low_bits // 2)
        moves = tf.where(
            tf.range(self.n)[None, :] == flip[:, None],
            tf.where(negative == 1, -size, size)[:, None],
            moves,
        )
        row = tf.where(none, 2 * self.n, flip + negative * self.n)
        h += tf.gather(self.changes, row)
        d = tf.bitwise.right_shift(key, self.shift)
        return h, moves, flip, tf.where(none, 0, d)

    def best(self, g):
        """Returns the best restart of each column, (n, m)."""
        if self.restarts == 1:
            return tf.transpose(g)
        field = tf.matmul(g, self.couplings) + 2.0 * self.half_fields
        energy = tf.reduce_sum(g * field, axis=1)
        energy = tf.reshape(energy, (self.restarts, self.m))
        tie = TIE * tf.reduce_max(tf.abs(energy), axis=0)
        ties = energy <= tf.reduce_min(energy, axis=0) + tie
        best = tf.argmax(tf.cast(ties, tf.int32), 0, output_type=tf.int32)
        return tf.transpose(tf.gather(g, best * self.m + tf.range(self.m)))


def _power_of_two(x):
    """Returns the largest power of two that is at most `x` (0 for 0)."""
    bits = tf.bitwise.bitwise_and(tf.bitcast(x, tf.int32), 0x7F800000)
    return tf.bitcast(bits, tf.float32)
