"""Exact solution by enumeration of all states."""

import numpy as np
import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd.backends.backend import GraphBackend

# Energies closer than this, relative to that of a random state, are a tie: it
# is above the rounding error of a float32 energy and far below real gaps.
TIE = 1e-6


def enumerate_states(problem):
    """The best of all 2^n states of each column.

    The variables are split in two halves, g = (a, b). The couplings' part of
    the energy, a'Q_aa a + b'Q_bb b + 2 a'Q_ab b, is one 2^(n/2) x 2^(n/2) table
    for all columns; each column adds its fields. Ties go to the lowest index.
    """
    couplings = problem.couplings
    if couplings is None:
        z = problem.normalized_rows
        couplings = tf.matmul(z, z, transpose_a=True)
    n = problem.fields.shape[0]
    half = n // 2
    first, second = _all_states(half), _all_states(n - half)
    q_first = couplings[:half, :half]
    q_second = couplings[half:, half:]
    table = (
        tf.reduce_sum(tf.matmul(first, q_first) * first, axis=1)[:, None]
        + tf.reduce_sum(tf.matmul(second, q_second) * second, axis=1)[None, :]
        + 2.0
        * tf.matmul(
            tf.matmul(first, couplings[:half, half:]), second, transpose_b=True
        )
    )
    # (m, 2^half) and (m, 2^(n - half))
    linear_first = tf.matmul(problem.fields[:half], first, True, True)
    linear_second = tf.matmul(problem.fields[half:], second, True, True)

    best_of_first = linear_first + tf.reduce_min(
        table[None] + linear_second[:, None, :], axis=2
    )
    bound = tf.reduce_min(best_of_first, axis=1)
    bound += TIE * tf.abs(ops.random_energy(problem))
    a = _first_true(best_of_first <= bound[:, None])
    energies = (
        tf.gather(table, a)
        + tf.gather(linear_first, a, batch_dims=1)[:, None]
        + linear_second
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


def _first_true(mask):
    return tf.argmax(tf.cast(mask, tf.int32), axis=1, output_type=tf.int32)
