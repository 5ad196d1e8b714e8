r"""Finds the passes of a gradient in eager execution, by its value.

An eager gradient that is not the very tensor of a backward pass (a layer called
twice, two losses added, loss scaling, clipping by norm) has no memory of how it
was made. It is compared with the gradients \(D_i\) of the latest passes, those
taken at the current weights:

$$G = \sum_i c_i D_i$$

These combinations are tried, in this order: the sum or the mean of passes that
follow each other, a multiple of such a sum, any weights (by least squares), a
sum whose entries were clipped, and again any weights, with multiples of the
kernel and of its sign, which a regularizer adds. The first kind that fits in
exactly one way is the origin of the gradient. The fewer entries the kernel has,
the less its gradient proves, so small kernels must do without the later kinds.

(TensorFlow also runs the backward functions of variables whose gradient was not
requested, so not all of the latest passes need to have a part in it.)
"""

import numpy as np

from keras_qpsbgd import ops
from keras_qpsbgd.recording.passes import LATEST
from keras_qpsbgd.recording.passes import UnknownOrigin

# Largest part of a gradient that may remain unexplained, in units in the last
# place: rounding errors.
ROUNDING = 64
# Directions closer than this are not told apart.
SINGULAR = 1e-3
# A pass that contributes less than this share had no part.
ABSENT = 1e-3
# Entries that a gradient must have to prove that it is a multiple of another.
ENOUGH = 4


def passes(gradient, mark):
    """The passes of an eager gradient.

    Args:
        gradient: eager tensor.
        mark: the `BinaryKernel`.

    Returns:
        List of pairs `(Pass, coefficient)`.

    Raises:
        UnknownOrigin: if the latest passes do not explain the gradient.
    """
    if not mark.latest:
        raise UnknownOrigin(
            "does not come from an eager backward pass through the layer",
            "If it was computed in a `tf.function`, call "
            "`keras_qpsbgd.with_rows(gradients, variables)` there. If the "
            "model calls a `tf.function`, remove that decorator. If the layer "
            "was called with `training=False`, call it with `training=True`.",
        )
    target = _vector(gradient)
    if not np.isfinite(target).all() or not target.any():
        # The update is skipped, or the kernel held, whatever the origin.
        return [(mark.latest[-1][1], float(target.sum()))]
    candidates = [
        (_vector(part), one_pass) for part, one_pass in list(mark.latest)
    ]
    candidates = [
        (part, one_pass)
        for part, one_pass in candidates
        if np.isfinite(part).all() and part.any()
    ]
    coefficients = None
    if candidates:
        parts = np.stack([part for part, _ in candidates], axis=1)
        tolerance = ROUNDING * ops.EPSILON[gradient.dtype]
        coefficients = _explain(target, parts, _vector(mark.kernel), tolerance)
    if coefficients is None:
        raise UnknownOrigin(
            f"is no sum of the gradients of the last {LATEST} backward passes "
            "at the current weights, or more than one combination fits",
            "Apply the gradients in the `tf.function` that computes them, or "
            "add those that `keras_qpsbgd.with_rows(gradients, variables)` "
            "returns.",
        )
    return [
        (one_pass, float(coefficient))
        for (_, one_pass), coefficient in zip(candidates, coefficients)
        if coefficient
    ]


def _explain(target, parts, kernel, tolerance):
    """The coefficients of the parts, or `None`."""
    fit = _Fit(target, parts, tolerance)
    regularized = _Fit(
        target,
        np.column_stack([parts, kernel, np.where(kernel < 0, -1.0, 1.0)]),
        tolerance,
    )
    for attempt in (
        lambda: _only(filter(fit.holds, _sums_and_means(fit.count))),
        lambda: _only(filter(fit.holds, _multiples(fit))),
        fit.least_squares,
        lambda: _only(filter(fit.holds_clipped, _single_passes_and_sum(fit))),
        regularized.least_squares,
    ):
        coefficients = attempt()
        if coefficients is not None:
            shares = np.abs(coefficients[: fit.count]) * fit.norms
            absent = shares < ABSENT * np.sqrt(fit.square)
            if absent.all():
                return None
            return np.where(absent, 0.0, coefficients[: fit.count])
    return None


class _Fit:
    """Combinations of columns, compared with a target.

    Args:
        target: vector.
        columns: matrix with a column for each part.
        tolerance: largest share of the parts that counts as rounding error.
    """

    def __init__(self, target, columns, tolerance):
        self.target = target
        self.columns = columns
        self.tolerance = tolerance
        self.count = columns.shape[1]
        # Entries that are zero everywhere prove nothing.
        self.entries = np.count_nonzero(columns.any(axis=1))
        self.norms = np.linalg.norm(columns, axis=0)
        self.gram = columns.T @ columns
        self.products = columns.T @ target
        self.square = target @ target

    def holds(self, coefficients):
        """Whether the combination is the target, but for rounding errors."""
        error = (
            self.square
            - 2.0 * coefficients @ self.products
            + coefficients @ self.gram @ coefficients
        )
        parts = np.abs(coefficients) @ self.norms
        return error <= (self.tolerance * parts) ** 2

    def holds_clipped(self, coefficients):
        """Whether the target is the combination with clipped entries."""
        total = self.columns @ coefficients
        bounds = self.target.min(), self.target.max()
        inside = (bounds[0] < total) & (total < bounds[1]) & (total != 0)
        if np.count_nonzero(inside) < ENOUGH:
            return False
        error = np.linalg.norm(self.target - np.clip(total, *bounds))
        return error <= self.tolerance * np.linalg.norm(total)

    def least_squares(self):
        """Any weights, if no others fit; `None` if they do not fit."""
        if self.count > self.entries // 2 or not self.norms.all():
            return None
        scaled = self.gram / np.outer(self.norms, self.norms)
        if np.linalg.eigvalsh(scaled)[0] < SINGULAR**2:
            return None
        solution = np.linalg.solve(scaled, self.products / self.norms)
        solution /= self.norms
        return solution if self.holds(solution) else None


def _runs(count):
    """Zeros and ones: passes that follow each other."""
    for begin in range(count):
        for end in range(begin + 1, count + 1):
            run = np.zeros(count)
            run[begin:end] = 1.0
            yield run


def _sums_and_means(count):
    for run in _runs(count):
        yield run
        if run.sum() > 1:
            yield run / run.sum()


def _multiples(fit):
    if fit.entries < ENOUGH:
        return
    for run in _runs(fit.count):
        size = run @ fit.gram @ run
        if size > 0:
            yield run * (run @ fit.products / size)


def _single_passes_and_sum(fit):
    yield from np.eye(fit.count)
    if fit.count > 1:
        yield np.ones(fit.count)


def _only(fitting):
    """The one that fits; `None` if there are more or none."""
    fitting = list(fitting)
    return fitting[0] if len(fitting) == 1 else None


def _vector(tensor):
    return np.asarray(tensor, np.float64).ravel()
