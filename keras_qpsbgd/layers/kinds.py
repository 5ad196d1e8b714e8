"""Kinds of layers: a Keras layer, its binary layer, and what both compute.

A layer of a kind multiplies rows of shape `(B, n)` by a kernel of shape
`(n, m)`. The kind says how to read both from a layer. Quantization, exported
models, and packed files use the kinds, so a new layer only has to be added
here.

| kind | Keras layer | binary layer |
|---|---|---|
| `DenseKind` | `Dense` | `BinaryDense` |
| `Conv2DKind` | `Conv2D` | `BinaryConv2D` |
| `EinsumDenseKind` | `EinsumDense` | `BinaryEinsumDense` |
| `GraphConvKind` | `GCNConv` of Spektral | `BinaryGraphConv` |
| others in `convolution_kinds.py` | other convolutions | none |
| those in `recurrent_kinds.py` | `SimpleRNN`, `LSTM`, `GRU` | none |

An attention layer is made of `EinsumDense` layers. A separable convolution and
a recurrent layer have two kernels, each with a kind of its own.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd.layers import adjacency
from keras_qpsbgd.layers import equations
from keras_qpsbgd.layers.binary_einsum_dense import BinaryEinsumDense
from keras_qpsbgd.layers.binary_graph_conv import BinaryGraphConv
from keras_qpsbgd.layers.binary_multi_head_attention import (
    BinaryMultiHeadAttention,
)
from keras_qpsbgd.layers.binary_multi_head_attention import (
    FrozenMultiHeadAttention,
)
from keras_qpsbgd.layers.convolution_kinds import Conv2DKind
from keras_qpsbgd.layers.convolution_kinds import ConvKind
from keras_qpsbgd.layers.convolution_kinds import DepthwiseKind
from keras_qpsbgd.layers.convolution_kinds import PointwiseKind
from keras_qpsbgd.layers.convolution_kinds import SeparableDepthwiseKind
from keras_qpsbgd.layers.convolution_kinds import TransposedKind
from keras_qpsbgd.layers.dense_kind import DenseKind
from keras_qpsbgd.layers.dense_kind import first
from keras_qpsbgd.layers.dense_kind import some
from keras_qpsbgd.layers.recurrent_kinds import InputKernelKind
from keras_qpsbgd.layers.recurrent_kinds import RecurrentKernelKind
from keras_qpsbgd.layers.rows import to_dense
from keras_qpsbgd.qubo import ops


class GraphConvKind(DenseKind):
    """`GCNConv` of Spektral, whose rows are those of A X.

    With Keras layers, it is the product A X followed by a `Dense` layer.
    """

    binary = BinaryGraphConv
    has_steps = False

    def rows(self, layer, args, kwargs, count=None, seed=0):
        x, a = first(args, kwargs)[:2]
        if isinstance(x, tf.SparseTensor):
            x = to_dense(x)
        rows = adjacency.propagate(tf.cast(a, x.dtype), x)
        mask = kwargs.get("mask")
        mask = mask[0] if isinstance(mask, (list, tuple)) else mask
        rows = tf.reshape(rows, (-1, rows.shape[-1]))
        if mask is not None:
            # The outputs of masked nodes are zero, whatever the kernel is.
            rows = tf.boolean_mask(rows, tf.reshape(mask, (-1,)) != 0)
        yield from some(rows.numpy(), count, seed)

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
        rows = equations.rows(layer.equation, first(args, kwargs))
        yield from some(rows.numpy(), count, seed)


KINDS = (
    DenseKind(),
    Conv2DKind(),
    ConvKind(keras.layers.Conv1D),
    ConvKind(keras.layers.Conv3D),
    DepthwiseKind(keras.layers.DepthwiseConv1D),
    DepthwiseKind(keras.layers.DepthwiseConv2D),
    TransposedKind(keras.layers.Conv1DTranspose),
    TransposedKind(keras.layers.Conv2DTranspose),
    TransposedKind(keras.layers.Conv3DTranspose),
    EinsumDenseKind(),
    GraphConvKind(),
)
SEPARABLE = (keras.layers.SeparableConv1D, keras.layers.SeparableConv2D)
RECURRENT = (keras.layers.SimpleRNN, keras.layers.LSTM, keras.layers.GRU)
ATTENTION = (BinaryMultiHeadAttention, FrozenMultiHeadAttention)


def kind_of(layer: Any) -> DenseKind | None:
    """Returns the kind of a Keras layer or a binary layer, or `None`.

    Subclasses have no kind, because they may compute something else.
    """
    for kind in KINDS:
        if type(layer) in (kind.binary, kind.stock):
            return kind
    return GraphConvKind() if _is_gcn_conv(layer) else None


def kernels_of(layer: Any) -> dict[str, DenseKind]:
    """Returns the kinds of all kernels of a Keras layer.

    Returns:
        A dictionary that maps names of kernels to kinds. The name is empty if
        the layer has one kernel. The dictionary is empty if the layer has no
        kind. Earlier kernels are used first in a call.
    """
    if type(layer) in SEPARABLE:
        return {
            "depthwise": SeparableDepthwiseKind(type(layer)),
            "pointwise": PointwiseKind(),
        }
    if type(layer) in RECURRENT:
        return {"kernel": InputKernelKind(), "recurrent": RecurrentKernelKind()}
    kind = kind_of(layer)
    return {} if kind is None else {"": kind}


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
    # Spektral is optional. Its layers exist only if it was imported.
    if "spektral" not in sys.modules:
        return False
    from spektral.layers import GCNConv

    return type(layer) is GCNConv
