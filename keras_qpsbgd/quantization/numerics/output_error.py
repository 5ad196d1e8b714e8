r"""What quantization needs to know about the inputs of a layer.

The layer has the kernel \(W\). The float network passes the rows \(X\) to it,
and the network whose earlier layers are already quantized passes \(\tilde X\).
Column \(j\) of the quantized kernel \(\hat W\) and a correction \(d_j\) of the
bias minimize the output error

$$\sum_b \left(\tilde x_b^T \hat w_j + d_j - x_b^T w_j\right)^2 .$$

The best \(d_j\) has a closed form, the mean of the remaining error. With it,
the output error is a quadratic function of \(\hat w_j\) alone,

$$\hat w_j^T H \hat w_j - 2 c_j^T \hat w_j + t_j ,$$

with \(H = \tilde X^T \tilde X\), \(C = \tilde X^T X W\) and
\(t_j = \lVert X w_j \rVert^2\) of rows from which the mean is subtracted. A
layer without a bias has no correction, and no mean is subtracted.
"""

from typing import NamedTuple

import numpy as np

# Rows are added in pieces of at most this many numbers, to bound the memory.
_PIECE = 2**22


class Statistics:
    """Sums over the calibration rows of one layer.

    Args:
        kernel: Array of shape `(n, m)`. The float kernel W.
        bias: Boolean. Whether the layer has a bias, which can be corrected.
    """

    def __init__(self, kernel, bias):
        self.kernel = np.asarray(kernel, dtype=np.float64)
        self.bias = bool(bias)
        self.count = 0
        n, m = self.kernel.shape
        self._squares = np.zeros((n, n))
        self._products = np.zeros((n, m))
        self._target_squares = np.zeros(m)
        self._row_sum = np.zeros(n)
        self._target_sum = np.zeros(m)
        self._target_square = 0.0
        # A first guess of the means. Sums of differences to it lose fewer
        # digits than sums of the rows.
        self._row_shift = np.zeros(n)
        self._target_shift = np.zeros(m)

    def add(self, rows, quantized_rows):
        r"""Adds the rows of one batch.

        Args:
            rows: Array of shape `(B, n)`. The rows \(X\).
            quantized_rows: Array of shape `(B, n)`. The rows \(\tilde X\).
        """
        n = len(self.kernel)
        size = max(1, _PIECE // n)
        for begin in range(0, len(rows), size):
            piece = slice(begin, begin + size)
            x = np.asarray(rows[piece], dtype=np.float64)
            y = np.asarray(quantized_rows[piece], dtype=np.float64)
            self._add(y, x @ self.kernel)

    def _add(self, rows, targets):
        self._target_square += (targets**2).sum()
        if self.bias:
            if self.count == 0:
                self._row_shift = rows.mean(axis=0)
                self._target_shift = targets.mean(axis=0)
            rows = rows - self._row_shift
            targets = targets - self._target_shift
        self.count += len(rows)
        self._squares += rows.T @ rows
        self._products += rows.T @ targets
        self._target_squares += (targets**2).sum(axis=0)
        self._row_sum += rows.sum(axis=0)
        self._target_sum += targets.sum(axis=0)

    def problem(self, damping, release=False):
        """Returns the `OutputError` of all rows added so far.

        Args:
            damping: Float. See `OutputError`.
            release: Boolean. Whether to hand the largest array over instead of
                copying it. No row can be added and no other problem created
                afterwards. Defaults to `False`.
        """
        squares, products = self._squares, self._products
        if release:
            del self._squares
        else:
            squares = squares.copy()
        target_squares = self._target_squares
        if self.bias:
            count = max(self.count, 1)
            row_mean = self._row_sum / count
            target_mean = self._target_sum / count
            # In place, because it can be the largest array of all.
            squares -= np.outer(count * row_mean, row_mean)
            products = products - count * np.outer(row_mean, target_mean)
            target_squares = target_squares - count * target_mean**2
        return OutputError(
            self.kernel,
            squares,
            products,
            np.maximum(target_squares, 0.0),
            self._target_square,
            damping,
        )

    def bias_change(self, quantized_kernel):
        """Returns the best change of the bias, shape `(m,)`."""
        if not self.bias or self.count == 0:
            return np.zeros(self.kernel.shape[1])
        row_mean = self._row_shift + self._row_sum / self.count
        target_mean = self._target_shift + self._target_sum / self.count
        return target_mean - row_mean @ quantized_kernel


class OutputError:
    r"""The output error of a quantized layer as a quadratic function.

    All methods minimize the damped error of column \(j\)

    $$J_j(\hat w) = \hat w^T H \hat w - 2 c_j^T \hat w + t_j
      + \delta \lVert \hat w - w_j \rVert^2 ,$$

    where \(\delta\) is `damping` times the mean diagonal entry of \(H\). The
    last term is GPTQ's damping of \(H\). It decides the weights of inputs that
    are always zero. The attributes `couplings` and `products` are \(H\) and
    \(C\) with the damping included.

    Args:
        kernel: Array of shape `(n, m)`. The float kernel.
        squares: Array of shape `(n, n)`. The matrix H. It becomes `couplings`
            in place.
        products: Array of shape `(n, m)`. The matrix C.
        target_squares: Array of shape `(m,)`. The constants t.
        total: Float. The squared norm of the float outputs.
        damping: Float > 0. The damping, relative to the mean of the diagonal
            of H.
    """

    def __init__(
        self, kernel, squares, products, target_squares, total, damping
    ):
        n = len(kernel)
        self.kernel = kernel
        self.total = total
        mean = np.trace(squares) / n
        # Without any active input, only the damping is left.
        self.delta = damping * mean if mean > 0 else 1.0
        self.couplings = squares
        self.couplings[np.diag_indices(n)] += self.delta
        self.products = products + self.delta * kernel
        # The damped error of a kernel of zeros.
        self.constant = target_squares + self.delta * (kernel**2).sum(axis=0)

    def damped(self, levels, scales, forces=None):
        """Returns the damped error J of each column, shape `(m,)`.

        Args:
            levels: Array of shape `(n, m)`.
            scales: Array of shape `(m,)`.
            forces: Array of shape `(n, m)` (optional). The product
                `couplings @ levels`, if it is known.
        """
        if forces is None:
            forces = self.couplings @ levels
        return (
            scales**2 * (levels * forces).sum(axis=0)
            - 2 * scales * (levels * self.products).sum(axis=0)
            + self.constant
        )

    def relative(self, errors):
        """Returns the sum of output errors, relative to the float outputs."""
        return float(errors.sum() / self.total) if self.total > 0 else 0.0

    def best_scales(self, levels, scale, forces=None):
        """Returns the scales that minimize the damped error of given levels.

        Args:
            levels: Array of shape `(n, m)`.
            scale: `"column"` or `"layer"`. One scale per column or for all.
            forces: Array of shape `(n, m)` (optional). The product
                `couplings @ levels`, if it is known.

        Returns:
            Array of shape `(m,)`. A scale can be negative.
        """
        if forces is None:
            forces = self.couplings @ levels
        linear = (levels * self.products).sum(axis=0)
        quadratic = (levels * forces).sum(axis=0)
        if scale == "layer":
            return np.full(len(linear), linear.sum() / quadratic.sum())
        return linear / quadratic


class Candidate(NamedTuple):
    """Levels and scales of all columns: the kernel is `levels * scales`."""

    levels: np.ndarray  # n x m, odd integers as floats
    scales: np.ndarray  # m, not negative
    damped: np.ndarray  # m, the damped errors
    errors: np.ndarray  # m, the output errors


def create_candidate(problem, levels, scales, forces=None):
    """Returns a `Candidate` with its errors.

    Columns with a negative scale are negated, which does not change the kernel.

    Args:
        problem: An `OutputError`.
        levels: Array of shape `(n, m)`.
        scales: Array of shape `(m,)`.
        forces: Array of shape `(n, m)` (optional). The product of the couplings
            and the levels, if it is known.
    """
    if forces is None:
        forces = problem.couplings @ levels
    damped = problem.damped(levels, scales, forces)
    change = ((scales * levels - problem.kernel) ** 2).sum(axis=0)
    errors = np.maximum(damped - problem.delta * change, 0.0)
    sign = np.where(scales < 0, -1.0, 1.0)
    return Candidate(levels * sign, scales * sign, damped, errors)


def fit_scales(problem, levels, scale):
    """Returns a `Candidate` with given levels and their best scales."""
    forces = problem.couplings @ levels
    scales = problem.best_scales(levels, scale, forces)
    return create_candidate(problem, levels, scales, forces)


def best_of(candidates, scale, by="damped"):
    """Returns the best candidate.

    With `scale="column"`, each column is taken from its best candidate. With
    `scale="layer"`, all columns have a common scale, so they are taken from one
    candidate. Ties go to the earlier candidate.

    Args:
        candidates: List of `Candidate`.
        scale: `"column"` or `"layer"`.
        by: `"damped"` or `"errors"`. The errors to compare. Defaults to
            `"damped"`.
    """
    errors = [getattr(candidate, by) for candidate in candidates]
    if scale == "layer":
        return candidates[int(np.argmin([error.sum() for error in errors]))]
    best = np.argmin(errors, axis=0)
    levels = candidates[0].levels.copy()
    for index, candidate in enumerate(candidates):
        levels[:, best == index] = candidate.levels[:, best == index]
    columns = np.arange(len(best))
    vectors = (
        np.stack([getattr(candidate, name) for candidate in candidates])
        for name in ("scales", "damped", "errors")
    )
    return Candidate(levels, *(vector[best, columns] for vector in vectors))
