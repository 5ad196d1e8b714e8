"""A quantized kernel, as levels and scales."""

from typing import NamedTuple

import numpy as np


class Candidate(NamedTuple):
    """Levels and scales of all columns: the kernel is `levels * scales`."""

    levels: np.ndarray  # n x m, odd integers as floats
    scales: np.ndarray  # m


def fitted(problem, levels, scale):
    """Returns given levels with their best scales, none of them negative."""
    scales = problem.best_scales(levels, scale)
    sign = np.where(scales < 0, -1.0, 1.0)
    return Candidate(levels * sign, scales * sign)


def best_of(problem, candidates, scale):
    """Returns the best candidate by the damped error.

    With `scale="column"`, each column is taken from its best candidate. With
    `scale="layer"`, all columns have a common scale, so they are taken from one
    candidate. Ties go to the earlier candidate.
    """
    errors = [problem.damped(*candidate) for candidate in candidates]
    return _select(candidates, errors, scale)


def best_output(problem, candidates, scale):
    """Like `best_of`, by the output error without the damping."""
    errors = [problem.errors(*candidate) for candidate in candidates]
    return _select(candidates, errors, scale)


def _select(candidates, errors, scale):
    if scale == "layer":
        sums = [error.sum() for error in errors]
        return candidates[int(np.argmin(sums))]
    best = np.argmin(errors, axis=0)
    columns = np.arange(len(best))
    levels = np.stack([candidate.levels for candidate in candidates])
    scales = np.stack([candidate.scales for candidate in candidates])
    return Candidate(levels[best, :, columns].T, scales[best, columns])
