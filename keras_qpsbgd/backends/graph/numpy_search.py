"""Searches in NumPy, for problems that are solved once.

`beam_search` and `anneal` find good states even for wide layers, and `descend`
ends in a local optimum of the exact energies.
"""

import numpy as np

# The beam passes feedback on to this many variables at once, by a matrix
# product.
BEAM_BLOCK = 32
# Narrower beams are worse than a descent. Wide layers have none.
MIN_WIDTH, MAX_WIDTH = 16, 512
# Maximum number of weights times width.
SIZE = 2**21
# Fraction of the mean diagonal that is added to it, so that Q has a factor.
SHIFT = 1e-6
# Variables that annealing visits between two matrix products.
ANNEALING_BLOCK = 128
MAX_DESCENT = 20
# An annealing schedule: the number of sweeps, the initial temperature, and the
# last one as a fraction of it. The initial temperature is a quantile of the
# energies that single flips of the start would cost. Chosen on networks other
# than those of the published results.
SCHEDULE = (60, 0.02, 0.05)
# The schedule of problems with more than `WIDE` weights. Few sweeps need lower
# temperatures.
WIDE, WIDE_SCHEDULE = 2**19, (30, 0.002, 0.3)
# In a descent, changes below this fraction of their largest possible value are
# rounding errors.
ROUNDING = 1e-14


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
    """Searches in the given order of the variables, from the last one.

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
    for end in range(n, 0, -BEAM_BLOCK):
        block = slice(max(0, end - BEAM_BLOCK), end)
        size = len(costs)
        values = feedback[block, end:] @ rest.reshape(n - end, size * m)
        values = values.reshape(-1, size, m) + center[block, None]
        costs, parents, decided = _decide(
            feedback[block, block],
            weights[block],
            center[block],
            values,
            costs,
            width,
        )
        rest = np.concatenate([decided, _extend(rest, parents)])
    best = costs.argmin(axis=0)
    found = center - rest[:, best, np.arange(m)]
    return np.where(found > 0, 1, -1)


def _decide(feedback, weights, center, values, costs, width):
    """Decides the variables of a block, from the last one.

    Args:
        feedback: Array of shape `(b, b)`.
        weights: Array of shape `(b,)`.
        center: Array of shape `(b, m)`.
        values: Array of shape `(b, k, m)`. The best real values, given the
            variables after the block.
        costs: Array of shape `(k, m)`. The costs of the partial states.
        width: Integer.

    Returns:
        The new costs `(k', m)`, the index `(k', m)` of the partial state that
        each new one extends, and c - g of the block, `(b, k', m)`.
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


def anneal(qubo, start, seed):
    r"""Anneals all columns from given states, by sweeps.

    A sweep visits the variables in order and flips each with the probability
    \(\min(1, e^{-\Delta / T})\), where \(\Delta\) is the change of the energy.
    All columns are annealed together. The variables of a block are visited one
    by one, after a matrix product has computed their forces
    \(F = Q g + s / 2\). A sweep costs about as much as one product with the
    couplings.

    Args:
        qubo: A `Qubo`.
        start: Array of shape `(n, m)`. Good states, whose structure a high
            temperature would destroy.
        seed: Integer.

    Returns:
        An int8 array of shape `(n, m)`: the states after annealing and a
        descent. They may be worse than `start`.
    """
    rng = np.random.default_rng(seed)
    couplings = np.asarray(qubo.couplings, dtype=np.float64)
    fields = np.asarray(qubo.fields, dtype=np.float64)
    # Float32 has a small range. Avoids a temporary array of the same size.
    scale = max(couplings.max(), -couplings.min()) or 1.0
    scaled = np.empty(couplings.shape, np.float32)
    couplings = np.divide(couplings, scale, out=scaled, casting="same_kind")
    states = np.asarray(start).T.astype(np.float32)
    half_fields = (fields / (2 * scale)).astype(np.float32)
    diagonal = np.diag(couplings)[:, None].copy()
    # A flip changes the energy by 4 (Q_ii - g_i F_i).
    costs = np.abs(diagonal - states.T * (couplings @ states.T + half_fields))
    schedule = WIDE_SCHEDULE if states.size > WIDE else SCHEDULE
    sweeps, quantile, last = schedule
    hot = np.quantile(costs, quantile, axis=0)
    temperatures = hot * np.geomspace(1.0, last, sweeps)[:, None]
    for temperature in temperatures.astype(np.float32):
        _annealing_sweep(couplings, half_fields, states, temperature, rng)
    active = np.arange(len(states))
    for _ in range(MAX_DESCENT):
        part = states[active]
        _annealing_sweep(couplings, half_fields[:, active], part, None, rng)
        changed = (part != states[active]).any(axis=1)
        states[active] = part
        active = active[changed]
        if not len(active):
            break
    return states.T.astype(np.int8)


def _annealing_sweep(couplings, half_fields, states, temperature, rng):
    """Visits each variable of all columns once, and changes states in place.

    Args:
        couplings: Array of shape `(n, n)`.
        half_fields: Array of shape `(n, m)`.
        states: Array of shape `(m, n)`.
        temperature: Array of shape `(m,)`. `None` only makes flips that lower
            the energy.
        rng: NumPy generator.
    """
    for begin in range(0, len(couplings), ANNEALING_BLOCK):
        block = slice(begin, begin + ANNEALING_BLOCK)
        local = couplings[block] @ states.T + half_fields[block]
        inner = couplings[block, block]
        threshold = np.diag(inner)[:, None]
        if temperature is not None:
            noise = rng.standard_exponential(local.shape, dtype=np.float32)
            threshold = threshold - noise * temperature
        new = states[:, block].T.copy()
        for i, state in enumerate(new):
            flips = state * local[i] > threshold[i]
            if flips.any():
                change = np.where(flips, -2 * state, np.float32(0))
                state += change
                local[i + 1 :] += inner[i + 1 :, i, None] * change
        states[:, block] = new.T


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
