"""Exact solution by enumeration of all states."""

import numpy as np
import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd.backends.backend import GraphBackend

# Energies closer than this, relative to that of a random state, are a tie: it
# is above the rounding error of a float32 energy and far below real gaps.
TIE = 1e-6
PIECES = 16


def enumerate_states(problem):
    """The best of all 2^n states of each column.

    The variables are split in two halves, g = (a, b). What couples them,
    2 a'Q_ab b, is one 2^(n/2) x 2^(n/2) table for all columns; each column adds
    what depends on a or b alone. Ties go to the lowest index.
    """
    couplings = problem.couplings
    if couplings is None:
        z = problem.normalized_rows
        couplings = tf.matmul(z, z, transpose_a=True)
    n = problem.fields.shape[0]
    half = n // 2
    first, second = _all_states(half), _all_states(n - half)
    table = tf.matmul(
        tf.matmul(2.0 * first, couplings[:half, half:]),
        second,
        transpose_b=True,
    )
    # What depends on one half only, (m, 2^half) and (m, 2^(n - half))
    only_first = _energies(
        first, couplings[:half, :half], problem.fields[:half]
    )
    only_second = _energies(
        second, couplings[half:, half:], problem.fields[half:]
    )

    # Piece by piece: under XLA a reduction along a whole row is slow.
    best_of_first = None
    width = -(-second.shape[0] // PIECES)
    for begin in range(0, second.shape[0], width):
        part = slice(begin, begin + width)
        energies = table[None, :, part] + only_second[:, None, part]
        if best_of_first is None:
            best_of_first = energies
        else:
            best_of_first = tf.minimum(best_of_first, energies)
    best_of_first = only_first + tf.reduce_min(best_of_first, axis=2)
    bound = tf.reduce_min(best_of_first, axis=1)
    bound += TIE * tf.abs(ops.random_energy(problem))
    a = _first_true(best_of_first <= bound[:, None])
    energies = (
        tf.gather(table, a)
        + only_second
        + tf.gather(only_first, a, batch_dims=1)[:, None]
    )
    b = _first_true(energies <= bound[:, None])
    states = tf.concat([tf.gather(first, a), tf.gather(second, b)], axis=1)
    return tf.transpose(states)


class ExactBackend(GraphBackend):
    """The optimum of every column, for layers of at most 20 inputs."""

    name = "exact"
    max_variables = 20

    def search(self, problem, seed):
        return enumerate_states(problem)


def _all_states(n):
    """All 2^n states of n variables as rows, (2^n, n)."""
    index = np.arange(2**n)[:, None]
    bits = (index >> np.arange(n)[None, ::-1]) & 1
    return tf.constant(1.0 - 2.0 * bits, tf.float32)


def _energies(states, couplings, fields):
    """Energies (m, states) of states (states, n), without the offset."""
    quadratic = tf.reduce_sum(tf.matmul(states, couplings) * states, axis=1)
    return quadratic[None, :] + tf.matmul(fields, states, True, True)


def _first_true(mask):
    return tf.argmax(tf.cast(mask, tf.int32), axis=1, output_type=tf.int32)
