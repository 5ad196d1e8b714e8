"""Kinds of layers: a Keras layer, its binary layer, and what both compute.

A layer of a kind multiplies rows of shape `(B, n)` by a kernel of shape
`(n, m)`. The kind defines how to read both from a layer, and how to build the
layer that replaces it. Quantization and exported models use the kinds, so a new
layer only needs a kind here and a row in `KINDS`.

| kind | Keras layer | binary layer |
|---|---|---|
| `DenseKind` | `Dense` | `BinaryDense` |
| `Conv2DKind` | `Conv2D` | `BinaryConv2D` |
| `EinsumDenseKind` | `EinsumDense` | `BinaryEinsumDense` |
| `GraphConvKind` | `GCNConv` of Spektral | `BinaryGraphConv` |
| others in `convolutions.py` | other convolutions | none |
| those in `recurrent.py` | `SimpleRNN`, `LSTM`, `GRU` | none |

An attention layer is made of `EinsumDense` layers. A separable convolution and
a recurrent layer have two kernels, each with a kind of its own.
"""

from __future__ import annotations

import sys
from typing import Any

from tensorflow import keras

from keras_qpsbgd.quantization.kinds.convolutions import Conv2DKind
from keras_qpsbgd.quantization.kinds.convolutions import ConvKind
from keras_qpsbgd.quantization.kinds.convolutions import DepthwiseKind
from keras_qpsbgd.quantization.kinds.convolutions import PointwiseKind
from keras_qpsbgd.quantization.kinds.convolutions import SeparableDepthwiseKind
from keras_qpsbgd.quantization.kinds.convolutions import TransposedKind
from keras_qpsbgd.quantization.kinds.dense import DenseKind
from keras_qpsbgd.quantization.kinds.dense import EinsumDenseKind
from keras_qpsbgd.quantization.kinds.dense import GraphConvKind
from keras_qpsbgd.quantization.kinds.recurrent import InputKernelKind
from keras_qpsbgd.quantization.kinds.recurrent import RecurrentKernelKind

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
        kind. The kernels are in the order in which a call uses them.
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


def _is_gcn_conv(layer):
    # Spektral is optional. Its layers exist only if it was imported.
    if "spektral" not in sys.modules:
        return False
    from spektral.layers import GCNConv

    return type(layer) is GCNConv
