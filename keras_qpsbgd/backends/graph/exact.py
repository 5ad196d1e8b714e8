"""Exact solution by enumerating all states."""

import functools
import operator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_qpsbgd.backends.graph.graph_backend import GraphBackend
from keras_qpsbgd.qubo import Qubo
from keras_qpsbgd.qubo import ops

# Above the rounding error of a float32 energy and far below real gaps.
TIE = 1e-6
# `best_states` enumerates this many columns at once, to limit the memory.
COLUMNS = 32
# Number of pieces that a row is split into to find its minimum.
PIECES = 8


def enumerate_states(problem, tie=TIE):
    """Returns the best of all 2^n states of each column.

    A state and its negation differ only in the sign of s'g, so the better of
    the two has the energy g'Qg - |s'g|. It is enough to enumerate the states
    whose first variable is +1. The variables are split into two halves,
    g = (a, b), and g'Qg is one table of all pairs, shared by all columns. Ties
    go to the lowest index.

    Args:
        problem: An `ops.Problem`.
        tie: Float. Energies closer than this, relative to `_energy_scale`, are
            a tie. Defaults to a value above the rounding error of float32.

    Returns:
        A tensor of shape `(n, m)`, with the type of the problem.
    """
    couplings = problem.couplings
    n = problem.fields.shape[0]
    half = n - n // 2
    dtype = couplings.dtype.as_numpy_dtype
    first = _all_states(half, dtype)[: 2 ** (half - 1)]
    second = _all_states(n - half, dtype)
    table = (
        _quadratic(first, couplings[:half, :half])[:, None]
        + _quadratic(second, couplings[half:, half:])[None, :]
        + _product(2.0 * _product(first, couplings[:half, half:]), second.T)
    )
    # s'g = s_a'a + s_b'b, (m, number of a) and (m, number of b)
    linear_first = _product(tf.transpose(problem.fields[:half]), first.T)
    linear_second = _product(tf.transpose(problem.fields[half:]), second.T)

    # Reduce in pieces because XLA is slow at reducing a whole row.
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
    if tie:
        bound += tie * _energy_scale(problem)
    a = _first_true(best_of_first <= bound[:, None])
    linear = tf.gather(linear_first, a, batch_dims=1)[:, None] + linear_second
    b = _first_true(tf.gather(table, a) - tf.abs(linear) <= bound[:, None])
    states = tf.concat([tf.gather(first, a), tf.gather(second, b)], axis=1)
    ascends = tf.gather(linear, b, batch_dims=1) > 0
    return tf.transpose(tf.where(ascends[:, None], -states, states))


def best_states(qubo):
    """Returns the best of all 2^n states of each column of a `Qubo`.

    Computes in float64. The offset and the diagonal of Q are left out because
    they are the same for all states. With a large constant, small differences
    would be lost to rounding.

    Returns:
        An int8 array of shape `(n, m)`.
    """
    couplings = np.array(qubo.couplings, dtype=np.float64)
    np.fill_diagonal(couplings, 0.0)
    couplings = tf.constant(couplings)
    fields = np.asarray(qubo.fields, dtype=np.float64)
    found = []
    for begin in range(0, qubo.num_columns, COLUMNS):
        part = tf.constant(fields[:, begin : begin + COLUMNS])
        states = enumerate_states(ops.Problem(couplings, part), tie=0.0)
        found.append(states.numpy().astype(np.int8))
    return np.concatenate(found, axis=1)


class ExactBackend(GraphBackend):
    """Finds the optimum of every column, for layers with at most 20 inputs.

    Training compares energies in float32. `solve`, which takes a `Qubo`,
    compares them in float64.

    Example:
        ```python
        optimizer = kq.QPSBGD(backend="exact")
        ```
    """

    name = "exact"
    max_variables = 20

    def search(self, problem: ops.Problem, seed: tf.Tensor) -> tf.Tensor:
        return enumerate_states(problem)

    def sample(
        self, qubo: Qubo, seed: int
    ) -> tuple[np.ndarray, dict[str, Any]]:
        del seed
        proven = np.ones(qubo.num_columns, bool)
        return best_states(qubo)[None], {"proven_optimal": proven}


def _energy_scale(problem):
    """Estimates the size of the energies that the search compares, (m,).

    The energy of a random state is about tr Q, and s'g is at most the sum of
    the absolute fields.
    """
    trace = tf.abs(tf.linalg.trace(problem.couplings))
    return trace + tf.reduce_sum(tf.abs(problem.fields), axis=0)


def _all_states(n, dtype):
    """Returns all 2^n states of n variables as rows, (2^n, n)."""
    index = np.arange(2**n)[:, None]
    bits = (index >> np.arange(n)[None, ::-1]) & 1
    return (1.0 - 2.0 * bits).astype(dtype)


def _quadratic(states, couplings):
    """Computes g'Qg for each row g."""
    return tf.reduce_sum(_product(states, couplings) * states, axis=1)


def _product(left, right):
    """Computes a matrix product as a sum of outer products.

    XLA passes matrix products to a thread pool. For matrices this small, that
    takes longer than the product itself.
    """
    terms = (
        left[:, i, None] * right[i][None, :] for i in range(right.shape[0])
    )
    zeros = tf.zeros((left.shape[0], right.shape[1]), left.dtype)
    return functools.reduce(operator.add, terms, zeros)


def _first_true(mask):
    """Returns the index of the first true entry of each row."""
    return tf.argmax(tf.cast(mask, tf.int32), axis=1, output_type=tf.int32)
