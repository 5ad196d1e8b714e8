"""Kinds of convolutions in one, two or three dimensions."""

from __future__ import annotations

import functools
import math
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
# Maps layers without full kernels to convolutions with the same windows.
WINDOWS = {
    keras.layers.DepthwiseConv1D: keras.layers.Conv1D,
    keras.layers.DepthwiseConv2D: keras.layers.Conv2D,
    keras.layers.SeparableConv1D: keras.layers.Conv1D,
    keras.layers.SeparableConv2D: keras.layers.Conv2D,
}


class ConvKind(DenseKind):
    """A convolution without a binary layer: with groups, or not in 2D.

    Args:
        stock: Class of the Keras layer.
    """

    binary: Any = None

    def __init__(self, stock: Any) -> None:
        self.stock = stock

    def groups(self, layer):
        """Returns the number of groups of inputs, or `None` without groups."""
        groups = getattr(layer, "groups", 1)  # absent if transposed
        return groups if groups > 1 else None

    def kernel(self, layer):
        kernel, groups = super().kernel(layer), self.groups(layer)
        if groups is None:
            return kernel
        # The outputs of each group are contiguous.
        return kernel.reshape(len(kernel), groups, -1).transpose(1, 0, 2)

    def set_kernel(self, layer, kernel):
        if kernel.ndim == 3:
            kernel = kernel.transpose(1, 0, 2)
        super().set_kernel(layer, kernel)

    def rows(self, layer, args, kwargs, count=None, seed=0):
        images = first(args, kwargs).numpy()
        if layer.data_format == "channels_first":
            images = np.moveaxis(images, 1, -1)
        groups, channels = self.groups(layer), images.shape[-1]
        places = _places(
            WINDOWS.get(type(layer), type(layer)),
            images.shape[1:-1],
            layer.kernel_size,
            layer.strides,
            layer.padding,
            layer.dilation_rate,
            getattr(layer, "output_padding", None),
        )
        images = images.reshape(len(images), -1, channels)
        images = np.pad(images, [(0, 0), (1, 0), (0, 0)])  # pixel 0 is outside
        chosen = choose(len(images) * len(places), count, seed)
        step = max(1, MAX_NUMBERS // (places.shape[1] * channels))
        for begin in range(0, len(chosen), step):
            image, window = divmod(chosen[begin : begin + step], len(places))
            found = images[image[:, None], places[window]]
            if groups is None:
                yield found.reshape(len(found), -1)
                continue
            split = found.reshape(*found.shape[:2], groups, -1)
            yield split.transpose(0, 2, 1, 3).reshape(len(found), groups, -1)


class DepthwiseKind(ConvKind):
    """`DepthwiseConv1D` and `DepthwiseConv2D`, with a group per channel."""

    def variable(self, layer):
        return layer.kernel if _keras.KERAS_3 else layer.depthwise_kernel

    def groups(self, layer):
        return self.variable(layer).shape[-2]

    def kernel(self, layer):
        kernel = self.variable(layer).numpy().astype(np.float64)
        kernel = kernel.reshape(-1, *kernel.shape[-2:])
        return kernel.transpose(1, 0, 2)


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

    The window of an output is the pixels that contribute to it.
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


@functools.lru_cache(maxsize=16)
def _places(layer_class, axes, size, strides, padding, dilations, output):
    """Returns which pixel of an image is at each place of each window.

    The layer itself computes this: a convolution of the pixel numbers, with one
    filter for each place of the window, returns the pixels at these places.

    Args:
        layer_class: Class of a Keras layer.
        axes: Tuple of integers, the shape of an image without its channels.
        size, strides, padding, dilations, output: Arguments of the layer. The
            last one, `output_padding`, only exists in transposed convolutions.

    Returns:
        Array of shape `(windows, prod(size))`. The first pixel has the number
        1, and 0 means outside the image.
    """
    filters = math.prod(size)
    options = {} if output is None else {"output_padding": output}
    layer = layer_class(
        filters,
        size,
        strides,
        padding,
        dilation_rate=dilations,
        data_format="channels_last",
        use_bias=False,
        kernel_initializer="zeros",
        name="windows",
        dtype="float64",
        **options,
    )
    numbers = np.arange(1.0, math.prod(axes) + 1).reshape(1, *axes, 1)
    layer.build(numbers.shape)
    layer.kernel.assign(np.eye(filters).reshape(layer.kernel.shape))
    found = np.asarray(layer(numbers)).reshape(-1, filters)
    return np.rint(found).astype(int)
