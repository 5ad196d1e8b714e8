"""Beam search in NumPy: a start for small problems that are solved once."""

import numpy as np

# Number of variables to which one matrix product passes the feedback of all
# decided variables.
CHUNK = 32
# If only a narrower beam fits, annealed sweeps alone are better and faster.
MIN_WIDTH, MAX_WIDTH = 256, 512
# Maximum product of the number of weights and the width of the beam.
SIZE = 2**21
# Fraction of the mean diagonal that is added to the diagonal, so that Q has a
# Cholesky factor.
SHIFT = 1e-6


def beam_search(qubo):
    r"""Decides one variable after the other and keeps the best partial states.

    With \(Q = R^T R\) and \(c = -Q^{-1} s / 2\), the energy is
    \(\lVert R (g - c) \rVert^2\) plus a constant. \(R\) is upper triangular,
    so the last \(k\) variables have a cost that does not depend on the others.
    The search decides the variables from the last to the first and keeps, for
    each column, the partial states with the lowest cost. With a width of 1, it
    is GPTQ's rounding (Babai's nearest plane). In communications it is known as
    the M-algorithm or K-best sphere decoder.

    Adding a multiple of the identity to \(Q\) changes all energies by the same
    constant, because \(g_i^2 = 1\).

    Args:
        qubo: A `Qubo`.

    Returns:
        An int8 array of shape `(n, m)`, or `None` if the couplings are not
        positive semidefinite or the problem is too large for a good beam.
    """
    n, m = qubo.num_variables, qubo.num_columns
    width = min(SIZE // (n * m), MAX_WIDTH)
    if width < MIN_WIDTH:
        return None
    couplings = np.asarray(qubo.couplings, dtype=np.float64)
    # Variables with large couplings are decided first.
    order = np.argsort(np.diag(couplings), kind="stable")
    couplings = couplings[np.ix_(order, order)]
    couplings[np.diag_indices(n)] += SHIFT * np.trace(couplings) / n
    fields = np.asarray(qubo.fields, dtype=np.float64)[order]
    try:
        center = (-0.5 * np.linalg.solve(couplings, fields)).astype(np.float32)
        factor = np.linalg.cholesky(couplings).T
    except np.linalg.LinAlgError:
        return None
    if not np.isfinite(center).all():
        return None
    del couplings  # large
    diagonal = np.diag(factor).copy()
    factor /= diagonal[:, None]
    feedback = factor.astype(np.float32)
    del factor
    weights = (diagonal**2 / diagonal.max() ** 2).astype(np.float32)
    states = np.empty((n, m), dtype=np.int8)
    states[order] = _decide_all(feedback, weights, center, width)
    return states


def _decide_all(feedback, weights, center, width):
    """Decides all variables, from the last to the first.

    Args:
        feedback: Array of shape `(n, n)`. R with its rows divided by their
            diagonal entry.
        weights: Array of shape `(n,)`. The squared diagonal of R.
        center: Array of shape `(n, m)`. The real optimum c.
        width: Integer. Number of partial states per column.
    """
    n, m = center.shape
    costs = np.zeros((1, m), np.float32)
    # c - g of the decided variables: variables x beam x columns.
    rest = np.zeros((0, 1, m), np.float32)
    for end in range(n, 0, -CHUNK):
        chunk = slice(max(0, end - CHUNK), end)
        size = len(costs)
        values = feedback[chunk, end:] @ rest.reshape(n - end, size * m)
        values = values.reshape(-1, size, m) + center[chunk, None]
        costs, parents, decided = _decide(
            feedback[chunk, chunk],
            weights[chunk],
            center[chunk],
            values,
            costs,
            width,
        )
        rest = np.concatenate([decided, _extend(rest, parents)])
    best = costs.argmin(axis=0)
    found = center - rest[:, best, np.arange(m)]
    return np.where(found > 0, 1, -1)


def _decide(feedback, weights, center, values, costs, width):
    """Decides the variables of a chunk, from the last to the first.

    Args:
        feedback: Array of shape `(b, b)`.
        weights: Array of shape `(b,)`.
        center: Array of shape `(b, m)`.
        values: Array of shape `(b, k, m)`. The best real values, given the
            variables after the chunk.
        costs: Array of shape `(k, m)`. The costs of the partial states.
        width: Integer.

    Returns:
        The new costs `(k', m)`, the index `(k', m)` of the partial state that
        each new one extends, and c - g of the chunk, `(b, k', m)`.
    """
    parents = np.broadcast_to(np.arange(len(costs))[:, None], costs.shape)
    decided = values[:0]
    for i in range(len(center) - 1, -1, -1):
        size = len(costs)
        costs = np.concatenate(
            [
                costs + weights[i] * np.square(values[i] - 1),
                costs + weights[i] * np.square(values[i] + 1),
            ]
        )
        if len(costs) > width:
            kept = np.argpartition(costs, width - 1, axis=0)[:width]
        else:
            kept = np.broadcast_to(np.arange(len(costs))[:, None], costs.shape)
        costs = np.take_along_axis(costs, kept, axis=0)
        extended = kept % size
        parents = np.take_along_axis(parents, extended, axis=0)
        new = center[i] - np.where(kept < size, 1, -1).astype(np.float32)
        values = _extend(values[:i], extended)
        values += feedback[:i, i, None, None] * new
        decided = np.concatenate([new[None], _extend(decided, extended)])
    return costs, parents, decided


def _extend(array, parents):
    """Selects `array[:, parents[k, j], j]` for each k and j."""
    size, m = parents.shape
    # Much faster than `take_along_axis`.
    index = (parents * m + np.arange(m)).ravel()
    flat = array.reshape(len(array), array.shape[1] * m)
    return flat.take(index, axis=1).reshape(len(array), size, m)
