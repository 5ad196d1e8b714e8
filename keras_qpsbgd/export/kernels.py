"""Finds the binary kernels among the arrays of an exported file.

Converters rename, transpose and reshape kernels, and may multiply them by the
scales of a batch normalization. The levels identify them: an array is the
kernel if it is the levels times one number per output, or one per input.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_qpsbgd import _keras
from keras_qpsbgd.layers import BinaryLayer
from keras_qpsbgd.layers import kinds

# Largest relative difference between the scales of an output, from rounding.
TOLERANCE = 1e-6
# Layouts of a convolution in other formats, as permutations of Keras's axes.
CONV_LAYOUTS = ((0, 1, 2, 3), (3, 2, 0, 1), (3, 0, 1, 2))


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel `levels * scales`, whose last axes are the outputs.

    Attributes:
        bits: Integer. Number of bits of a weight.
        levels: Int8 array of odd integers, in the shape of the kernel.
        scales: Float32 array with an entry for each output, in their shape.
    """

    bits: int
    levels: np.ndarray
    scales: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Match:
    """An array as `levels * scales`.

    Attributes:
        bits: Integer. Number of bits of a weight.
        levels: Int8 array of odd integers, in the shape of the array.
        scales: Float32 array of shape `(m,)`, not negative.
        axis: Integer. The axis of the scales.
    """

    bits: int
    levels: np.ndarray
    scales: np.ndarray
    axis: int


def kernels_of(model: Any) -> list[Kernel]:
    """Returns the kernels of all binary layers of a model."""
    return [
        Kernel(layer.bits, *kinds.scaled_levels(layer))
        for layer in _keras.all_layers(model)
        if isinstance(layer, BinaryLayer) and not layer.has_real_kernel
    ]


def find(array: np.ndarray, kernels: list[Kernel]) -> Match | None:
    """Returns an array as levels and scales, or `None`."""
    for kernel in kernels:
        for levels, axis in _layouts(kernel):
            if levels.shape != array.shape:
                continue
            ratios = np.moveaxis(array / levels, axis, 0)
            ratios = ratios.reshape(array.shape[axis], -1)
            scales = np.median(ratios, axis=1)
            error = np.abs(ratios - scales[:, None]).max(axis=1)
            if (error <= TOLERANCE * np.abs(scales)).all():
                shape = [1] * array.ndim
                shape[axis] = -1
                signs = np.where(scales < 0, -1, 1).reshape(shape)
                return Match(
                    kernel.bits,
                    (levels * signs).astype(np.int8),
                    np.abs(scales).astype(np.float32),
                    axis,
                )
    return None


def _layouts(kernel: Kernel) -> Iterator[tuple[np.ndarray, int]]:
    """Yields the levels in possible layouts, and the axis of the scales."""
    levels = kernel.levels
    if levels.ndim == 4 and kernel.scales.ndim == 1:
        for layout in CONV_LAYOUTS:
            yield levels.transpose(layout), layout.index(3)
    matrix = levels.reshape(-1, math.prod(kernel.scales.shape))
    for axis in (1, 0):  # outputs, inputs
        yield matrix, axis
        yield matrix.T, 1 - axis
