"""Search by sweeps, for all columns at once.

An update sets variable i to the sign of -h_i with h_i = sum_{j != i} Q_ij g_j +
s_i / 2, which is the better of its two values, given the others. A sweep
updates all variables, chunk by chunk. A matrix product computes the forces f on
the variables of a chunk. Within a chunk, the new states g solve
g = sign(-(f + L (g - old))), where L is the strict lower triangle of the
couplings. Each repetition of this equation makes at least one more variable
exact. A few repetitions are enough, because few variables change, and states
that a sweep does not change are a local optimum in any case.

From the states of the last update, one sweep is enough (`warm_sweep`). A search
from scratch has several lanes per column, all from the same start. It adds
random numbers to the forces, as in simulated annealing. These become smaller
from sweep to sweep. Each lane ends with sweeps without random numbers, until
nothing changes. The result is the best lane.

All steps are the same on a CPU and on a GPU: few operations on large arrays.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_qpsbgd.backends.graph import relaxed
from keras_qpsbgd.qubo import ops

# Maximum number of variables of a chunk of a warm sweep, and its repetitions.
# Energies are within 0.1 percent of those of single updates.
WARM_CHUNK = 48
REPETITIONS = 2
# The same for a search from scratch, where more variables change. With four
# repetitions, strong couplings inside a chunk make energies several percent
# worse, because many variables are not exact.
CHUNK = 24
SEARCH_REPETITIONS = 8
# The standard deviation of the last random numbers, relative to the first.
LAST = 0.05
# Maximum number of sweeps of the final descent, and the least value to which a
# small `Effort.work` lowers this maximum.
DESCENT, MIN_DESCENT = 30, 2
# Conjugate gradient iterations of the start.
ITERATIONS = 4


class Effort(NamedTuple):
    """How long a search takes.

    Attributes:
        lanes: Integer. Maximum number of lanes per column.
        size: Integer. Maximum number of variables in all lanes, if there are
            several lanes per column.
        sweeps: Integer. Maximum number of sweeps with random numbers.
        min_sweeps: Integer. Minimum number of these sweeps.
        work: Integer. Maximum number of multiplications in these sweeps.
        hot: Float. The standard deviation of the first random numbers, relative
            to the mean force at the start.
        has_beam: Boolean. Whether to run a beam search, too, and use the better
            states of each column. Defaults to `False`.
    """

    lanes: int
    size: int
    sweeps: int
    min_sweeps: int
    work: int
    hot: float
    has_beam: bool = False

    def of(self, n, m):
        """Returns the numbers of lanes, sweeps, and sweeps of the descent."""
        lanes = max(1, min(self.lanes, self.size // (n * m)))
        affordable = self.work // (n * n * m * lanes)
        sweeps = max(self.min_sweeps, min(self.sweeps, affordable))
        return lanes, sweeps, max(MIN_DESCENT, min(DESCENT, affordable))


def warm_sweep(problem):
    """Returns the states after updating all variables, from a good start.

    Args:
        problem: A stack of `ops.Problem` with a start. Its tensors have one
            more leading axis.

    Returns:
        Tensor of shape `(stack, n, m)`.
    """
    couplings, states = problem.couplings, problem.start
    n = states.shape[1]
    size = -(-n // -(-n // WARM_CHUNK))
    for begin in range(0, n, size):
        chunk = slice(begin, min(begin + size, n))
        rows, old = couplings[:, chunk], states[:, chunk]
        inside = rows[:, :, chunk]
        forces = tf.matmul(rows, states) + problem.fields[:, chunk] / 2.0
        # A variable exerts no force on itself.
        forces -= tf.linalg.diag_part(inside)[..., None] * old
        new = _repeated(forces, old, inside, REPETITIONS)
        states = tf.concat(
            [states[:, :begin], new, states[:, begin + size :]], axis=1
        )
    return states


def search(problem, seed, effort):
    """Searches from scratch, or from the start of the problem.

    Args:
        problem: An `ops.Problem`.
        seed: Int32 tensor of shape `(2,)`.
        effort: An `Effort`.

    Returns:
        A float32 tensor of shape `(n, m)` with the values +1.0 and -1.0. Its
        energies are at most those of the start, except for rounding.
    """
    n, m = problem.fields.shape
    num_lanes, sweeps, max_descent = effort.of(n, m)
    start = problem.start
    if start is None:
        stack = ops.Problem(problem.couplings[None], problem.fields[None])
        found = relaxed.iterated_solution(stack, [n], ITERATIONS)[0]
        start = ops.sign(tf.transpose(found))
    lanes = _Lanes(problem, num_lanes)
    states = lanes.divide(tf.tile(start, (1, num_lanes)))
    if sweeps:
        force = tf.reduce_sum(tf.abs(lanes.forces(states)), axis=(0, 1))
        hot = effort.hot / n * force

        def anneal(index, states):
            cooled = LAST ** (tf.cast(index, tf.float32) / max(sweeps - 1, 1))
            own_seed = seed + tf.stack([0, index])
            return index + 1, lanes.sweep(states, hot * cooled, own_seed)

        _, states = tf.while_loop(
            lambda index, _: index < sweeps, anneal, (0, states)
        )

    def descend(index, before, _):
        after = lanes.sweep(before)
        return index + 1, after, tf.reduce_any(after != before)

    _, states, _ = tf.while_loop(
        lambda index, _, changed: changed & (index < max_descent),
        descend,
        (0, states, True),
    )
    return lanes.best(states, start)


class _Lanes:
    """The lanes of all columns, with their variables in chunks of equal size.

    States have the shape `(chunks, size, lanes * m)`.
    """

    def __init__(self, problem, count):
        self._n, self._m = problem.fields.shape
        self._chunks = -(-self._n // CHUNK)
        self._size = -(-self._n // self._chunks)
        self._count = count
        # A variable exerts no force on itself.
        couplings = problem.couplings
        couplings = tf.linalg.set_diag(couplings, tf.zeros((self._n,)))
        couplings = ops.padded(couplings, 1, self._chunks * self._size)
        self._couplings = self.divide(couplings)
        self._half_fields = self.divide(
            tf.tile(problem.fields / 2.0, (1, count))
        )

    def divide(self, tensor):
        """Pads and reshapes (n, k) to (chunks, size, k)."""
        tensor = ops.padded(tensor, 0, self._chunks * self._size)
        return tf.reshape(tensor, (self._chunks, self._size, tensor.shape[1]))

    def forces(self, states):
        """Returns the forces on all variables."""
        return self._products(self._couplings, states) + self._half_fields

    def _products(self, couplings, states):
        return tf.matmul(couplings, self._joined(states))

    def _joined(self, states):
        return tf.reshape(states, (self._chunks * self._size, -1))

    def sweep(self, states, temperature=None, seed=None):
        """Returns the states after updating all variables.

        Args:
            states: Tensor of shape `(chunks, size, lanes)`.
            temperature: Tensor of shape `(lanes,)` (optional). The standard
                deviation of random numbers that are added to the forces.
                Defaults to `None`, which adds none.
            seed: Int32 tensor of shape `(2,)` (optional). The seed of the
                random numbers. Defaults to `None`.
        """

        def update(chunk, states):
            # Slices would compile again for every value of `chunk`.
            rows = tf.gather(self._couplings, chunk)
            forces = self._products(rows, states)
            forces += tf.gather(self._half_fields, chunk)
            if temperature is not None:
                own_seed = seed + tf.stack([chunk, 0])
                forces += temperature * _random(own_seed, forces.shape)
            old = tf.gather(states, chunk)
            shape = (self._size, self._chunks, self._size)
            inside = tf.gather(tf.reshape(rows, shape), chunk, axis=1)
            new = _repeated(
                forces[None], old[None], inside[None], SEARCH_REPETITIONS
            )
            here = (tf.range(self._chunks) == chunk)[:, None, None]
            return chunk + 1, tf.where(here, new, states)

        return tf.while_loop(
            lambda chunk, _: chunk < self._chunks, update, (0, states)
        )[1]

    def best(self, states, start):
        """Returns the best states of each column, (n, m), or the start."""
        alone = self.divide(tf.tile(start, (1, self._count)))
        found = tf.stack([self._joined(alone), self._joined(states)])
        energies = tf.stack([self._energies(alone), self._energies(states)])
        shape = (2, -1, self._count, self._m)
        found = tf.transpose(tf.reshape(found, shape), (0, 2, 3, 1))
        count = 2 * self._count
        best = tf.argmin(tf.reshape(energies, (count, self._m)), axis=0)
        found = tf.reshape(found, (count, self._m, -1))
        index = tf.stack([best, tf.range(self._m, dtype=tf.int64)], axis=1)
        return tf.transpose(tf.gather_nd(found, index)[:, : self._n])

    def _energies(self, states):
        forces = self.forces(states) + self._half_fields
        return tf.reduce_sum(states * forces, axis=(0, 1))


def _random(seed, shape):
    """Returns nearly normal random numbers, each the sum of four bytes.

    Compiled and plain graphs have the same random integers, but not the same
    floats.
    """
    bits = tf.random.stateless_uniform(
        shape, seed, minval=None, maxval=None, dtype=tf.int32, alg="philox"
    )
    total = tf.add_n(
        [
            tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, shift), 255)
            for shift in (0, 8, 16, 24)
        ]
    )
    mean, deviation = 510.0, 147.8
    return (tf.cast(total, tf.float32) - mean) / deviation


def _repeated(forces, old, couplings, repetitions):
    """Updates the variables of a chunk, as the module docstring describes."""
    size = old.shape[1]
    lower = np.tril(np.ones((size, size), np.float32), -1) * couplings
    new = ops.sign(-forces)
    for _ in range(repetitions):
        new = ops.sign(-(forces + tf.matmul(lower, new - old)))
    return new
