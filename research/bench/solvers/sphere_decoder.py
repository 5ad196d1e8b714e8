r"""The proven optimum of a column, by sphere decoding.

With Q + tI = R'R, R upper triangular, and y = R^{-T} s / 2, the energy of a
state is

$$g^T Q g + s^T g = \lVert R g + y \rVert^2 - \lVert y \rVert^2 - t n ,$$

a sum of n squares of which the last k know only the last k variables. The
decoder fixes variables from the last to the first and drops every partial state
whose squares already exceed those of the best state known. What it returns is
the optimum: nothing is dropped that could be better.

All partial states of a level are extended at once, in NumPy; where they are too
many, one part after the other. A good first state makes it fast. Layers with
fewer rows than inputs have n - B variables that no square sees in time, so the
work grows as 2^(n - B): meant for up to about 32 inputs.
"""

import numpy as np

# Of the mean of Q's diagonal; makes the factor exist where Q has no full rank.
SHIFT = 1e-5
# Partial states that are extended at once.
PART = 2**15
# States this much better, relative to E_rand, are not looked for: rounding.
TOLERANCE = 1e-9


def decode(qubo, states):
    """The optimum of every column.

    Args:
        qubo: a `Qubo`.
        states: (n, m), the best states known.

    Returns:
        States (n, m) of least energy, int8.
    """
    couplings = np.asarray(qubo.couplings, dtype=np.float64)
    fields = np.asarray(qubo.fields, dtype=np.float64)
    best = np.array(states, dtype=np.int8)
    # An input that is never active changes no energy.
    active = np.flatnonzero(np.diag(couplings) > 0)
    couplings = couplings[np.ix_(active, active)]
    shift = SHIFT * np.mean(np.diag(couplings)) * np.eye(len(active))
    order = _order(couplings + shift)
    active = active[order]
    couplings = couplings[np.ix_(order, order)]
    # NumPy's factor is lower triangular, L L'; R is L'.
    factor = np.linalg.cholesky(couplings + shift).T
    centres = np.linalg.solve(factor.T, fields[active] / 2)
    tolerance = TOLERANCE * np.maximum(np.abs(qubo.random_energy()), 1e-300)
    for column in range(best.shape[1]):
        found = _decode(
            factor, centres[:, column], best[active, column], tolerance[column]
        )
        best[active, column] = found
    return best


def _order(matrix):
    """Which variable comes first in the factor.

    Always the one with the least pivot, so that large pivots, which tell good
    from bad states early, stand last, where the search begins.
    """
    matrix = np.array(matrix)
    left = np.arange(len(matrix))
    order = []
    while len(left):
        k = np.argmin(np.diag(matrix))
        order.append(left[k])
        row = matrix[k] / np.sqrt(matrix[k, k])
        matrix = matrix - np.outer(row, row)
        matrix = np.delete(np.delete(matrix, k, 0), k, 1)
        left = np.delete(left, k)
    return np.array(order, dtype=int)


def _decode(factor, centre, best, tolerance):
    n = len(centre)
    bound = np.sum((factor @ best + centre) ** 2) - tolerance
    # Partial states: bits of the fixed variables, the squares so far, and what
    # the fixed variables add to the rows above.
    stack = [(n, np.zeros(1, np.int64), np.zeros(1), centre[None, :])]
    while stack:
        level, bits, cost, rows = stack.pop()
        if len(bits) > PART:
            half = len(bits) // 2
            stack.append((level, bits[half:], cost[half:], rows[half:]))
            stack.append((level, bits[:half], cost[:half], rows[:half]))
            continue
        if level == 0:
            k = np.argmin(cost)
            if cost[k] < bound:
                best = np.where(bits[k] >> np.arange(n) & 1, 1, -1)
                bound = cost[k] - tolerance
            continue
        level -= 1
        parts = []
        for sign in (-1, 1):
            total = cost + (rows[:, level] + sign * factor[level, level]) ** 2
            kept = np.flatnonzero(total < bound)
            parts.append(
                (
                    bits[kept] | ((sign > 0) << level),
                    total[kept],
                    rows[kept, :level] + sign * factor[:level, level],
                )
            )
        bits, cost, rows = (np.concatenate(pair) for pair in zip(*parts))
        if len(bits):
            stack.append((level, bits, cost, rows))
    return best


def enumerate_states(qubo):
    """The optimum of every column by looking at all 2^n states, (n, m)."""
    n = qubo.num_variables
    states = np.arange(2**n)[None, :] >> np.arange(n)[:, None] & 1
    states = 2.0 * states - 1.0
    couplings = np.asarray(qubo.couplings, dtype=np.float64)
    quadratic = np.sum(states * (couplings @ states), axis=0)
    energies = quadratic + np.asarray(qubo.fields, dtype=np.float64).T @ states
    return states[:, energies.argmin(axis=1)].astype(np.int8)
