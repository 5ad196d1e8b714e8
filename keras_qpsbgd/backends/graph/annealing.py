r"""Simulated annealing by sweeps in NumPy, for problems that are solved once.

A sweep visits the variables in order and flips each with the probability
\(\min(1, e^{-\Delta / T})\), where \(\Delta\) is the change of the energy. All
columns are annealed together. Within a block, variables are visited one by one.
Between blocks, a matrix product updates the forces \(F = Q g + s / 2\), so
that a sweep costs about as much as one product with the couplings.
"""

import numpy as np

BLOCK = 64
SWEEPS = 20
# The initial temperature is this quantile of the energies that single flips of
# the start would cost, and the last one is this fraction of it. Chosen on other
# networks than those of the published results.
HOT_QUANTILE = 0.05
COLD = 0.03


def anneal(qubo, start, seed):
    """Anneals all columns from given states.

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
    states = np.asarray(start).astype(np.float32)
    forces = (fields / (2 * scale)).astype(np.float32) + couplings @ states
    diagonal = np.diag(couplings)[:, None].copy()
    # A flip changes the energy by 4 (Q_ii - g_i F_i).
    costs = np.abs(diagonal - states * forces)
    hot = np.quantile(costs, HOT_QUANTILE, axis=0)
    temperatures = hot * np.geomspace(1.0, COLD, SWEEPS)[:, None]
    for temperature in temperatures.astype(np.float32):
        _sweep(couplings, diagonal, states, forces, temperature, rng)
    for _ in range(SWEEPS):
        if not _sweep(couplings, diagonal, states, forces, None, rng):
            break
    return states.astype(np.int8)


def _sweep(couplings, diagonal, states, forces, temperature, rng):
    """Updates states and forces in place; returns whether any changed.

    A temperature of `None` only makes flips that lower the energy.
    """
    changed = False
    for begin in range(0, len(couplings), BLOCK):
        block = slice(begin, begin + BLOCK)
        inner, threshold = couplings[block, block], diagonal[block]
        local, old = forces[block].copy(), states[block].copy()
        if temperature is not None:
            noise = rng.standard_exponential(local.shape, dtype=np.float32)
            threshold = threshold - noise * temperature
        for i, state in enumerate(states[block]):
            flips = state * local[i] > threshold[i]
            if flips.any():
                change = np.where(flips, -2 * state, np.float32(0))
                state += change
                local[i + 1 :] += inner[i + 1 :, i, None] * change
        change = states[block] - old
        if change.any():
            changed = True
            forces += couplings[:, block] @ change
    return changed
