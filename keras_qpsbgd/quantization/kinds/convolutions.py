"""What convolutions compute, with any number of axes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd.layers.binary_conv2d import BinaryConv2D
from keras_qpsbgd.quantization.kinds.dense import DenseKind
from keras_qpsbgd.quantization.kinds.dense import choose
from keras_qpsbgd.quantization.kinds.dense import first

# Windows are extracted in pieces of at most this many numbers.
MAX_NUMBERS = 2**22


class ConvKind(DenseKind):
    """A convolution without a binary layer: one with groups, or not in 2D.

    Args:
        stock: Class of the Keras layer.
    """

    binary: Any = None

    def __init__(self, stock: Any) -> None:
        self.stock = stock

    def kernel(self, layer):
        kernel = super().kernel(layer)
        if layer.groups == 1:
            return kernel
        # The outputs of a group follow each other.
        split = kernel.reshape(len(kernel), layer.groups, -1)
        return split.transpose(1, 0, 2)

    def set_kernel(self, layer, kernel):
        if kernel.ndim == 3:
            kernel = kernel.transpose(1, 0, 2)
        super().set_kernel(layer, kernel)

    def rows(self, layer, args, kwargs, count=None, seed=0):
        for found in _windows(layer, args, kwargs, count, seed):
            if layer.groups == 1:
                yield found.reshape(len(found), -1)
                continue
            b, places, channels = found.shape
            groups = layer.groups
            split = found.reshape(b, places, groups, channels // groups)
            yield split.transpose(0, 2, 1, 3).reshape(b, groups, -1)


class DepthwiseKind(ConvKind):
    """`DepthwiseConv1D` and `DepthwiseConv2D`, with a group per channel."""

    def variable(self, layer):
        return layer.kernel if _keras.KERAS_3 else layer.depthwise_kernel

    def kernel(self, layer):
        kernel = self.variable(layer).numpy().astype(np.float64)
        kernel = kernel.reshape(-1, *kernel.shape[-2:])
        return kernel.transpose(1, 0, 2)

    def rows(self, layer, args, kwargs, count=None, seed=0):
        for found in _windows(layer, args, kwargs, count, seed):
            yield found.transpose(0, 2, 1)


class Conv2DKind(ConvKind):
    """`Conv2D`, which becomes `BinaryConv2D` if it has one group."""

    binary = BinaryConv2D

    def __init__(self) -> None:
        super().__init__(keras.layers.Conv2D)

    def can_quantize(self, layer):
        return layer.groups == 1

    def is_one_stock_layer(self, layer):
        # On a CPU, TensorFlow has only channels-last convolutions.
        return layer.data_format != "channels_first"

    def stock_outputs(self, layer, config, inputs):
        if self.is_one_stock_layer(layer):
            return super().stock_outputs(layer, config, inputs)
        config = {**config, "data_format": "channels_last"}
        inputs = keras.layers.Permute((2, 3, 1))(inputs)
        new, outputs = super().stock_outputs(layer, config, inputs)
        return new, keras.layers.Permute((3, 1, 2))(outputs)


class SeparableDepthwiseKind(DepthwiseKind):
    """The depthwise kernel of `SeparableConv1D` and `SeparableConv2D`."""

    def variable(self, layer):
        return layer.depthwise_kernel

    def has_bias(self, layer):
        return False

    def weights(self, layer):
        return [layer.depthwise_kernel]


class PointwiseKind(DenseKind):
    """The pointwise kernel, whose rows are the depthwise products."""

    stock = binary = None

    def variable(self, layer):
        return layer.pointwise_kernel

    def weights(self, layer):
        return [w for w in layer.weights if w is not layer.depthwise_kernel]

    def rows(self, layer, args, kwargs, count=None, seed=0):
        depthwise = SeparableDepthwiseKind(type(layer))
        kernel = depthwise.kernel(layer)
        for found in depthwise.rows(layer, args, kwargs, count, seed):
            products = found.transpose(1, 0, 2) @ kernel
            yield products.transpose(1, 0, 2).reshape(len(found), -1)


class TransposedKind(ConvKind):
    """`Conv1DTranspose`, `Conv2DTranspose` and `Conv3DTranspose`.

    A transposed convolution is a convolution of an image with `strides - 1`
    zeros between the pixels, with a reversed kernel.
    """

    def kernel(self, layer):
        kernel = self.variable(layer).numpy().astype(np.float64)
        kernel = kernel.reshape(-1, *kernel.shape[-2:])
        return kernel.transpose(0, 2, 1).reshape(-1, kernel.shape[1])

    def set_kernel(self, layer, kernel):
        variable = self.variable(layer)
        outputs, inputs = variable.shape[-2:]
        kernel = kernel.reshape(-1, inputs, outputs).transpose(0, 2, 1)
        variable.assign(kernel.reshape(variable.shape))

    def rows(self, layer, args, kwargs, count=None, seed=0):
        images = _images(layer, args, kwargs)
        shape = layer.compute_output_shape(first(args, kwargs).shape)
        is_first = layer.data_format == "channels_first"
        lengths = shape[2:] if is_first else shape[1:-1]
        found = windows(
            _stuffed(layer, images, lengths),
            layer.kernel_size,
            (1,) * len(lengths),
            layer.dilation_rate,
            "valid",
            count,
            seed,
        )
        for piece in found:
            yield piece[:, ::-1].reshape(len(piece), -1)


def _windows(layer, args, kwargs, count, seed):
    return windows(
        _images(layer, args, kwargs),
        layer.kernel_size,
        layer.strides,
        layer.dilation_rate,
        layer.padding,
        count,
        seed,
    )


def _images(layer, args, kwargs):
    """Returns the inputs of a call with the channels on the last axis."""
    images = first(args, kwargs).numpy()
    if layer.data_format == "channels_first":
        return np.moveaxis(images, 1, -1)
    return images


def _stuffed(layer, images, lengths):
    """Returns images with zeros between the pixels and at the borders.

    Args:
        layer: Transposed convolution.
        images: Array of shape `(batch, *axes, channels)`.
        lengths: Tuple of integers. The lengths of the outputs.
    """
    shape, places = [len(images)], [slice(None)]
    for length, output, size, stride, dilation in zip(
        images.shape[1:-1],
        lengths,
        layer.kernel_size,
        layer.strides,
        layer.dilation_rate,
    ):
        reach = (size - 1) * dilation
        last = (length - 1) * stride
        # The part of the outputs that "same" cuts off at the beginning.
        cut = max(last + reach + 1 - output, 0) // 2
        begin = reach - (cut if layer.padding == "same" else 0)
        shape.append(output + reach)
        places.append(slice(begin, begin + last + 1, stride))
    stuffed = np.zeros((*shape, images.shape[-1]), images.dtype)
    stuffed[tuple(places)] = images
    return stuffed


def windows(
    images: np.ndarray,
    size: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: str,
    count: int | None = None,
    seed: int = 0,
) -> Iterator[np.ndarray]:
    """Yields the windows of a convolution with any number of axes.

    Args:
        images: Array of shape `(batch, *axes, channels)`.
        size: Tuple of integers, the size of the window along each axis.
        strides: Tuple of integers.
        dilations: Tuple of integers.
        padding: `"valid"`, `"same"` or `"causal"`.
        count: Integer (optional). Chooses at most this many windows at random.
            Defaults to `None`, which yields all of them.
        seed: Integer or list of them. The same seed chooses the same windows.
            Defaults to `0`.

    Returns:
        An iterator over arrays of shape `(B, prod(size), channels)`, in the
        order of the images and positions.
    """
    counts, margins = [], [(0, 0)]
    for length, window, stride, dilation in zip(
        images.shape[1:-1], size, strides, dilations
    ):
        reach = (window - 1) * dilation + 1
        if padding == "same":
            positions = -(-length // stride)
            missing = max((positions - 1) * stride + reach - length, 0)
            margins.append((missing // 2, missing - missing // 2))
        else:
            before = reach - 1 if padding == "causal" else 0
            positions = max((length + before - reach) // stride + 1, 0)
            margins.append((before, 0))
        counts.append(positions)
    if np.any(margins):
        images = np.pad(images, [*margins, (0, 0)])
    shape = (len(images), *counts)
    chosen = choose(int(np.prod(shape)), count, seed)
    numbers = int(np.prod(size)) * images.shape[-1]
    step = max(1, MAX_NUMBERS // numbers)
    axes = len(size)
    for begin in range(0, len(chosen), step):
        places = np.unravel_index(chosen[begin : begin + step], shape)
        index = [places[0].reshape(-1, *[1] * axes)]
        for axis in range(axes):
            offsets = dilations[axis] * np.arange(size[axis])
            at = strides[axis] * places[axis + 1][:, None] + offsets
            broadcast = [1] * axes
            broadcast[axis] = size[axis]
            index.append(at.reshape(-1, *broadcast))
        found = images[tuple(index)]
        yield found.reshape(len(found), -1, images.shape[-1])
