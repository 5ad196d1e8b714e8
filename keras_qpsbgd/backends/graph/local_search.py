"""Search by single flips, for all columns and restarts at once.

Each lane (a column and a restart) holds a state g and the field
h_i = sum_{j != i} Q_ij g_j + s_i / 2. Flipping variable i changes the energy by
4 d_i, d_i = -g_i h_i, and the field by -2 g_i Q_i. Each lane flips its own best
variable at each step.

The search runs on integers: couplings and fields are rounded to a unit of about
1e-7 of the largest possible field. Sums are then exact, so compiled and plain
graphs take the same steps and equal energies are equal; and d and the index of
its variable fit in one number, the key. The least key is the best flip, ties
going to the lower index. (Parameters were chosen on other instances than those
of `python -m research bench solver`.)

A variable without couplings to others is fixed at sign(-s), which is its
optimum; free flips would otherwise eat the steps.
"""

import tensorflow as tf

from keras_qpsbgd import ops

# A flipped variable rests for 3 + U{0..5} steps.
TENURE = 3
TENURE_SPREAD = 6
TENURE_TABLE = 64
# The search ends early once fewer than a sixth of the lanes have found anything
# better during the last fifth of the steps, and of 16 steps.
WINDOW = 5
LEAST_WINDOW = 16
LIVELY = 6
# Energies of restarts closer than this, relative to the largest, are a tie.
TIE = 1e-6
# The key of no flip.
NONE = tf.int32.max
# The least key of a lane is sought in so many pieces at once, of so many
# entries at least.
PIECES = 16
LEAST_WIDTH = 8


def greedy(problem, seed):
    """Best-improvement descent from `problem.start`, else from sign(-s)."""
    del seed
    lanes = _Lanes(problem, 1)

    def improves(step, h, turns, least):
        del h, turns
        return (step < 2 * lanes.n) & tf.reduce_any(least < 0)

    def descend(step, h, turns, least):
        least = tf.where(least < 0, least, NONE)
        h, turns, _, _ = lanes.flip(h, turns, least, 1)
        return step + 1, h, turns, lanes.least_key(h, turns, 1)

    h, turns = lanes.field(lanes.start), lanes.turns(2)
    loop = (0, h, turns, lanes.least_key(h, turns, 1))
    _, _, turns, _ = tf.while_loop(improves, descend, loop)
    return lanes.best(ops.sign(-tf.cast(turns, tf.float32)))


