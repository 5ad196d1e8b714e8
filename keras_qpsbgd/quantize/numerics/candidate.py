"""A quantized kernel, as levels and scales."""

from typing import NamedTuple

import numpy as np


class Candidate(NamedTuple):
    """Levels and scales of all columns: the kernel is `levels * scales`."""

    levels: np.ndarray  # n x m, odd integers as floats
    scales: np.ndarray  # m, not negative
    damped: np.ndarray  # m, the damped errors
    errors: np.ndarray  # m, the output errors


def create(problem, levels, scales, forces=None):
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
    return create(problem, levels, scales, forces)


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
