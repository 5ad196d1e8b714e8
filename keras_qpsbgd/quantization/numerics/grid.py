r"""The grid of quantized weights.

A weight of \(b\) bits is \(s_j q\), where \(s_j\) is the scale of its column
and the level \(q\) is one of the odd integers
\(-L, \dots, -1, 1, \dots, L\) with \(L = 2^b - 1\).
"""

import numpy as np

from keras_qpsbgd.bits import max_level

# Candidates for the scale of a column, relative to the largest weight.
_SCALES = np.linspace(0.3, 1.0, 36)
# A latent weight keeps this distance from the ends of its cell, in levels.
_MARGIN = 0.1


def nearest_levels(values, bits):
    """Returns the levels that are nearest to `values`, as floats."""
    if bits == 1:  # twice as fast
        one = values.dtype.type(1)
        return np.where(values < 0, -one, one)
    largest = max_level(bits)
    return np.clip(2.0 * np.floor(values / 2.0) + 1.0, -largest, largest)


def cell_centers(levels, values, bits):
    """Returns the even integers between each level and one of its neighbors.

    The neighbor lies in the direction of `values`, except at the ends of the
    grid, where there is only one. Adding a state of +1 or -1 to a center gives
    one of the two levels.

    Args:
        levels: Array of levels.
        values: Array of the same shape. Real numbers, in units of the scale.
        bits: Integer.
    """
    inner = max_level(bits) - 1
    centers = levels + np.where(values >= levels, 1.0, -1.0)
    return np.clip(centers, -inner, inner)


def weight_scales(kernel, bits):
    r"""Returns the scales \(s_j\) for which rounding changes a kernel least.

    Minimizes \(\lVert w_j - s_j q \rVert^2\) over the scale and the levels. One
    bit has a closed form, the mean of \(|w_j|\). More bits try several scales.

    Args:
        kernel: Array of shape `(groups, n, m)`.
        bits: Integer.

    Returns:
        Array of shape `(groups, 1, m)`. 0 for columns of zeros.
    """
    if bits == 1:
        return np.abs(kernel).mean(axis=1, keepdims=True)
    largest = np.abs(kernel).max(axis=1, keepdims=True) / max_level(bits)
    best = np.full(largest.shape, np.inf)
    scales = np.zeros(largest.shape)
    for candidate in _SCALES:
        trial = candidate * largest
        levels = nearest_levels(divide(kernel, trial), bits)
        # The best scale for these levels.
        trial = (levels * kernel).sum(axis=1, keepdims=True)
        trial /= (levels**2).sum(axis=1, keepdims=True)
        error = ((kernel - trial * levels) ** 2).sum(axis=1, keepdims=True)
        better = error < best
        best = np.where(better, error, best)
        scales = np.where(better, trial, scales)
    return scales


def latent_kernel(kernel, levels, scales, bits):
    r"""Returns latent weights whose levels are `levels`.

    A binary layer computes with the level of the cell that contains its latent
    weight. The latent weight is \(w / (s_j L)\), moved into the cell of its
    level. Weights that were almost rounded to the next level are close to the
    border of their cell, so training can change them most easily.

    Args:
        kernel: Array of shape `(groups, n, m)`. The float weights.
        levels: Array of the same shape.
        scales: Array of shape `(groups, 1, m)`.
        bits: Integer.

    Returns:
        Array of shape `(groups, n, m)` with values between -1 and 1.
    """
    values = np.where(scales > 0, divide(kernel, scales), levels)
    low, high = levels - 1.0 + _MARGIN, levels + 1.0 - _MARGIN
    largest = max_level(bits)
    values = np.clip(np.clip(values, low, high), -largest, largest)
    return values / largest


def divide(numerator, denominator):
    """Divides two arrays. The result is 0 where the denominator is 0."""
    numerator, denominator = np.broadcast_arrays(numerator, denominator)
    return np.divide(
        numerator,
        denominator,
        out=np.zeros(numerator.shape),
        where=denominator != 0,
    )