def tabu(problem, seed, steps, restarts):
    """1-opt tabu search.

    Restart 0 starts from `problem.start`, or from sign(-s) if there is none,
    the others at random. Each step takes the
    best flip that is not tabu, uphill too; a tabu flip is allowed if it beats
    the best energy of the lane.

    Args:
        steps: flips per lane, at most.
        restarts: lanes per column.
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
    window = max(steps // WINDOW, LEAST_WINDOW)

    def goes_on(step, h, turns, excess, best_step, history):
        del h, turns, excess, history
        lively = best_step > step - window
        lively = tf.reduce_sum(tf.cast(lively, tf.int32))
        return (step < steps) & ((LIVELY * lively >= lanes.count) | (step == 0))

    def body(step, h, turns, excess, best_step, history):
        # A turn's size is the step, counted from 1, at which it is allowed;
        # `excess` is how far the energy is above the best of the lane.
        least = lanes.least_key(h, turns, step + 1, excess)
        until = step + tf.gather(table, step % TENURE_TABLE)
        h, turns, flip, d = lanes.flip(h, turns, least, until)
        excess += d
        best_step = tf.where(excess < 0, step + 1, best_step)
        excess = tf.maximum(excess, 0)
        return step + 1, h, turns, excess, best_step, history.write(step, flip)

    zero = tf.zeros((lanes.count,), tf.int32)
    h, turns = lanes.field(lanes.start), lanes.turns(tf.int32.max)
    *_, best_step, history = tf.while_loop(
        goes_on, body, (0, h, turns, zero, zero, history)
    )
    # Replaying the flips up to the best step is cheaper than copying the best
    # state whenever one is found; index n stands for no flip.
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

    Fields are kept shifted left, to leave room for the index in a key.
    """

    def __init__(self, problem, restarts, seed=None):
        couplings = problem.couplings
        if couplings is None:
            z = problem.normalized_rows
            couplings = tf.matmul(z, z, transpose_a=True)
        self.n, self.m = problem.fields.shape
        self.restarts = restarts
        self.count = self.m * restarts
        # Enough low bits for a key; and no field above 2^24, so that the
        # float32 sums of the start are exact.
        self.shift = max((self.n - 1).bit_length() + 1, 8)
        self.largest = 2 ** (31 - self.shift)

        couplings = tf.linalg.set_diag(couplings, tf.zeros((self.n,)))
        # Symmetric, so either axis will do, and XLA is faster along this one.
        reach = tf.reduce_sum(tf.abs(couplings), axis=0)
        self.active = reach > 0
        # Beyond its reach a field decides its variable, whatever its size:
        # clipped, it cannot take the bits of the others.
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
        # What a flip adds to the fields, from +1 and from -1; and from nothing.
        rows = tf.cast(couplings, tf.int32) * 2 ** (self.shift + 1)
        self.changes = tf.concat([-rows, rows, tf.zeros_like(rows[:1])], 0)

        self.start = ops.sign(-tf.transpose(problem.fields))
        if problem.start is not None:
            self.start = tf.where(
                self.active, tf.transpose(problem.start), self.start
            )
        if restarts > 1:
            # Integers: philox gives compiled and plain graphs the same integers
            # but not the same floats.
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
        h = tf.matmul(g, self.couplings) + self.half_fields
        return tf.cast(h, tf.int32) * 2**self.shift

    def turns(self, fixed):
        """What a flip does to each variable: -1 where it is +1, +1 where -1.

        `fixed` is the size where it is not to be flipped, instead of 1.
        """
        size = tf.where(self.active, 1, fixed)
        return tf.where(self.start > 0, -size, size)

    def least_key(self, h, turns, step, excess=None):
        """The key of the best flip of each lane, `NONE` if there is none.

        A key is d, then the index, then one bit: whether the variable is -1.

        Args:
            h: fields.
            turns: integers, see `turns`. Where their size is above `step` the
                variable may not be flipped, ...
            excess: ... unless d < -excess.
        """
        limit = None
        if excess is not None:
            limit = tf.minimum(excess, self.largest - 1)[:, None]
            limit *= -(2**self.shift)
        # Under XLA a reduction along a row is slow. The minimum of pieces of
        # it, all of the same width, is not.
        width = min(max(-(-self.n // PIECES), LEAST_WIDTH), self.n)
        least = None
        for begin in range(0, self.n, width):
            begin = min(begin, self.n - width)
            part = slice(begin, begin + width)
            low_bits = 2 * tf.range(begin, begin + width) + 1
            turn = turns[:, part]
            # h where the variable is -1, else -h - 1: the one is taken from the
            # lowest bit.
            key = low_bits + tf.bitwise.bitwise_xor(
                h[:, part], tf.bitwise.right_shift(turn, 31)
            )
            allowed = tf.abs(turn) <= step
            if limit is not None:
                allowed |= key < limit
            key = tf.where(allowed, key, NONE)
            least = key if least is None else tf.minimum(least, key)
        return tf.reduce_min(least, axis=1)

    def flip(self, h, turns, key, size):
        """Flips one variable per lane.

        Args:
            h: fields.
            turns: see `turns`.
            key: from `least_key`.
            size: the size that the new turn gets.

        Returns:
            Fields, turns, the indices of the flips (n for none) and their d.
        """
        none = key == NONE
        low_bits = tf.bitwise.bitwise_and(key, 2**self.shift - 1)
        negative = low_bits % 2
        flip = tf.where(none, self.n, low_bits // 2)
        turns = tf.where(
            tf.range(self.n)[None, :] == flip[:, None],
            tf.where(negative == 1, -size, size)[:, None],
            turns,
        )
        row = tf.where(none, 2 * self.n, flip + negative * self.n)
        h += tf.gather(self.changes, row)
        d = tf.bitwise.right_shift(key, self.shift)
        return h, turns, flip, tf.where(none, 0, d)

    def best(self, g):
        """The best restart of each column, (n, m)."""
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
    """The largest power of two that is not above `x` (0 for 0)."""
    bits = tf.bitwise.bitwise_and(tf.bitcast(x, tf.int32), 0x7F800000)
    return tf.bitcast(bits, tf.float32)
