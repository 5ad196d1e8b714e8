r"""Sphere decoder, which computes the proven optimum of a column.

With Q + tI = R'R, R upper triangular, and y = R^{-T} s / 2, the energy of a
state is

$$g^T Q g + s^T g = \lVert R g + y \rVert^2 - \lVert y \rVert^2 - t n ,$$

a sum of n squares of which the last k depend only on the last k variables. The
decoder fixes the variables from the last to the first and drops every partial
state whose squares already exceed those of the best known state. The result is
the optimum, because no state that could be better is dropped.

NumPy extends all partial states of a level at once, or in parts if there are
too many. A good initial state makes the decoder fast. In layers with fewer rows
(B) than inputs (n), n - B variables enter the squares too late to drop states,
so the work grows as 2^(n - B). The decoder is meant for up to about 32 inputs.
"""

import numpy as np

# t relative to the mean diagonal of Q. Without it, the factor does not exist if
# Q is singular.
SHIFT = 1e-5
# Maximum number of partial states that are extended at once.
PART = 2**15
# Smaller improvements, relative to E_rand, are ignored as rounding errors.
TOLERANCE = 1e-9


def decode(qubo, states):
    """Returns the optimum of every column.

    Args:
        qubo: A `Qubo`.
        states: Array of shape (n, m). The best known states.

    Returns:
        States (n, m) with the lowest energy, int8.
    """
    couplings = np.asarray(qubo.couplings, dtype=np.float64)
    fields = np.asarray(qubo.fields, dtype=np.float64)
    best = np.array(states, dtype=np.int8)
    # Inputs that are never active do not affect the energy.
    active = np.flatnonzero(np.diag(couplings) > 0)
    couplings = couplings[np.ix_(active, active)]
    shift = SHIFT * np.mean(np.diag(couplings)) * np.eye(len(active))
    order = _order(couplings + shift)
    active = active[order]
    couplings = couplings[np.ix_(order, order)]
    # NumPy computes the lower triangular factor L of L L', and R = L'.
    factor = np.linalg.cholesky(couplings + shift).T
    centers = np.linalg.solve(factor.T, fields[active] / 2)
    tolerance = TOLERANCE * np.maximum(np.abs(qubo.random_energy()), 1e-300)
    for column in range(best.shape[1]):
        found = _decode(
            factor, centers[:, column], best[active, column], tolerance[column]
        )
        best[active, column] = found
    return best


def _order(matrix):
    """Returns the order of the variables in the factor.

    The next variable is always the one with the smallest pivot. Large pivots,
    which separate good from bad states early, are then at the end, where the
    search starts.
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


def _decode(factor, center, best, tolerance):
    n = len(center)
    bound = np.sum((factor @ best + center) ** 2) - tolerance
    # Partial states: the bits of the fixed variables, the sum of squares so
    # far, and the contribution of the fixed variables to the rows above.
    stack = [(n, np.zeros(1, np.int64), np.zeros(1), center[None, :])]
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
