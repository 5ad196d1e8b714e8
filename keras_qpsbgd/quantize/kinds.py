"""The supported layers: their rows, their kernel and their replacement.

A supported layer multiplies rows of shape `(B, n)` by a kernel of shape
`(n, m)`. Each kind says how to read both from a Keras layer.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import ops
from keras_qpsbgd.layers import BinaryConv2D
from keras_qpsbgd.layers import BinaryDense
from keras_qpsbgd.layers import BinaryEinsumDense
from keras_qpsbgd.layers import BinaryGraphConv
from keras_qpsbgd.layers import BinaryLayer
from keras_qpsbgd.layers import adjacency
from keras_qpsbgd.quantize import equations

# Patches are extracted in pieces of at most this many rows and numbers.
MAX_ROWS = 2**15
MAX_NUMBERS = 2**24


class DenseKind:
    """`keras.layers.Dense`, and the base class of the other kinds."""

    replacement: Any = BinaryDense

    def problem(self, layer: Any) -> str | None:
        """Returns why a layer of this class is not supported, or `None`."""
        if getattr(layer, "lora_enabled", False):
            return "LoRA weights"
        if getattr(layer, "quantization_mode", None) is not None:
            return "quantized by Keras"
        return None

    def kernel(self, layer: Any) -> np.ndarray:
        """Returns the kernel as a float64 array of shape `(n, m)`."""
        kernel = layer.kernel.numpy().astype(np.float64)
        return kernel.reshape(-1, kernel.shape[-1])

    def set_kernel(self, layer: Any, kernel: np.ndarray) -> None:
        """Assigns a kernel of shape `(n, m)`."""
        layer.kernel.assign(kernel.reshape(layer.kernel.shape))

    def has_bias(self, layer: Any) -> bool:
        """Returns whether the layer has a bias for each of its m outputs."""
        return bool(layer.use_bias)

    def change_bias(self, layer: Any, change: np.ndarray) -> None:
        """Adds an array of shape `(m,)` to the bias, if the layer has one."""
        if self.has_bias(layer):
            bias = layer.bias.numpy()
            new = bias.astype(np.float64) + change.reshape(bias.shape)
            layer.bias.assign(new.astype(bias.dtype))

    def rows(
        self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[tf.Tensor]:
        """Yields the rows of one call of the layer, in pieces `(B, n)`."""
        del layer
        inputs = _first(args, kwargs)
        if isinstance(inputs, tf.SparseTensor):
            inputs = ops.to_dense(inputs)
        yield tf.reshape(inputs, (-1, inputs.shape[-1]))

    def can_replace(self, layer: Any) -> bool:
        """Returns whether a binary layer can replace the layer."""
        del layer
        return True

    def replace(self, layer: Any, bits: int) -> Any:
        """Returns a new layer with quantized weights and the same settings."""
        config = layer.get_config()
        # Absent in some versions of Keras, and `None` for supported layers.
        config.pop("quantization_config", None)
        config.pop("lora_rank", None)
        config.pop("lora_alpha", None)
        return self.replacement.from_config(with_bits(config, bits))


class Conv2DKind(DenseKind):
    """`keras.layers.Conv2D`, whose rows are patches."""

    replacement = BinaryConv2D

    def problem(self, layer):
        if layer.groups != 1:
            return f"{layer.groups} groups"
        return super().problem(layer)

    def rows(self, layer, args, kwargs):
        images = _first(args, kwargs)
        if layer.data_format == "channels_first":
            images = tf.transpose(images, (0, 2, 3, 1))
        size = math.prod(layer.kernel.shape[:-1])
        step = max(1, _max_rows(size) // _positions(layer, images.shape))
        for begin in range(0, images.shape[0], step):
            patches = tf.image.extract_patches(
                images[begin : begin + step],
                sizes=(1, *layer.kernel_size, 1),
                strides=(1, *layer.strides, 1),
                rates=(1, *layer.dilation_rate, 1),
                padding=layer.padding.upper(),
            )
            yield tf.reshape(patches, (-1, size))


class GraphConvKind(DenseKind):
    """`GCNConv` of Spektral, whose rows are those of A X."""

    replacement = BinaryGraphConv

    def rows(self, layer, args, kwargs):
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
        yield rows


class EinsumDenseKind(DenseKind):
    """`keras.layers.EinsumDense`."""

    replacement = BinaryEinsumDense

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

    def can_replace(self, layer):
        return equations.is_dense(layer.equation)

    def has_bias(self, layer):
        return equations.bias_is_per_output(layer.equation, layer.bias_axes)

    def rows(self, layer, args, kwargs):
        yield equations.rows(layer.equation, _first(args, kwargs))


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


def kind_of(layer: Any) -> DenseKind | None:
    """Returns the kind of a layer, or `None` if its class is not supported.

    Subclasses are not supported, because they may compute something else.
    """
    kinds = {
        keras.layers.Dense: DenseKind,
        keras.layers.Conv2D: Conv2DKind,
        keras.layers.EinsumDense: EinsumDenseKind,
    }
    found = kinds.get(type(layer))
    if found is None and _is_gcn_conv(layer):
        found = GraphConvKind
    return found() if found else None


def is_graph_layer(layer: Any) -> bool:
    """Returns whether a layer takes a graph, whose nodes belong together."""
    return isinstance(layer, BinaryGraphConv) or type(
        layer
    ).__module__.startswith("spektral.")


def unsupported_reason(layer: Any) -> str:
    """Returns why the class of a layer is not supported."""
    if isinstance(layer, BinaryLayer):
        return "already binary"
    if isinstance(layer, keras.Model):
        return "subclassed model"
    return "unsupported type"


def _is_gcn_conv(layer):
    # Spektral is optional. A layer of it exists only if it was imported.
    if "spektral" not in sys.modules:
        return False
    from spektral.layers import GCNConv

    return type(layer) is GCNConv


def _first(args, kwargs):
    return args[0] if args else kwargs["inputs"]


def _max_rows(size):
    return max(1, min(MAX_ROWS, MAX_NUMBERS // size))


def _positions(layer, shape):
    """Returns the approximate number of patches of one image."""
    return max(
        1, math.prod(-(-n // s) for n, s in zip(shape[1:3], layer.strides))
    )
