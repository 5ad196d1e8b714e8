r"""Finds the passes of a gradient in eager execution, by its value.

An eager gradient keeps its `Pass` only if it is the tensor that the backward
function returned. After any operation (a layer called twice, two losses added,
loss scaling, clipping by norm) it is a new tensor without one. Its value is
then compared with the gradients \(D_i\) of the latest passes at the current
weights:

$$G = \sum_i c_i D_i$$

The following combinations are tried in this order:

1. the sum or the mean of consecutive passes,
2. a multiple of such a sum,
3. any weights, by least squares,
4. a single pass or the sum of all, with clipped entries,
5. any weights, plus multiples of the kernel and of its sign, which a
   regularizer adds.

The first kind that fits in exactly one way determines the passes. A kernel with
few entries cannot distinguish as many combinations, so the later kinds are not
tried for small kernels.

TensorFlow also runs the backward functions of variables whose gradient was not
requested, so some of the latest passes may not be part of the gradient.
"""

import numpy as np

from keras_qpsbgd import ops
from keras_qpsbgd.recording.passes import MAX_LATEST
from keras_qpsbgd.recording.passes import UnknownOrigin

# Maximum difference that counts as rounding error, in units in the last place.
MAX_ROUNDING = 64
# Least squares needs the smallest singular value of the normalized gradients to
# be at least this. Otherwise the gradients are too similar to be distinguished.
MIN_SINGULAR = 1e-3
# A pass that contributes less than this share is not part of the gradient.
MIN_SHARE = 1e-3
# A gradient with fewer entries can be a multiple of another by chance.
MIN_ENTRIES = 4


def find_passes(gradient, mark):
    """Finds the passes of an eager gradient.

    Args:
        gradient: Eager tensor.
        mark: The `BinaryKernel`.

    Returns:
        List of pairs `(Pass, coefficient)`.

    Raises:
        UnknownOrigin: If no combination of the latest passes matches the
            gradient, or more than one does.
    """
    if not mark.latest:
        raise UnknownOrigin(
            "does not come from an eager backward pass through the layer",
            "If it was computed in a `tf.function`, call "
            "`keras_qpsbgd.with_rows(gradients, variables)` in that function. "
            "If the model calls a `tf.function`, remove the decorator. If the "
            "layer was called with `training=False`, pass `training=True`.",
        )
    target = _vector(gradient)
    if not np.isfinite(target).all() or not target.any():
        # The passes do not matter: the update is skipped, or does not change
        # the kernel.
        return [(mark.latest[-1][1], float(target.sum()))]
    candidates = [
        (_vector(part), recording) for part, recording in list(mark.latest)
    ]
    candidates = [
        (part, recording)
        for part, recording in candidates
        if np.isfinite(part).all() and part.any()
    ]
    coefficients = None
    if candidates:
        parts = np.stack([part for part, _ in candidates], axis=1)
        tolerance = MAX_ROUNDING * ops.EPSILON[gradient.dtype]
        coefficients = _explain(target, parts, _vector(mark.kernel), tolerance)
    if coefficients is None:
        raise UnknownOrigin(
            f"is not a sum of the gradients of the last {MAX_LATEST} backward "
            "passes at the current weights, or matches more than one such sum",
            "Apply the gradients in the `tf.function` that computes them, or "
            "add the gradients that "
            "`keras_qpsbgd.with_rows(gradients, variables)` returns.",
        )
    return [
        (recording, float(coefficient))
        for (_, recording), coefficient in zip(candidates, coefficients)
        if coefficient
    ]


def _explain(target, parts, kernel, tolerance):
    """Returns the coefficients of the parts, or `None` if nothing fits."""
    fit = _Fit(target, parts, tolerance)
    regularized = _Fit(
        target,
        np.column_stack([parts, kernel, np.where(kernel < 0, -1.0, 1.0)]),
        tolerance,
    )
    for attempt in (
        lambda: _only(filter(fit.matches, _sums_and_means(fit.count))),
        lambda: _only(filter(fit.matches, _multiples(fit))),
        fit.least_squares,
        lambda: _only(filter(fit.matches_clipped, _single_passes_and_sum(fit))),
        regularized.least_squares,
    ):
        coefficients = attempt()
        if coefficients is not None:
            shares = np.abs(coefficients[: fit.count]) * fit.norms
            absent = shares < MIN_SHARE * np.sqrt(fit.square)
            if absent.all():
                return None
            return np.where(absent, 0.0, coefficients[: fit.count])
    return None


class _Fit:
    """Compares combinations of columns with a target.

    Args:
        target: Vector.
        columns: Matrix with a column for each part.
        tolerance: Float. Maximum share of the parts that counts as rounding
            error.
    """

    def __init__(self, target, columns, tolerance):
        self.target = target
        self.columns = columns
        self.tolerance = tolerance
        self.count = columns.shape[1]
        # Entries that are zero in all columns carry no information.
        self.entries = np.count_nonzero(columns.any(axis=1))
        self.norms = np.linalg.norm(columns, axis=0)
        self.gram = columns.T @ columns
        self.products = columns.T @ target
        self.square = target @ target

    def matches(self, coefficients):
        """Returns whether the combination equals the target up to rounding."""
        error = (
            self.square
            - 2.0 * coefficients @ self.products
            + coefficients @ self.gram @ coefficients
        )
        parts = np.abs(coefficients) @ self.norms
        return error <= (self.tolerance * parts) ** 2

    def matches_clipped(self, coefficients):
        """Returns whether the target is the combination, clipped by value."""
        total = self.columns @ coefficients
        bounds = self.target.min(), self.target.max()
        inside = (bounds[0] < total) & (total < bounds[1]) & (total != 0)
        if np.count_nonzero(inside) < MIN_ENTRIES:
            return False
        error = np.linalg.norm(self.target - np.clip(total, *bounds))
        return error <= self.tolerance * np.linalg.norm(total)

    def least_squares(self):
        """Returns the weights that fit if they are unique, otherwise `None`."""
        if self.count > self.entries // 2 or not self.norms.all():
            return None
        scaled = self.gram / np.outer(self.norms, self.norms)
        if np.linalg.eigvalsh(scaled)[0] < MIN_SINGULAR**2:
            return None
        solution = np.linalg.solve(scaled, self.products / self.norms)
        solution /= self.norms
        return solution if self.matches(solution) else None


def _runs(count):
    """Yields coefficients of one for consecutive passes and zero for others."""
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
    if fit.entries < MIN_ENTRIES:
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
    """Returns the only item, or `None` if there is not exactly one."""
    fitting = list(fitting)
    return fitting[0] if len(fitting) == 1 else None


def _vector(tensor):
    return np.asarray(tensor, np.float64).ravel()
