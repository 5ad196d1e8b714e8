r"""The output error of a quantized layer, and the statistics behind it.

The layer has the kernel \(W\). The float network passes the rows \(X\) to it,
and the network whose earlier layers are already quantized passes \(\tilde X\).
Column \(j\) of the quantized kernel \(\hat W\) and a correction \(d_j\) of the
bias minimize the output error

$$\sum_b \left(\tilde x_b^T \hat w_j + d_j - x_b^T w_j\right)^2 .$$

The best \(d_j\) has a closed form, the mean of the remaining error. With it,
the output error is a quadratic function of \(\hat w_j\) alone,

$$\hat w_j^T H \hat w_j - 2 c_j^T \hat w_j + t_j ,$$

with \(H = \tilde X^T \tilde X\), \(C = \tilde X^T X W\) and
\(t_j = \lVert X w_j \rVert^2\), where the mean is subtracted from the rows. A
layer without a bias has no correction, and no mean is subtracted.

Grouped and depthwise convolutions multiply each group of inputs by its own
kernel. The first axis of all arrays is that of the groups. Other layers have
one group.
"""

from typing import NamedTuple

import numpy as np

# Rows are added in pieces of at most this many numbers, to bound the memory.
_PIECE = 2**22

# The relative rounding error of a sum of squares of float32 rows.
_ROUNDING = 1e-12


class Statistics:
    """Sums over the calibration rows of one layer.

    Args:
        kernel: Array of shape `(n, m)` or `(groups, n, m)`. The float kernel W.
        bias: Boolean. Whether the layer has a bias, which can be corrected.
    """

    def __init__(self, kernel, bias):
        self.kernel = _with_groups(np.asarray(kernel, dtype=np.float64))
        self.bias = bool(bias)
        self.count = 0
        groups, n, m = self.kernel.shape
        self._squares = np.zeros((groups, n, n))
        self._products = np.zeros((groups, n, m))
        self._target_squares = np.zeros((groups, 1, m))
        self._row_sum = np.zeros((groups, 1, n))
        self._target_sum = np.zeros((groups, 1, m))

    def add(self, rows, quantized_rows):
        r"""Adds the rows of one batch.

        Args:
            rows: Array of shape `(B, n)` or `(B, groups, n)`. The rows \(X\).
            quantized_rows: Array of the same shape. The rows \(\tilde X\).
        """
        for x, y in _pieces(rows, quantized_rows, self.kernel):
            self._add(y, x @ self.kernel)

    def _add(self, rows, targets):
        self.count += rows.shape[1]
        transposed = rows.transpose(0, 2, 1)
        self._squares += transposed @ rows
        self._products += transposed @ targets
        self._target_squares += (targets**2).sum(axis=1, keepdims=True)
        self._row_sum += rows.sum(axis=1, keepdims=True)
        self._target_sum += targets.sum(axis=1, keepdims=True)

    def problem(self, damping):
        """Returns the `OutputError` of all rows added so far.

        Call it once, after the last row, because it takes over the largest
        array.

        Args:
            damping: Float. See `OutputError`.
        """
        squares, products = self._squares, self._products
        del self._squares
        target_squares = self._target_squares
        total = target_squares.sum()
        if self.bias:
            count = max(self.count, 1)
            row_mean = self._row_sum / count
            target_mean = self._target_sum / count
            size = np.trace(squares, axis1=1, axis2=2)
            # In place, because this can be the largest array of all.
            squares -= count * row_mean.transpose(0, 2, 1) * row_mean
            products = products - (
                count * row_mean.transpose(0, 2, 1) * target_mean
            )
            target_squares = target_squares - count * target_mean**2
            # If all rows are the same, only rounding errors are left.
            same = np.trace(squares, axis1=1, axis2=2) <= _ROUNDING * size
            squares[same] = products[same] = 0.0
        return OutputError(
            self.kernel,
            squares,
            products,
            np.maximum(target_squares, 0.0),
            total,
            damping,
        )

    def bias_change(self, quantized_kernel):
        """Returns the best change of the bias, of shape `(groups, m)`."""
        groups, _, m = self.kernel.shape
        if not self.bias or self.count == 0:
            return np.zeros((groups, m))
        row_mean = self._row_sum / self.count
        target_mean = self._target_sum / self.count
        return (target_mean - row_mean @ quantized_kernel)[:, 0]


def held_out_error(kernel, quantized_kernel, bias_change, pairs):
    """Returns the relative output error of a layer on held-out rows.

    Args:
        kernel: Array of shape `(n, m)` or `(groups, n, m)`. The float kernel.
        quantized_kernel: Array of shape `(groups, n, m)`.
        bias_change: Array of shape `(groups, m)`.
        pairs: List of the arguments of `Statistics.add`.
    """
    kernel = _with_groups(kernel)
    error = total = 0.0
    for rows, quantized_rows in pairs:
        for x, y in _pieces(rows, quantized_rows, kernel):
            targets = x @ kernel
            outputs = y @ quantized_kernel + bias_change[:, None]
            error += ((outputs - targets) ** 2).sum()
            total += (targets**2).sum()
    return float(error / total) if total > 0 else 0.0


