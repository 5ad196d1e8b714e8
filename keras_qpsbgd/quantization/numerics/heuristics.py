r"""Levels without a solver: GPTQ and coordinate descent.

GPTQ rounds the weights one after the other and corrects the others. The best
real kernel is \(w^*_j = H^{-1} c_j\). With the Cholesky factor
\(H = R^T R\), the damped error is

$$\lVert R (\hat w_j - w^*_j) \rVert^2 + \mathrm{const} .$$

The weights are rounded from the last to the first. Each weight is rounded to
the level next to the value that cancels the errors of the weights rounded
before it. This is GPTQ with the Cholesky factor of \(H\) in place of that of
\(H^{-1}\), which gives the same result in the reverse order. Inputs with a
large \(H_{ii}\) are rounded first (GPTQ's `act_order`).

Coordinate descent starts from given levels. With the other weights fixed, the
best real value of weight \(i\) of column \(j\) is
\(q_i - (H q - c_j / s_j)_i / H_{ii}\). A sweep sets each weight to the level
next to this value, one after the other. After each sweep, the scales are set to
their best values. Neither step increases the damped error.

Reference: Frantar et al., 2023, https://arxiv.org/abs/2210.17323
"""

import numpy as np

from keras_qpsbgd.quantization.numerics import grid
from keras_qpsbgd.quantization.numerics import output_error

# Within a block, weights are rounded one by one. Between blocks, a matrix
# product passes on their errors and forces.
BLOCK = 64
MAX_SWEEPS = 100


class Gptq:
    """Rounds the kernel of a layer with error feedback.

    The factorization is computed once and serves all scales.

    Args:
        problem: An `OutputError`.
    """

    def __init__(self, problem):
        # The last weight is rounded first.
        self._order = np.argsort(np.diag(problem.couplings), kind="stable")
        couplings = problem.couplings[np.ix_(self._order, self._order)]
        self._target = np.linalg.solve(couplings, problem.products[self._order])
        # Row i passes the errors of the weights after i on to weight i.
        self._feedback = np.linalg.cholesky(couplings).T
        self._feedback /= np.diag(self._feedback).copy()[:, None]

    def levels(self, scales, bits):
        """Returns the levels for given scales.

        Args:
            scales: Array of shape `(m,)`.
            bits: Integer.

        Returns:
            Array of shape `(n, m)`.
        """
        n = len(self._order)
        target = grid.divide(self._target, scales)
        levels = np.zeros_like(target)
        rest = np.zeros_like(target)  # target minus levels, where rounded
        for end in range(n, 0, -BLOCK):
            begin = max(0, end - BLOCK)
            block = self._feedback[begin:end, end:] @ rest[end:]
            block += target[begin:end]
            for i in range(end - 1, begin - 1, -1):
                inner = self._feedback[i, i + 1 : end] @ rest[i + 1 : end]
                value = block[i - begin] + inner
                levels[i] = grid.nearest_levels(value, bits)
                rest[i] = target[i] - levels[i]
        unsorted = np.empty_like(levels)
        unsorted[self._order] = levels
        return unsorted


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
    return output_error.create_candidate(problem, levels, scales, forces)


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
