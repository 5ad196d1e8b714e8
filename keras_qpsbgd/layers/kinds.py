"""Kinds of layers: a Keras layer, its binary layer, and what both compute.

A layer of a kind multiplies rows of shape `(B, n)` by a kernel of shape
`(n, m)`. The kind says how to read both from a layer. Quantization, exported
models, and packed files ask the kinds, so a new layer is added here and nowhere
else.

| kind | Keras layer | binary layer |
|---|---|---|
| `DenseKind` | `Dense` | `BinaryDense` |
| `Conv2DKind` | `Conv2D` | `BinaryConv2D` |
| `EinsumDenseKind` | `EinsumDense` | `BinaryEinsumDense` |
| `GraphConvKind` | `GCNConv` of Spektral | `BinaryGraphConv` |

An attention layer is made of `EinsumDense` layers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd import ops
from keras_qpsbgd.layers import adjacency
from keras_qpsbgd.layers import equations
from keras_qpsbgd.layers import windows as windows_module
from keras_qpsbgd.layers.binary_conv2d import BinaryConv2D
from keras_qpsbgd.layers.binary_dense import BinaryDense
from keras_qpsbgd.layers.binary_einsum_dense import BinaryEinsumDense
from keras_qpsbgd.layers.binary_graph_conv import BinaryGraphConv
from keras_qpsbgd.layers.binary_multi_head_attention import (
    BinaryMultiHeadAttention,
)
from keras_qpsbgd.layers.binary_multi_head_attention import (
    FrozenMultiHeadAttention,
)


class DenseKind:
    """`Dense`, and the base class of the other kinds.

    Attributes:
        stock: Class of the Keras layer that computes the same as `binary`.
        binary: Class of the binary layer.
        has_steps: Boolean. Whether `Predictor` supports the kind.
    """

    stock: Any = keras.layers.Dense
    binary: Any = BinaryDense
    has_steps = True

    def problem(self, layer: Any) -> str | None:
        """Returns why a layer of this class is not supported, or `None`."""
        if getattr(layer, "lora_enabled", False):
            return "LoRA weights"
        if getattr(layer, "quantization_mode", None) is not None:
            return "quantized by Keras"
        return None

    def variable(self, layer: Any) -> Any:
        """Returns the variable of the kernel."""
        return layer.kernel

    def kernel(self, layer: Any) -> np.ndarray:
        """Returns the kernel as a float64 array of shape `(n, m)`.

        A kernel with groups has the shape `(groups, n, m)`.
        """
        kernel = self.variable(layer).numpy().astype(np.float64)
        return kernel.reshape(-1, kernel.shape[-1])

    def set_kernel(self, layer: Any, kernel: np.ndarray) -> None:
        """Assigns a kernel in the shape that `kernel` returns."""
        variable = self.variable(layer)
        variable.assign(kernel.reshape(variable.shape))

    def has_bias(self, layer: Any) -> bool:
        """Returns whether the layer has a bias for each of its m outputs."""
        return bool(layer.use_bias)

    def change_bias(self, layer: Any, change: np.ndarray) -> None:
        """Adds an array, one entry per output, to the bias, if there is one."""
        if self.has_bias(layer):
            bias = layer.bias.numpy()
            new = bias.astype(np.float64) + change.reshape(bias.shape)
            layer.bias.assign(new.astype(bias.dtype))

    def rows(
        self,
        layer: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        count: int | None = None,
        seed: int = 0,
    ) -> Iterator[np.ndarray]:
        """Yields the rows of one call of the layer, in pieces.

        Args:
            layer: The layer.
            args: Positional arguments of the call, eager tensors.
            kwargs: Keyword arguments of the call.
            count: Integer (optional). Chooses at most this many rows at random.
                Defaults to `None`, which yields all rows.
            seed: Integer. The same seed chooses the same rows. Defaults to `0`.

        Returns:
            An iterator over arrays of shape `(B, n)`, or `(B, groups, n)` if
            the kernel has groups.
        """
        del layer
        inputs = _first(args, kwargs)
        if isinstance(inputs, tf.SparseTensor):
            inputs = ops.to_dense(inputs)
        yield from _some(inputs.numpy(), count, seed)

    def windows(self, layer: Any) -> dict[str, Any] | None:
        """Returns the windows whose patches are the rows, for `Predictor`."""
        del layer
        return None

    def can_quantize(self, layer: Any) -> bool:
        """Returns whether the binary layer can replace a Keras layer."""
        del layer
        return True

    def quantized(self, layer: Any, bits: int) -> Any:
        """Returns a binary layer with the settings of a Keras layer."""
        config = layer.get_config()
        # Absent in some versions of Keras, and `None` for supported layers.
        config.pop("quantization_config", None)
        config.pop("lora_rank", None)
        config.pop("lora_alpha", None)
        return self.binary.from_config(with_bits(config, bits))

    def stock_problem(self, layer: Any) -> str | None:
        """Returns why layers of Keras cannot replace it, or `None`."""
        del layer
        return None

    def is_one_stock_layer(self, layer: Any) -> bool:
        """Returns whether one layer of Keras can replace a binary layer."""
        del layer
        return True

    def stock_outputs(
        self, layer: Any, config: dict[str, Any], inputs: Any
    ) -> tuple[Any, Any]:
        """Computes what a binary layer computes with layers of Keras.

        Args:
            layer: Binary layer of this kind.
            config: Dictionary. The configuration of the Keras layer.
            inputs: Symbolic inputs.

        Returns:
            A tuple `(new, outputs)` of the layer with the weights and the
            symbolic outputs.
        """
        del layer
        new = self.stock.from_config(config)
        return new, new(inputs)


class ConvKind(DenseKind):
    """A convolution without a binary layer, with groups or along other axes.

    Args:
        stock: Class of the Keras layer.
    """

    binary = None
    has_steps = False

    def __init__(self, stock: Any) -> None:
        self.stock = stock

    def can_quantize(self, layer):
        return False

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
    has_steps = True

    def __init__(self) -> None:
        super().__init__(keras.layers.Conv2D)

    def can_quantize(self, layer):
        return layer.groups == 1

    def windows(self, layer):
        return {
            "size": layer.kernel_size,
            "strides": layer.strides,
            "dilations": layer.dilation_rate,
            "padding": layer.padding,
        }

    def is_one_stock_layer(self, layer):
        # On a CPU, TensorFlow has no other convolution than channels last.
        return layer.data_format != "channels_first"

    def stock_outputs(self, layer, config, inputs):
        if self.is_one_stock_layer(layer):
            return super().stock_outputs(layer, config, inputs)
        config = {**config, "data_format": "channels_last"}
        inputs = keras.layers.Permute((2, 3, 1))(inputs)
        new, outputs = super().stock_outputs(layer, config, inputs)
        return new, keras.layers.Permute((3, 1, 2))(outputs)


class GraphConvKind(DenseKind):
    """`GCNConv` of Spektral, whose rows are those of A X.

    Layers of Keras compute the product A X and a `Dense` layer.
    """

    binary = BinaryGraphConv
    has_steps = False

    def rows(self, layer, args, kwargs, count=None, seed=0):
        x, a = _first(args, kwargs)[:2]
        if isinstance(x, tf.SparseTensor):
            x = ops.to_dense(x)
        rows = adjacency.propagate(tf.cast(a, x.dtype), x)
        mask = kwargs.get("mask")
        mask = mask[0] if isinstance(mask, (list, tuple)) else mask
        rows = tf.reshape(rows, (-1, rows.shape[-1]))
        if mask is not None:
            # The outputs of masked nodes are zero, whatever the kernel is.
            rows = tf.boolean_mask(rows, tf.reshape(mask, (-1,)) != 0)
        yield from _some(rows.numpy(), count, seed)

    def stock_problem(self, layer):
        x, a = tf.nest.flatten(_keras.input_tensors(layer))[:2]
        if _keras.has_mask(x):
            return "node mask"
        if _keras.is_sparse(x):
            return "sparse node features"
        if _keras.is_sparse(a) and len(x.shape) == 3:
            return "sparse adjacency matrix in mixed or batch mode"
        return None

    def is_one_stock_layer(self, layer):
        return False

    def stock_outputs(self, layer, config, inputs):
        dense = keras.layers.Dense(
            layer.channels,
            activation=config["activation"],
            use_bias=layer.use_bias,
            dtype=config["dtype"],
        )
        return dense, dense(_keras.symbolic_matmul(inputs[1], inputs[0]))


class EinsumDenseKind(DenseKind):
    """`EinsumDense`."""

    stock = keras.layers.EinsumDense
    binary = BinaryEinsumDense
    has_steps = False

    def problem(self, layer):
        found = super().problem(layer)
        return found or equations.problem(layer.equation)

    def kernel(self, layer):
        return equations.to_matrix(
            layer.equation, layer.kernel.numpy().astype(np.float64)
        )

    def set_kernel(self, layer, kernel):
        shape = tuple(layer.kernel.shape)
        layer.kernel.assign(
            equations.from_matrix(layer.equation, kernel, shape)
        )

    def can_quantize(self, layer):
        return equations.num_output_axes(layer.equation) is not None

    def has_bias(self, layer):
        return equations.bias_is_per_output(layer.equation, layer.bias_axes)

    def rows(self, layer, args, kwargs, count=None, seed=0):
        rows = equations.rows(layer.equation, _first(args, kwargs))
        yield from _some(rows.numpy(), count, seed)


def with_bits(config: dict[str, Any], bits: int) -> dict[str, Any]:
    """Returns the configuration of a binary layer for quantized weights.

    The regularizer and the constraint of a float kernel do not fit latent
    weights, which have another scale. They would change the levels.
    """
    return {
        **config,
        "bits": bits,
        "output_scale": "channel",
        "kernel_regularizer": None,
        "kernel_constraint": None,
    }


KINDS = (
    DenseKind(),
    Conv2DKind(),
    ConvKind(keras.layers.Conv1D),
    ConvKind(keras.layers.Conv3D),
    DepthwiseKind(keras.layers.DepthwiseConv1D),
    DepthwiseKind(keras.layers.DepthwiseConv2D),
    EinsumDenseKind(),
    GraphConvKind(),
)
ATTENTION = (BinaryMultiHeadAttention, FrozenMultiHeadAttention)


def kind_of(layer: Any) -> DenseKind | None:
    """Returns the kind of a Keras layer or a binary layer, or `None`.

    Subclasses have no kind, because they may compute something else.
    """
    for kind in KINDS:
        if type(layer) in (kind.binary, kind.stock):
            return kind
    return GraphConvKind() if _is_gcn_conv(layer) else None


def stock_class(layer: Any) -> Any:
    """Returns the class of the Keras layer that computes the same.

    It is the class of the layer itself if it is not a layer of this package.
    """
    if type(layer) in ATTENTION:
        return keras.layers.MultiHeadAttention
    binary = {kind.binary: kind.stock for kind in KINDS if kind.binary}
    return binary.get(type(layer), type(layer))


def scaled_levels(layer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the kernel of a binary layer as integers and factors.

    Returns:
        A tuple `(levels, scales)` of an int8 array in the shape of the kernel
        and a float32 array in the shape of its outputs. The layer multiplies
        its inputs by `levels * scales`.
    """
    levels = layer.binary_kernel.numpy().astype(np.int8)
    scales = _output_factors(layer) / ops.max_level(layer.bits)
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


def _is_gcn_conv(layer):
    # Spektral is optional. A layer of it exists only if it was imported.
    if "spektral" not in sys.modules:
        return False
    from spektral.layers import GCNConv

    return type(layer) is GCNConv


def _first(args, kwargs):
    return args[0] if args else kwargs["inputs"]


def _some(values, count, seed):
    """Yields all or some of the rows on the last axis of an array."""
    rows = values.reshape(-1, values.shape[-1])
    chosen = windows_module.choose(len(rows), count, seed)
    yield rows if len(chosen) == len(rows) else rows[chosen]


def _windows(layer, args, kwargs, count, seed):
    images = _first(args, kwargs).numpy()
    if layer.data_format == "channels_first":
        images = np.moveaxis(images, 1, -1)
    return windows_module.windows(
        images,
        layer.kernel_size,
        layer.strides,
        layer.dilation_rate,
        layer.padding,
        count,
        seed,
    )
