r"""Coordinate descent on the levels of all columns.

With the other weights fixed, the best real value of weight \(i\) of column
\(j\) is \(q_i - (H q - c_j / s_j)_i / H_{ii}\). A sweep sets each weight to
the level next to this value, one after the other. After each sweep, the scales
are set to their best values. Neither step increases the damped error.
"""

import numpy as np

from keras_qpsbgd.quantize.numerics import candidate as candidates
from keras_qpsbgd.quantize.numerics import grid

# Within a block, weights are updated one by one. Between blocks, a matrix
# product updates the forces.
BLOCK = 64
MAX_SWEEPS = 100


def descend(problem, candidate, bits, scale):
    """Runs sweeps until no level changes, at most 100.

    Args:
        problem: An `OutputError`.
        candidate: `Candidate` to start from.
        bits: Integer.
        scale: `"column"` or `"layer"`. See `OutputError.best_scales`.

    Returns:
        A `Candidate` with a damped error that is not higher.
    """
    levels, scales = candidate.levels.copy(), candidate.scales.copy()
    forces = problem.couplings @ levels
    active = np.flatnonzero(scales > 0)
    for _ in range(MAX_SWEEPS):
        if not len(active):
            break
        part, force = levels[:, active], forces[:, active]
        target = problem.products[:, active] / scales[active]
        moved = _sweep(problem.couplings, target, part, force, bits)
        levels[:, active], forces[:, active] = part, force
        scales = problem.best_scales(levels, scale, forces)
        # A negative scale negates the column.
        sign = np.where(scales < 0, -1.0, 1.0)
        levels, scales, forces = levels * sign, scales * sign, forces * sign
        if scale == "layer":  # the common scale changes for all columns
            active = np.arange(len(scales)) if moved.any() else active[:0]
        else:
            active = active[moved]
        active = active[scales[active] > 0]
    return candidates.create(problem, levels, scales, forces)


def _sweep(couplings, target, levels, forces, bits):
    """Updates levels and forces in place; returns which columns changed."""
    diagonal = np.diag(couplings)
    moved = np.zeros(levels.shape[1], dtype=bool)
    for begin in range(0, len(couplings), BLOCK):
        block = slice(begin, min(begin + BLOCK, len(couplings)))
        inner = couplings[block, block]
        local = forces[block] - target[block]
        old = levels[block].copy()
        for i, current in enumerate(levels[block]):
            value = current - local[i] / diagonal[begin + i]
            change = grid.nearest_levels(value, bits) - current
            if change.any():
                current += change
                local[i + 1 :] += inner[i + 1 :, i, None] * change
        change = levels[block] - old
        if change.any():
            forces += couplings[:, block] @ change
            moved |= change.any(axis=0)
    return moved
