"""Exact solution by enumeration of all states."""

import functools
import operator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd.backends.graph.graph_backend import GraphBackend
from keras_qpsbgd.qubo import Qubo

# Energies closer than this, relative to `_energy_scale`, are a tie: it is above
# the rounding error of a float32 energy and far below real gaps.
TIE = 1e-6
# Parts in which minima along a row are taken.
PIECES = 8


def enumerate_states(problem):
    """The best of all 2^n states of each column.

    A state and its opposite differ only in the sign of s'g, so the better of
    the two has the energy g'Qg - |s'g|, and half of the states suffice: those
    whose first variable is +1. The variables are split in two halves,
    g = (a, b); g'Qg is one table of all pairs, shared by all columns. Ties go
    to the lowest index.
    """
    couplings = problem.couplings
    if couplings is None:
        z = problem.normalized_rows
        couplings = tf.matmul(z, z, transpose_a=True)
    n = problem.fields.shape[0]
    half = n - n // 2
    first = _all_states(half)[: 2 ** (half - 1)]
    second = _all_states(n - half)
    table = (
        _quadratic(first, couplings[:half, :half])[:, None]
        + _quadratic(second, couplings[half:, half:])[None, :]
        + _product(2.0 * _product(first, couplings[:half, half:]), second.T)
    )
    # s'g = s_a'a + s_b'b, (m, number of a) and (m, number of b)
    linear_first = _product(tf.transpose(problem.fields[:half]), first.T)
    linear_second = _product(tf.transpose(problem.fields[half:]), second.T)

    # Piece by piece: under XLA a reduction along a whole row is slow.
    best_of_first = None
    width = -(-second.shape[0] // PIECES)
    for begin in range(0, second.shape[0], width):
        part = slice(begin, begin + width)
        linear = linear_first[:, :, None] + linear_second[:, None, part]
        energies = table[None, :, part] - tf.abs(linear)
        if best_of_first is None:
            best_of_first = energies
        else:
            best_of_first = tf.minimum(best_of_first, energies)
    best_of_first = tf.reduce_min(best_of_first, axis=2)
    bound = tf.reduce_min(best_of_first, axis=1)
    bound += TIE * _energy_scale(problem)
    a = _first_true(best_of_first <= bound[:, None])
    linear = tf.gather(linear_first, a, batch_dims=1)[:, None] + linear_second
    b = _first_true(tf.gather(table, a) - tf.abs(linear) <= bound[:, None])
    states = tf.concat([tf.gather(first, a), tf.gather(second, b)], axis=1)
    ascends = tf.gather(linear, b, batch_dims=1) > 0
    return tf.transpose(tf.where(ascends[:, None], -states, states))


def best_states(qubo):
    """The best of all 2^n states of each column of a `Qubo`, in float64.

    The same split as in `enumerate_states`. Neither the offset nor the diagonal
    of Q enters, as they are the same for all states: next to a large constant,
    small differences would be lost.

    Returns:
        int8 array, (n, m).
    """
    couplings = np.array(qubo.couplings, dtype=np.float64)
    np.fill_diagonal(couplings, 0.0)
    fields = np.asarray(qubo.fields, dtype=np.float64)
    n, m = fields.shape
    half = n - n // 2
    first = _all_states(half)[: 2 ** (half - 1)].astype(np.float64)
    second = _all_states(n - half).astype(np.float64)
    table = (
        ((first @ couplings[:half, :half]) * first).sum(axis=1)[:, None]
        + ((second @ couplings[half:, half:]) * second).sum(axis=1)[None, :]
        + 2.0 * first @ couplings[:half, half:] @ second.T
    )
    linear_first = first @ fields[:half]
    linear_second = second @ fields[half:]
    states = np.empty((n, m), np.int8)
    for column in range(m):
        linear = np.add.outer(linear_first[:, column], linear_second[:, column])
        energies = table - np.abs(linear)
        a, b = np.unravel_index(energies.argmin(), energies.shape)
        sign = -1 if linear[a, b] > 0 else 1
        states[:half, column] = sign * first[a]
        states[half:, column] = sign * second[b]
    return states


class ExactBackend(GraphBackend):
    """The optimum of every column, for layers of at most 20 inputs.

    In training the energies are float32. `solve`, which takes a `Qubo`,
    compares them in float64.
    """

    name = "exact"
    max_variables = 20

    def search(self, problem: ops.Problem, seed: tf.Tensor) -> tf.Tensor:
        return enumerate_states(problem)

    def sample(
        self, qubo: Qubo, seed: int
    ) -> tuple[np.ndarray, dict[str, Any]]:
        del seed
        return best_states(qubo)[None], {}


def _energy_scale(problem):
    """How large the energies are that the search compares, (m,).

    About tr Q + offset, the energy of a random state. But the offset is the
    same for all states. What it has to do with the others is s'g, which is at
    most 2 sqrt(g'Qg offset) (Cauchy-Schwarz), and g'Qg is at most n tr Q. With
    inputs that are not normalised the offset is far larger than that.
    """
    n = problem.fields.shape[0]
    trace = tf.reduce_sum(ops.coupling_diagonal(problem))
    offset = tf.abs(problem.offset)
    steering = 2.0 * tf.sqrt(n * tf.abs(trace)) * tf.sqrt(offset)
    return tf.abs(trace) + tf.minimum(offset, steering)


def _all_states(n):
    """All 2^n states of n variables as rows, (2^n, n)."""
    index = np.arange(2**n)[:, None]
    bits = (index >> np.arange(n)[None, ::-1]) & 1
    return np.float32(1.0 - 2.0 * bits)


def _quadratic(states, couplings):
    """g'Qg of each row g."""
    return tf.reduce_sum(_product(states, couplings) * states, axis=1)


def _product(left, right):
    """The matrix product, as a sum of outer products.

    XLA hands a product to its threads, which for matrices as small as these
    takes longer than to compute it.
    """
    terms = (
        left[:, i, None] * right[i][None, :] for i in range(right.shape[0])
    )
    none = tf.zeros((left.shape[0], right.shape[1]))
    return functools.reduce(operator.add, terms, none)


def _first_true(mask):
    return tf.argmax(tf.cast(mask, tf.int32), axis=1, output_type=tf.int32)
