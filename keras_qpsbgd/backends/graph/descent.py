"""Descent in float64, for what a search in float32 cannot see.

A search keeps about seven digits of the largest number. Where a problem has
couplings of 1e8 (penalties) beside others of order 1, it does not see the small
ones.
"""

import numpy as np

# Changes below this share of their largest terms are rounding errors.
ROUNDING = 1e-14


def refine(qubo, states, start):
    """Descends by single flips from the better of two states, column by column.

    Args:
        qubo: a `Qubo`.
        states: (n, m), what the search found.
        start: (n, m), what it started from.

    Returns:
        int8 array, (n, m), of no higher energy than either. No single flip, and
        no turn of a whole column, makes it lower.
    """
    couplings = np.array(qubo.couplings, dtype=np.float64)
    np.fill_diagonal(couplings, 0.0)
    half_fields = np.asarray(qubo.fields, dtype=np.float64) / 2
    states = np.asarray(states, dtype=np.float64)
    before, after = qubo.varying_energies([start, states])
    states = np.where(before < after, start, states)
    for _ in range(qubo.num_variables):
        states = _descend(couplings, half_fields, states)
        ascends = (half_fields * states).sum(axis=0) > 0
        if not ascends.any():
            break
        states[:, ascends] *= -1.0
    return states.astype(np.int8)


def _descend(couplings, half_fields, states):
    """States after flips, the best one of each column at a time."""
    states = states.copy()
    reach = np.abs(couplings).sum(axis=1, keepdims=True) + np.abs(half_fields)
    least = ROUNDING * reach
    forces = couplings @ states + half_fields
    columns = np.arange(states.shape[1])
    for _ in range(10 * len(states)):
        # A flip lowers the energy by four times this.
        gains = np.where(states * forces > least, states * forces, 0.0)
        best = gains.argmax(axis=0)
        moves = gains[best, columns] > 0
        if not moves.any():
            break
        change = np.where(moves, -2.0 * states[best, columns], 0.0)
        states[best, columns] += change
        forces += couplings[:, best] * change
    return states