def _with_groups(kernel):
    return kernel[None] if kernel.ndim == 2 else kernel


def _pieces(rows, quantized_rows, kernel):
    """Yields pieces of both rows as float64 arrays `(groups, B, n)`."""
    groups, n, _ = kernel.shape
    size = max(1, _PIECE // (groups * n))
    for begin in range(0, len(rows), size):
        pieces = []
        for values in (rows, quantized_rows):
            piece = np.asarray(values[begin : begin + size], dtype=np.float64)
            if piece.ndim == 2:
                pieces.append(piece[None])
            else:
                pieces.append(np.ascontiguousarray(piece.transpose(1, 0, 2)))
        yield pieces


class OutputError:
    r"""The output error of a quantized layer as a quadratic function.

    All methods minimize the damped error of column \(j\)

    $$J_j(\hat w) = \hat w^T H \hat w - 2 c_j^T \hat w + t_j
      + \delta \lVert \hat w - w_j \rVert^2 ,$$

    where \(\delta\) is `damping` times the mean diagonal entry of \(H\). The
    last term is GPTQ's damping of \(H\). It determines the weights of inputs
    that are always zero. The attributes `couplings` and `products` are \(H\)
    and \(C\) with the damping included.

    Args:
        kernel: Array of shape `(groups, n, m)`. The float kernel.
        squares: Array of shape `(groups, n, n)`. The matrix H. It becomes
            `couplings` in place.
        products: Array of shape `(groups, n, m)`. The matrix C.
        target_squares: Array of shape `(groups, 1, m)`. The constants t.
        total: Float. The squared norm of the float outputs.
        damping: Float > 0. The damping, relative to the mean of the diagonal
            of H.
    """

    def __init__(
        self, kernel, squares, products, target_squares, total, damping
    ):
        n = kernel.shape[1]
        self.kernel = kernel
        self.total = total
        diagonal = np.arange(n)
        mean = squares[:, diagonal, diagonal].mean(axis=1)
        # Without any active input, only the damping is left.
        self.has_data = mean > 0
        self.delta = np.where(self.has_data, damping * mean, 1.0)
        self.delta = self.delta[:, None, None]
        self.couplings = squares
        self.couplings[:, diagonal, diagonal] += self.delta[:, 0]
        self.diagonal = self.couplings[:, diagonal, diagonal][:, :, None]
        self.products = products + self.delta * kernel
        # The damped error of a kernel of zeros.
        self.constant = target_squares + (
            self.delta * (kernel**2).sum(axis=1, keepdims=True)
        )

    def relative(self, errors):
        """Returns the sum of output errors, relative to the float outputs."""
        return float(errors.sum() / self.total) if self.total > 0 else 0.0

    def best_scales(self, levels, forces):
        """Returns the scales that minimize the damped error of given levels.

        Args:
            levels: Array of shape `(groups, n, m)`.
            forces: Array of the same shape. The product `couplings @ levels`.

        Returns:
            Array of shape `(groups, 1, m)`. A scale can be negative.
        """
        linear = (levels * self.products).sum(axis=1, keepdims=True)
        return linear / (levels * forces).sum(axis=1, keepdims=True)


class Candidate(NamedTuple):
    """Levels and scales of all columns: the kernel is `levels * scales`."""

    levels: np.ndarray  # (groups, n, m), odd integers as floats
    scales: np.ndarray  # (groups, 1, m), not negative
    damped: np.ndarray  # (groups, 1, m), the damped errors
    errors: np.ndarray  # (groups, 1, m), the output errors


def fit_scales(problem, levels, forces=None):
    """Returns a `Candidate` with given levels and their best scales.

    Columns with a negative scale are negated, which does not change the kernel.

    Args:
        problem: An `OutputError`.
        levels: Array of shape `(groups, n, m)`.
        forces: Array of the same shape (optional). The product of the couplings
            and the levels. Defaults to `None`, which computes it.
    """
    if forces is None:
        forces = problem.couplings @ levels
    scales = problem.best_scales(levels, forces)
    kernel = levels * scales
    damped = (kernel * (scales * forces - 2 * problem.products)).sum(
        axis=1, keepdims=True
    ) + problem.constant
    change = ((kernel - problem.kernel) ** 2).sum(axis=1, keepdims=True)
    errors = np.maximum(damped - problem.delta * change, 0.0)
    sign = np.where(scales < 0, -1.0, 1.0)
    return Candidate(levels * sign, scales * sign, damped, errors)


def best_of(candidates, by="damped"):
    """Returns the best candidate for each column.

    Ties go to the earlier candidate.

    Args:
        candidates: List of `Candidate`.
        by: `"damped"` or `"errors"`. The errors to compare. Defaults to
            `"damped"`.
    """
    best = candidates[0]
    for other in candidates[1:]:
        better = getattr(other, by) < getattr(best, by)
        best = Candidate(
            *(np.where(better, new, old) for new, old in zip(other, best))
        )
    return best
