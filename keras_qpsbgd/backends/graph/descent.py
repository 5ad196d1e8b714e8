"""Descent in float64 with NumPy, from the result of a float32 search."""

import numpy as np

# Changes below this fraction of their largest possible value are rounding
# errors.
ROUNDING = 1e-14


def descend(qubo, states, start):
    """Improves the states of each column by single flips, in float64.

    A float32 search keeps about seven digits of the largest number. If a
    problem has couplings of 1e8 (penalties) and others of order 1, the search
    does not see the small ones.

    Each column starts from the better of `states` and `start`.

    Args:
        qubo: A `Qubo`.
        states: Array of shape `(n, m)`. The result of the search.
        start: Array of shape `(n, m)`. The states that the search started from.

    Returns:
        An int8 array of shape `(n, m)` with energies no higher than those of
        `states` and `start`. No single flip and no negation of a whole column
        lowers them.
    """
    couplings = np.array(qubo.couplings, dtype=np.float64)
    np.fill_diagonal(couplings, 0.0)
    half_fields = np.asarray(qubo.fields, dtype=np.float64) / 2
    states = np.asarray(states, dtype=np.float64)
    before, after = qubo.varying_energies([start, states])
    states = np.where(before < after, start, states)
    for _ in range(qubo.num_variables):
        states = _flip_best(couplings, half_fields, states)
        ascends = (half_fields * states).sum(axis=0) > 0
        if not ascends.any():
            break
        states[:, ascends] *= -1.0
    return states.astype(np.int8)


def _flip_best(couplings, half_fields, states):
    """Flips the best variable of each column until no flip helps."""
    states = states.copy()
    reach = np.abs(couplings).sum(axis=1, keepdims=True) + np.abs(half_fields)
    tolerance = ROUNDING * reach
    forces = couplings @ states + half_fields
    columns = np.arange(states.shape[1])
    for _ in range(10 * len(states)):
        # A flip lowers the energy by four times its gain.
        gains = np.where(states * forces > tolerance, states * forces, 0.0)
        best = gains.argmax(axis=0)
        moves = gains[best, columns] > 0
        if not moves.any():
            break
        change = np.where(moves, -2.0 * states[best, columns], 0.0)
        states[best, columns] += change
        forces += couplings[:, best] * change
    return states
