"""Finds kernels whose weights are levels of a few bits times scales.

`quantize` rounds kernels to such grids, and exported files store them with a
few bits per weight. Grids are found from the values alone, so this works for
the kernel of any layer, and for kernels that converters have transposed,
reshaped or multiplied by the scales of a batch normalization.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_qpsbgd import bits as bits_module
from keras_qpsbgd.bits import MAX_BITS
from keras_qpsbgd.bits import max_level

# Maximum relative rounding error of a kernel that a converter has multiplied by
# scales.
TOLERANCE = 1e-6
# About this many entries of an array are tried before the whole array.
SAMPLE = 4096


class Grid(NamedTuple):
    """An array as levels times scales.

    Attributes:
        bits: Integer from 1 to 4, the smallest number of bits for the levels.
        levels: Int8 array of odd integers, in the shape of the array.
        axes: Tuple of integers in increasing order. The axes that have a scale
            for each of their entries.
        scales: Float32 array, not negative. Its shape has the sizes of these
            axes, and 1 for each other axis.
    """

    bits: int
    levels: np.ndarray
    axes: tuple[int, ...]
    scales: np.ndarray

    @property
    def num_bytes(self) -> int:
        """The size of the bits and scales."""
        size = bits_module.num_bytes(self.levels.size, self.bits)
        return size + self.scales.nbytes


def find(
    array: np.ndarray,
    tolerance: float = 0.0,
    choices: Sequence[tuple[int, ...]] | None = None,
) -> Grid | None:
    """Returns a float32 array as levels and scales, if this is smaller.

    Args:
        array: Array with at least two axes. Arrays with fewer axes are not
            kernels.
        tolerance: Float. Maximum relative difference between an entry and its
            level times its scale. Defaults to `0.0`, which requires that this
            product, computed in float32, equals the entry.
        choices: List of tuples (optional). The axes that may have scales.
            Defaults to `None`, which tries all combinations of axes except all
            axes together.

    Returns:
        A `Grid`, or `None`.
    """
    if array.dtype != np.float32 or array.ndim < 2 or not array.size:
        return None
    wide = math.ceil(SAMPLE ** (1 / array.ndim))
    sample = array[(slice(wide),) * array.ndim]
    for axes in _sorted_choices(array.shape, choices):
        if _fit(sample, axes, tolerance) is None:
            continue
        found = _fit(array, axes, tolerance)
        if found is not None and found.num_bytes < array.nbytes:
            return found
    return None


def _sorted_choices(shape, choices):
    """Returns tuples of axes, those with the fewest scales first."""
    if choices is None:
        wide = [axis for axis, size in enumerate(shape) if size > 1]
        choices = itertools.chain.from_iterable(
            itertools.combinations(wide, count) for count in range(len(wide))
        )
    return sorted(
        choices, key=lambda axes: math.prod(shape[axis] for axis in axes)
    )


def _fit(array, axes, tolerance):
    """Returns an array as a `Grid` with scales for the given axes, or `None`.

    The smallest entry of a column is its scale times 1, 3, ... or 15.
    """
    last = range(array.ndim - len(axes), array.ndim)
    moved = np.moveaxis(array, axes, last)
    columns = moved.reshape(-1, math.prod(array.shape[axis] for axis in axes))
    smallest = np.abs(columns).min(axis=0)
    # Columns of zeros have the scale 0.
    left = np.flatnonzero(np.abs(columns).max(axis=0))
    levels = np.where(np.signbit(columns), np.int8(-1), np.int8(1))
    scales = np.zeros(columns.shape[1], np.float32)
    for level in range(1, max_level(MAX_BITS) + 1, 2):
        base = smallest / np.float32(level)
        trials = [base]
        if not tolerance and level > 1:  # the division rounds
            trials += [np.nextafter(base, np.float32(end)) for end in (0, 1e38)]
        for trial in trials:
            values, scale = columns[:, left], trial[left]
            with np.errstate(all="ignore"):
                whole = np.rint(values / scale)
                if tolerance:
                    scale = np.median(values / whole, axis=0)
                products = whole * scale
                error = np.abs(values - products)
                fits = (error <= tolerance * np.abs(values)).all(axis=0)
                fits &= (whole % 2 == 1).all(axis=0)
            fits &= np.abs(whole).max(axis=0) <= max_level(MAX_BITS)
            levels[:, left[fits]] = whole[:, fits]
            scales[left[fits]] = scale[fits]
            left = left[~fits]
            if not len(left):
                bits = int(np.abs(levels).max()).bit_length()
                shape = [
                    size if axis in axes else 1
                    for axis, size in enumerate(array.shape)
                ]
                levels = np.moveaxis(levels.reshape(moved.shape), last, axes)
                return Grid(bits, levels, axes, scales.reshape(shape))
    return None
