"""The weights that binary layers compute with, as float kernels."""

import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd.layers import BinaryEinsumDense


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel `levels * scales`, whose last axes are the outputs.

    Attributes:
        name: String. The name of the layer.
        bits: Integer. Number of bits of a weight.
        levels: Int8 array of odd integers, in the shape of the kernel.
        scales: Float32 array with an entry for each output, in their shape.
    """

    name: str
    bits: int
    levels: np.ndarray
    scales: np.ndarray

    @property
    def values(self) -> np.ndarray:
        """The kernel as a float32 array."""
        product = self.levels * self.scales.astype(np.float64)
        return product.astype(np.float32)


def kernel_of(layer: Any) -> Kernel:
    """Returns the kernel of a binary layer, including its output scale."""
    levels = ops.levels(tf.convert_to_tensor(layer.kernel), layer.bits).numpy()
    scales = _factor(layer) / ops.max_level(layer.bits)
    return Kernel(
        layer.name,
        layer.bits,
        levels.astype(np.int8),
        scales.astype(np.float32),
    )


def values_of(layer: Any) -> np.ndarray:
    """Returns what a binary layer multiplies its inputs by.

    Also for layers with a real kernel, which have no levels.
    """
    if not layer.has_real_kernel:
        return kernel_of(layer).values
    kernel = layer.kernel.numpy().astype(np.float64)
    if layer.output_scale == "channel":
        # The scale of a real kernel starts at 1.
        kernel = kernel * _factor(layer) * math.sqrt(_fan_in(layer))
    return kernel.astype(np.float32)


def _factor(layer):
    """Returns the output scale of a layer, in the shape of its outputs."""
    shape = _outputs(layer)
    if layer.output_scale == "channel":
        return layer.scale.numpy().astype(np.float64).reshape(shape)
    is_scaled = layer.output_scale == "fan_in"
    return np.full(shape, _fan_in(layer) ** -0.5 if is_scaled else 1.0)


def _fan_in(layer):
    return math.prod(layer.kernel.shape) // math.prod(_outputs(layer))


def _outputs(layer):
    axes = 1
    if isinstance(layer, BinaryEinsumDense):
        inputs, _, rest = layer.equation.partition(",")
        axes = len(set(rest.partition("->")[0]) - set(inputs))
    return tuple(layer.kernel.shape[-axes:])
