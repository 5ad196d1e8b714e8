r"""Chooses the levels without a solver: GPTQ and coordinate descent.

GPTQ rounds the weights one after the other and adjusts the others. The best
real kernel is \(w^*_j = H^{-1} c_j\). With the Cholesky factor
\(H = R^T R\), the damped error is

$$\lVert R (\hat w_j - w^*_j) \rVert^2 + \mathrm{const} .$$

The weights are rounded from the last to the first. Each weight is rounded to
the level nearest to the value that cancels the errors of the weights rounded
before it. This is GPTQ with the Cholesky factor of \(H\) in place of that of
\(H^{-1}\), which gives the same result in the reverse order. Inputs with a
large \(H_{ii}\) are rounded first (GPTQ's `act_order`).

The scales that fit the weights best are not the best ones for the outputs.
`"gptq+scales"` runs GPTQ with several scales and keeps the best result of each
column.

Coordinate descent starts from given levels. With the other weights fixed, the
best real value of weight \(i\) of column \(j\) is
\(q_i - (H q - c_j / s_j)_i / H_{ii}\). A sweep sets each weight to the level
nearest to this value, one after the other. After each sweep, the scales are set
to their best values. Neither step increases the damped error.

Reference: Frantar et al., 2023, https://arxiv.org/abs/2210.17323
"""

import numpy as np
from scipy import linalg

from keras_qpsbgd.quantization.numerics import grid
from keras_qpsbgd.quantization.numerics.output_error import best_of
from keras_qpsbgd.quantization.numerics.output_error import fit_scales

# Within a block, weights are rounded one by one. A matrix product passes their
# errors and forces on to the other blocks.
BLOCK = 64
MAX_SWEEPS = 100
# Scales for which GPTQ runs, relative to those of the weights.
SCALES = {1: (1.25, 1.5, 1.75, 2.0, 2.5), 2: (0.7, 0.85, 1.15, 1.3, 1.5)}


class Gptq:
    """Rounds the kernel of a layer with error feedback.

    The factorization is computed once and reused for all scales.

    Args:
        problem: An `OutputError`.
    """

    def __init__(self, problem):
        groups, n, m = problem.kernel.shape
        # The last weight is rounded first.
        self._order = problem.diagonal[:, :, 0].argsort(axis=1, kind="stable")
        # Rounding does not need float64, and float32 takes half the time.
        self._feedback = np.empty((groups, n, n), np.float32)
        self._target = np.empty((groups, n, m))
        for group, order in enumerate(self._order):
            couplings = problem.couplings[group][np.ix_(order, order)]
            factor = linalg.cholesky(
                couplings, overwrite_a=True, check_finite=False
            )
            self._target[group] = linalg.cho_solve(
                (factor, False),
                problem.products[group, order],
                check_finite=False,
            )
            # Row i passes the errors of the weights after i on to weight i.
            np.divide(
                factor,
                np.diag(factor)[:, None],
                out=self._feedback[group],
                casting="same_kind",
            )

    def levels(self, scales, bits):
        """Returns the levels of all weights.

        Args:
            scales: Array of shape `(groups, 1, m)`.
            bits: Integer.

        Returns:
            Array of shape `(groups, n, m)`.
        """
        target = grid.divide(self._target, scales).astype(np.float32)
        levels = np.empty_like(target)
        rest = np.zeros_like(target)  # target minus levels, where rounded
        for end in range(target.shape[1], 0, -BLOCK):
            begin = max(0, end - BLOCK)
            values = self._feedback[:, begin:end, end:] @ rest[:, end:]
            values += target[:, begin:end]
            for i in range(end - 1, begin - 1, -1):
                row = slice(i, i + 1)
                value = (
                    values[:, i - begin : i - begin + 1]
                    + self._feedback[:, row, i + 1 : end] @ rest[:, i + 1 : end]
                )
                levels[:, row] = grid.nearest_levels(value, bits)
                rest[:, row] = target[:, row] - levels[:, row]
        unsorted = np.empty(levels.shape)
        np.put_along_axis(unsorted, self._order[:, :, None], levels, axis=1)
        return unsorted


def descend(problem, candidate, bits):
    """Runs sweeps until no level changes, but at most 100.

    Sweeps run in float32, which takes half the time. A column keeps its levels
    if the result is not better in float64.

    Args:
        problem: An `OutputError`.
        candidate: `Candidate` to start from.
        bits: Integer.

    Returns:
        A `Candidate` whose damped error is not higher.
    """
    # Rescaled, because float32 has a small range.
    unit = problem.diagonal.mean(axis=1, keepdims=True)
    couplings = np.empty(problem.couplings.shape, np.float32)
    np.divide(problem.couplings, unit, out=couplings, casting="same_kind")
    found = candidate.levels.astype(np.float32)
    active = np.flatnonzero((candidate.scales > 0).any(axis=(0, 1)))
    levels, scales = found[:, :, active], candidate.scales[..., active]
    products = problem.products[:, :, active] / unit
    # Columns first, so that those that change are contiguous.
    forces = (couplings @ levels).transpose(0, 2, 1).copy()
    for _ in range(MAX_SWEEPS):
        if not len(active):
            break
        target = grid.divide(products, scales).astype(np.float32)
        moved = _sweep(couplings, target, levels, forces, bits)
        scales = (levels * products).sum(axis=1, keepdims=True)
        square = (levels * forces.transpose(0, 2, 1)).sum(axis=1, keepdims=True)
        scales = grid.divide(scales, square)
        # A negative scale negates the column.
        sign = np.where(scales < 0, np.float32(-1), np.float32(1))
        levels, scales = levels * sign, scales * sign
        forces *= sign.transpose(0, 2, 1)
        found[:, :, active] = levels
        moved &= (scales > 0).any(axis=(0, 1))
        if not moved.all():
            active, levels = active[moved], levels[:, :, moved]
            scales, forces = scales[..., moved], forces[:, moved]
            products = products[:, :, moved]
    result = fit_scales(problem, found.astype(np.float64))
    return best_of([candidate, result])


def _sweep(couplings, target, levels, forces, bits):
    """Updates levels and forces in place; returns which columns changed.

    Args:
        couplings: Array of shape `(groups, n, n)`.
        target: Array of shape `(groups, n, k)`. The products C, divided by the
            scales.
        levels: Array of shape `(groups, n, k)`.
        forces: Array of shape `(groups, k, n)`.
        bits: Integer.
    """
    n = levels.shape[1]
    moved = np.zeros(levels.shape[2], dtype=bool)
    for begin in range(0, n, BLOCK):
        block = slice(begin, min(begin + BLOCK, n))
        inner = couplings[:, block, block]
        diagonal = np.diagonal(inner, axis1=1, axis2=2)
        local = forces[:, :, block].transpose(0, 2, 1) - target[:, block]
        old = levels[:, block].copy()
        for i in range(old.shape[1]):
            current = levels[:, begin + i]
            value = current - local[:, i] / diagonal[:, i, None]
            change = grid.nearest_levels(value, bits) - current
            if change.any():
                current += change
                local[:, i + 1 :] += (
                    inner[:, i + 1 :, i, None] * change[:, None]
                )
        change = (levels[:, block] - old).transpose(0, 2, 1)
        changed = np.flatnonzero(change.any(axis=(0, 2)))
        if len(changed):
            forces[:, changed] += change[:, changed] @ couplings[:, block]
            moved[changed] = True
    return moved
