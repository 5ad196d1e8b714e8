"""The kernels of binary layers, and where they are in an exported file.

Converters rename, transpose and reshape kernels, and may multiply them by the
scales of a batch normalization. The levels identify them: an array is the
kernel if it is the levels times one number per output, or one per input.
"""

import math
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_qpsbgd import _keras
from keras_qpsbgd.bits import max_level
from keras_qpsbgd.layers import BinaryLayer

# Largest relative difference between the scales of an output, from rounding.
TOLERANCE = 1e-6
# Layouts of a convolution in other formats, as permutations of Keras's axes.
CONV_LAYOUTS = ((0, 1, 2, 3), (3, 2, 0, 1), (3, 0, 1, 2))


class Kernel(NamedTuple):
    """A kernel `levels * scales` of a layer, or an array that contains it.

    Attributes:
        bits: Integer. Number of bits of a weight.
        levels: Int8 array of odd integers, in the shape of the kernel.
        scales: Float32 array. For a layer, in the shape of its outputs, the
            last axes of the kernel. For an array, not negative and of shape
            `(m,)`.
        axis: Integer. The axis of the scales of an array. Defaults to `-1`.
    """

    bits: int
    levels: np.ndarray
    scales: np.ndarray
    axis: int = -1


def kernels_of(model: Any) -> list[Kernel]:
    """Returns the kernels of all binary layers of a model."""
    return [
        Kernel(layer.bits, *scaled_levels(layer))
        for layer in _keras.all_layers(model)
        if isinstance(layer, BinaryLayer) and not layer.has_real_kernel
    ]


def scaled_levels(layer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the kernel of a binary layer as integers and factors.

    Returns:
        A tuple `(levels, scales)` of an int8 array in the shape of the kernel
        and a float32 array in the shape of its outputs. The layer multiplies
        its inputs by `levels * scales`.
    """
    levels = layer.binary_kernel.numpy().astype(np.int8)
    scales = _output_factors(layer) / max_level(layer.bits)
    return levels, scales.astype(np.float32)


def float_kernel(layer: Any) -> np.ndarray:
    """Returns what a binary layer multiplies its inputs by, as float32.

    Also for layers with a real kernel, which have no levels.
    """
    if not layer.has_real_kernel:
        levels, scales = scaled_levels(layer)
        return (levels * scales.astype(np.float64)).astype(np.float32)
    kernel = layer.kernel.numpy().astype(np.float64)
    if layer.output_scale == "channel":
        # The scale of a real kernel starts at 1.
        factors = _output_factors(layer) * math.sqrt(layer._fan_in())
        kernel = kernel * factors
    return kernel.astype(np.float32)


def _output_factors(layer):
    """Returns the output scale of a layer, in the shape of its outputs."""
    shape = layer._outputs
    if layer.output_scale == "channel":
        return layer.scale.numpy().astype(np.float64).reshape(shape)
    is_scaled = layer.output_scale == "fan_in"
    return np.full(shape, layer._fan_in() ** -0.5 if is_scaled else 1.0)


def find(array: np.ndarray, kernels: list[Kernel]) -> Kernel | None:
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
                return Kernel(
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
