"""Search by single flips, for all columns and restarts at once.

Each lane (a column and a restart) holds a state g and the field
h = Qg + s/2. Flipping variable i changes the energy by 4 (Q_ii - g_i h_i) and
the field by -2 g_i Q_i. Each lane flips its own best variable at each step.

A variable without couplings (never active in the batch) is fixed at sign(-s),
which is its optimum; free flips would otherwise eat the steps.
"""

import math

import tensorflow as tf

from keras_qpsbgd import ops

# A flipped variable rests for 3 + U{0..5} steps.
TENURE = 3
TENURE_SPREAD = 6
TENURE_TABLE = 64
# Energy differences below this share of the mean Q_ii are rounding.
TOLERANCE = 1e-6


def greedy(problem, seed):
    """Best-improvement descent from sign(-s)."""
    del seed
    lanes = _Lanes(problem, 1)

    def improves(step, g, h, gain):
        del g, h
        return (step < 2 * lanes.n) & tf.reduce_any(gain < -lanes.tolerance)

    def descend(step, g, h, gain):
        del gain
        delta = lanes.delta(g, h)
        flip = _argmin(delta)
        gain = tf.gather(delta, flip, batch_dims=1)
        improving = gain < -lanes.tolerance
        g, h = lanes.flip(g, h, flip, tf.cast(improving, tf.float32))
        return step + 1, g, h, gain

    loop = (0, lanes.start, lanes.field(lanes.start), -lanes.infinite)
    _, g, _, _ = tf.while_loop(improves, descend, loop)
    return lanes.best(g)


def tabu(problem, seed, steps, restarts):
    """1-opt tabu search.

    Restart 0 starts from sign(-s), the others at random. Each step takes the
    best flip that is not tabu, uphill too; a tabu flip is allowed if it beats
    the best energy of the lane.

    Args:
        steps: flips per lane.
        restarts: lanes per column.
    """
    lanes = _Lanes(problem, restarts, seed)
    table = tf.random.stateless_uniform(
        (TENURE_TABLE, lanes.count),
        seed + [1, 0],
        minval=TENURE + 1,
        maxval=TENURE + 1 + TENURE_SPREAD,
        dtype=tf.int32,
        alg="philox",
    )
    index = tf.range(lanes.n)[None, :]
    history = tf.TensorArray(
        tf.int32, steps, element_shape=(lanes.count,), clear_after_read=False
    )

    def body(step, g, h, rest, energy, best, best_step, history):
        delta = lanes.delta(g, h)
        allowed = (rest <= step) | (
            delta < (best - energy - lanes.tolerance)[:, None]
        )
        flip = _argmin(tf.where(allowed, delta, lanes.infinite[:, None]))
        energy += tf.gather(delta, flip, batch_dims=1)
        g, h = lanes.flip(g, h, flip, 1.0)
        until = step + tf.gather(table, step % TENURE_TABLE)
        rest = tf.where(index == flip[:, None], until[:, None], rest)
        improved = energy < best - lanes.tolerance
        best = tf.where(improved, energy, best)
        best_step = tf.where(improved, step + 1, best_step)
        return (
            step + 1,
            g,
            h,
            rest,
            energy,
            best,
            best_step,
            history.write(step, flip),
        )

    zero = tf.zeros((lanes.count,))
    rest = tf.where(lanes.active, 0, tf.int32.max)
    loop = (
        0,
        lanes.start,
        lanes.field(lanes.start),
        tf.tile(rest[None], (lanes.count, 1)),
        zero,
        zero,
        tf.zeros((lanes.count,), tf.int32),
        history,
    )
    *_, best_step, history = tf.while_loop(
        lambda step, *_: step < steps, body, loop
    )
    # Replaying the flips up to the best step is cheaper than copying the best
    # state whenever one is found.
    flips = history.stack()
    counted = tf.cast(tf.range(steps)[:, None] < best_step[None, :], tf.int32)
    lane = tf.tile(tf.range(lanes.count)[None, :], (steps, 1))
    parity = tf.scatter_nd(
        tf.stack([lane, flips], axis=-1), counted, (lanes.count, lanes.n)
    )
    odd = tf.cast(parity % 2, tf.float32)
    return lanes.best(lanes.start * (1.0 - 2.0 * odd))


class _Lanes:
    """Couplings, fields and start states of all lanes, lane-major (L x n)."""

    def __init__(self, problem, restarts, seed=None):
        self.couplings = problem.couplings
        if self.couplings is None:
            z = problem.normalized_rows
            self.couplings = tf.matmul(z, z, transpose_a=True)
        self.n, self.m = problem.fields.shape
        self.restarts = restarts
        self.count = self.m * restarts
        self.diagonal = tf.linalg.diag_part(self.couplings)
        self.half_fields = tf.tile(
            tf.transpose(problem.fields) / 2.0, (restarts, 1)
        )
        self.active = tf.reduce_any(self.couplings != 0, axis=1)
        self.tolerance = TOLERANCE * tf.reduce_mean(tf.abs(self.diagonal))
        self.infinite = tf.fill((self.count,), tf.float32.max)
        self.start = ops.sign(-self.half_fields)
        if restarts > 1:
            random = tf.random.stateless_uniform(
                (self.count, self.n), seed, minval=-1.0, alg="philox"
            )
            first = tf.range(self.count)[:, None] < self.m
            fixed = first | ~self.active[None, :]
            self.start = tf.where(fixed, self.start, ops.sign(random))

    def field(self, g):
        return tf.matmul(g, self.couplings) + self.half_fields

    def delta(self, g, h):
        """Energy changes of all flips, divided by 4."""
        return self.diagonal - g * h

    def flip(self, g, h, flip, factor):
        """Flips one variable per lane where `factor` is 1."""
        value = tf.gather(g, flip, batch_dims=1) * factor
        chosen = tf.range(self.n)[None, :] == flip[:, None]
        h -= 2.0 * value[:, None] * tf.gather(self.couplings, flip)
        g = tf.where(chosen, g - 2.0 * value[:, None], g)
        return g, h

    def best(self, g):
        """The best restart of each column, (n, m)."""
        if self.restarts == 1:
            return tf.transpose(g)
        energy = tf.reduce_sum(g * (self.field(g) + self.half_fields), axis=1)
        energy = tf.reshape(energy, (self.restarts, self.m))
        best = tf.argmin(energy, axis=0, output_type=tf.int32)
        return tf.transpose(tf.gather(g, best * self.m + tf.range(self.m)))


def _argmin(values):
    """Index of the least entry of each row, near ties to the lower index.

    The index replaces the lowest bits of the number, so that one integer
    minimum finds it: about a quarter faster than argmin under XLA.
    """
    n = values.shape[1]
    mask = 2 ** max(1, math.ceil(math.log2(n))) - 1
    bits = tf.bitcast(values, tf.int32)
    # Orders negative floats as integers, too.
    bits = tf.bitwise.bitwise_xor(
        bits, tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, 31), 2**31 - 1)
    )
    packed = tf.bitwise.bitwise_or(
        tf.bitwise.bitwise_and(bits, ~mask), tf.range(n)[None, :]
    )
    least = tf.reduce_min(packed, axis=1)
    return tf.minimum(tf.bitwise.bitwise_and(least, mask), n - 1)
