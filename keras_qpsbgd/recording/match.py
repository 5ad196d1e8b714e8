r"""Finds the passes of a gradient in eager execution, by its value.

An eager gradient that is not the very tensor of a backward pass (a layer called
twice, two losses added, loss scaling, clipping by norm) has no memory of how it
was made. It is compared with the gradients of the latest passes, those taken
at the present weights: the coefficients c of

$$G = \sum_i c_i D_i$$

are found by least squares. A regularizer may add multiples of the kernel and of
its sign. If the passes explain the gradient in one way only, they are its
origin. If they do not, or in several ways, its origin is unknown.
"""

import numpy as np

from keras_qpsbgd.recording.passes import UnknownOrigin

# Largest part of a gradient that may remain unexplained: rounding errors.
TOLERANCE = 1e-5
# Directions closer than this are not told apart.
SINGULAR = 1e-3
# Coefficients smaller than this are zero: their pass had no part.
ABSENT = 1e-3


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
        raise UnknownOrigin("no eager backward pass of the layer leads to it")
    target = _vector(gradient)
    if not np.isfinite(target).all() or not target.any():
        # The update is skipped, or the kernel held, whatever the origin.
        return [(mark.latest[-1][1], float(target.sum()))]
    candidates = [(_vector(part), one_pass) for part, one_pass in mark.latest]
    candidates = [
        (part, one_pass)
        for part, one_pass in candidates
        if np.isfinite(part).all() and part.any()
    ]
    coefficients = None
    if candidates:
        parts = np.stack([part for part, _ in candidates], axis=1)
        coefficients = _explain(target, parts, _vector(mark.kernel))
    if coefficients is None:
        raise UnknownOrigin(
            "it is not a sum of gradients from backward passes at the present "
            "weights, or it is one in several ways"
        )
    least = ABSENT * np.abs(coefficients).max()
    return [
        (one_pass, float(coefficient))
        for (_, one_pass), coefficient in zip(candidates, coefficients)
        if abs(coefficient) > least
    ]


def _explain(target, parts, kernel):
    """The coefficients of the parts, or `None`."""
    others = np.column_stack([kernel, np.where(kernel < 0, -1.0, 1.0)])
    for attempt in (
        lambda: _equal_shares(target, parts),
        lambda: _least_squares(target, parts, others[:, :0]),
        lambda: _clipped(target, parts),
        lambda: _least_squares(target, parts, others),
    ):
        coefficients = attempt()
        if coefficients is not None:
            return coefficients
    return None


def _equal_shares(target, parts):
    """One for each pass, or one over their number, if that fits.

    This is found in few dimensions, too, where least squares has many
    solutions; but not if a multiple of a single pass fits as well.
    """
    count = parts.shape[1]
    if count > 1 and any(_parallel(target, part) for part in parts.T):
        return None
    for share in (1.0, 1.0 / count):
        if _close(target, parts * share):
            return np.full(count, share)
    return None


def _least_squares(target, parts, others):
    count = parts.shape[1]
    columns = np.column_stack([parts, others])
    # As many columns as entries explain everything.
    if columns.shape[1] >= max(len(target), 2):
        return None
    norms = np.linalg.norm(columns, axis=0)
    if not norms.all():  # the kernel is zero
        return None
    solution, _, _, singular = np.linalg.lstsq(
        columns / norms, target, rcond=None
    )
    solution /= norms
    if singular.min() < SINGULAR or not _close(target, columns * solution):
        return None
    return solution[:count]


def _clipped(target, parts):
    """The one pass, or the sum of all, whose entries were clipped."""
    count = parts.shape[1]
    shares = [np.eye(count)[i] for i in range(count)]
    if count > 1:
        shares.append(np.ones(count))
    bounds = target.min(), target.max()
    fitting = [
        share
        for share in shares
        if _close(target, np.clip(parts @ share, *bounds)[:, None])
    ]
    return fitting[0] if len(fitting) == 1 else None


def _parallel(one, other):
    norms = np.linalg.norm(one) * np.linalg.norm(other)
    return norms > 0 and 1 - abs(one @ other) / norms < TOLERANCE


def _close(target, terms):
    """Whether terms add up to a target, but for rounding errors."""
    sizes = np.linalg.norm(terms, axis=0).sum()
    return np.linalg.norm(target - terms.sum(axis=1)) <= TOLERANCE * sizes


def _vector(tensor):
    return np.asarray(tensor, np.float64).ravel()
