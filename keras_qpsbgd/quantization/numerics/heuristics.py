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

The scales of the weights are not the best ones for the outputs. `search_scales`
runs GPTQ with several scales and keeps the best result of each column.

Coordinate descent starts from given levels. With the other weights fixed, the
best real value of weight \(i\) of column \(j\) is
\(q_i - (H q - c_j / s_j)_i / H_{ii}\). A sweep sets each weight to the level
next to this value, one after the other. After each sweep, the scales are set to
their best values. Neither step increases the damped error.

Reference: Frantar et al., 2023, https://arxiv.org/abs/2210.17323
"""

import numpy as np
from scipy import linalg

from keras_qpsbgd.quantization.numerics import grid
from keras_qpsbgd.quantization.numerics.output_error import best_of
from keras_qpsbgd.quantization.numerics.output_error import fit_scales

# Within a block, weights are rounded one by one. Between blocks, a matrix
# product passes on their errors and forces.
BLOCK = 64
MAX_SWEEPS = 100
# Scales of `search_scales`, relative to those of the weights.
SCALES = {1: (1.25, 1.5, 1.75, 2.0, 2.5), 2: (0.7, 0.85, 1.15, 1.3, 1.5)}


class Gptq:
    """Rounds the kernel of a layer with error feedback.

    The factorization is computed once and serves all scales.

    Args:
        problem: An `OutputError`.
    """

    def __init__(self, problem):
        groups, n, _ = problem.kernel.shape
        # The last weight is rounded first.
        self._order = problem.diagonal[:, :, 0].argsort(axis=1, kind="stable")
        self._feedback = np.empty((groups, n, n))
        self._target = np.empty_like(problem.products)
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
            )

    def levels(self, scales, bits):
        """Returns the levels for given scales.

        Args:
            scales: Array of shape `(groups, 1, m)`.
            bits: Integer.

        Returns:
            Array of shape `(groups, n, m)`.
        """
        n = self._order.shape[1]
        target = grid.divide(self._target, scales)
        levels = np.zeros_like(target)
        rest = np.zeros_like(target)  # target minus levels, where rounded
        for end in range(n, 0, -BLOCK):
            begin = max(0, end - BLOCK)
            block = self._feedback[:, begin:end, end:] @ rest[:, end:]
            block += target[:, begin:end]
            for i in range(end - 1, begin - 1, -1):
                inner = (
                    self._feedback[:, i : i + 1, i + 1 : end]
                    @ rest[:, i + 1 : end]
                )
                value = block[:, i - begin] + inner[:, 0]
                levels[:, i] = grid.nearest_levels(value, bits)
                rest[:, i] = target[:, i] - levels[:, i]
        unsorted = np.empty_like(levels)
        np.put_along_axis(unsorted, self._order[:, :, None], levels, axis=1)
        return unsorted


def search_scales(problem, gptq, candidate, weight_scales, bits):
    """Returns the best result of GPTQ over several scales.

    Args:
        problem: An `OutputError`.
        gptq: A `Gptq`.
        candidate: `Candidate`. The result of GPTQ with `weight_scales`.
        weight_scales: Array of shape `(groups, 1, m)`.
        bits: Integer.

    Returns:
        A `Candidate`.
    """
    best = candidate
    for factor in SCALES[min(bits, 2)]:
        levels = gptq.levels(factor * weight_scales, bits)
        best = best_of([best, fit_scales(problem, levels)])
    return best


def descend(problem, candidate, bits):
    """Runs sweeps until no level changes, at most 100.

    Args:
        problem: An `OutputError`.
        candidate: `Candidate` to start from.
        bits: Integer.

    Returns:
        A `Candidate` with a damped error that is not higher.
    """
    levels, scales = candidate.levels.copy(), candidate.scales
    forces = problem.couplings @ levels
    active = np.flatnonzero((scales > 0).any(axis=(0, 1)))
    for _ in range(MAX_SWEEPS):
        if not len(active):
            break
        part = levels[:, :, active]
        # Columns first, so that those that change are contiguous.
        force = forces[:, :, active].transpose(0, 2, 1).copy()
        target = grid.divide(
            problem.products[:, :, active], scales[..., active]
        )
        moved = _sweep(problem, target, part, force, bits)
        levels[:, :, active] = part
        forces[:, :, active] = force.transpose(0, 2, 1)
        scales = problem.best_scales(levels, forces)
        # A negative scale negates the column.
        sign = np.where(scales < 0, -1.0, 1.0)
        levels, scales, forces = levels * sign, scales * sign, forces * sign
        active = active[moved & (scales > 0).any(axis=(0, 1))[active]]
    return fit_scales(problem, levels, forces)


def _sweep(problem, target, levels, forces, bits):
    """Updates levels and forces in place; returns which columns changed.

    Args:
        problem: An `OutputError`.
        target: Array of shape `(groups, n, k)`.
        levels: Array of shape `(groups, n, k)`.
        forces: Array of shape `(groups, k, n)`.
        bits: Integer.
    """
    couplings, diagonal = problem.couplings, problem.diagonal
    moved = np.zeros(levels.shape[2], dtype=bool)
    for begin in range(0, levels.shape[1], BLOCK):
        block = slice(begin, min(begin + BLOCK, levels.shape[1]))
        inner = couplings[:, block, block]
        local = forces[:, :, block].transpose(0, 2, 1) - target[:, block]
        old = levels[:, block].copy()
        for i in range(old.shape[1]):
            current = levels[:, begin + i]
            value = current - local[:, i] / diagonal[:, begin + i]
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
