"""Keras layers with binary weights, or weights of up to four bits."""

from keras_qpsbgd.layers.binary_conv2d import BinaryConv2D
from keras_qpsbgd.layers.binary_dense import BinaryDense
from keras_qpsbgd.layers.binary_einsum_dense import BinaryEinsumDense
from keras_qpsbgd.layers.binary_graph_conv import BinaryGraphConv
from keras_qpsbgd.layers.binary_layer import BinaryLayer
from keras_qpsbgd.layers.binary_multi_head_attention import (
    BinaryMultiHeadAttention,
)

__all__ = [
    "BinaryConv2D",
    "BinaryDense",
    "BinaryEinsumDense",
    "BinaryGraphConv",
    "BinaryLayer",
    "BinaryMultiHeadAttention",
]
