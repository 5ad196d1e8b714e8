"""Translates Keras layers to operations.

An operation is a `Product`, an `Elementwise` function or a `Step` that does not
depend on the others. `program.py` joins them to steps.
"""

import dataclasses
from collections.abc import Callable
from typing import Any
from typing import Optional

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import ops
from keras_qpsbgd.inference import steps
from keras_qpsbgd.inference.windows import Windows
from keras_qpsbgd.layers import BinaryConv2D
from keras_qpsbgd.layers import BinaryDense

# Layers that return their input in a prediction.
IDENTITIES = (
    "ActivityRegularization",
    "AlphaDropout",
    "Dropout",
    "GaussianDropout",
    "GaussianNoise",
    "SpatialDropout1D",
    "SpatialDropout2D",
)
# Functions of one number that never fall, or never rise.
MONOTONE = ("relu", "hard_tanh", "tanh", "sigmoid")


class Unsupported(Exception):
    """A layer has a setting that is not supported, given as the message."""


@dataclasses.dataclass(frozen=True)
class Product:
    """The product of a layer, without scale and bias.

    Attributes:
        kernel: Array of shape `(inputs, outputs)`. The levels of a binary
            kernel, or a real kernel.
        bits: Number of bits of a level, or `None` for a real kernel.
        windows: `Windows` of a convolution, or `None`.
    """

    kernel: np.ndarray
    bits: Optional[int]
    windows: Optional[Windows] = None


@dataclasses.dataclass(frozen=True)
class Elementwise:
    """A function of each entry.

    Attributes:
        exact: Function that computes it as Keras does, with an array of rank
            `rank` whose last axis has the outputs.
        scale: Number or array. Together with `shift`, the same function with
            other rounding errors. `None` for an activation.
        shift: Number or array.
        activation: Name of the activation, or `None`.
    """

    exact: Callable
    scale: Any = None
    shift: Any = None
    activation: Optional[str] = None

    @property
    def outputs(self):
        """The number of outputs, 1 if they are all treated alike."""
        if self.activation is not None:
            return 1
        return max(np.size(self.scale), np.size(self.shift))


def operations(layer, rank):
    """Returns the operations of a layer.

    Args:
        layer: Keras layer.
        rank: Integer. The rank of its input.

    Raises:
        Unsupported: If the layer is not supported.
    """
    name = type(layer).__name__
    if type(layer) in TRANSLATIONS:
        if getattr(layer, "data_format", None) == "channels_first":
            raise Unsupported("`data_format` is 'channels_first'")
        return TRANSLATIONS[type(layer)](layer, rank)
    is_stock = type(layer) is getattr(keras.layers, name, None)
    if is_stock and name in IDENTITIES:
        return []
    raise Unsupported("")


def rank_after(operation, rank):
    """Returns the rank of the output of an operation."""
    if isinstance(operation, steps.Reshape):
        return 2 if operation.shape is None else 1 + len(operation.shape)
    if isinstance(operation, (steps.MaxPooling, steps.AveragePooling)):
        is_flat = operation.windows is None and not operation.keepdims
        return 2 if is_flat else rank
    return rank


def _dense(layer, rank):
    kernel, bits = _kernel(layer)
    return [Product(kernel, bits), *_finish(layer, bits)]


def _conv2d(layer, rank):
    if layer.groups != 1:
        raise Unsupported(f"`groups` is {layer.groups}")
    kernel, bits = _kernel(layer)
    windows = Windows(
        tuple(layer.kernel_size),
        tuple(layer.strides),
        tuple(layer.dilation_rate),
        _padding(layer),
    )
    product = Product(kernel.reshape(-1, kernel.shape[-1]), bits, windows)
    return [product, *_finish(layer, bits)]


def _kernel(layer):
    is_binary = isinstance(layer, (BinaryDense, BinaryConv2D))
    if is_binary and not layer.has_real_kernel:
        levels = layer.binary_kernel.numpy()
        if np.isnan(levels).any():
            raise Unsupported("its kernel has NaN")
        return levels.astype(np.int8), layer.bits
    if getattr(layer, "lora_enabled", False) or getattr(
        layer, "quantization_mode", None
    ):
        raise Unsupported("it has an adapter or is quantized")
    return tf.convert_to_tensor(layer.kernel).numpy().astype(np.float32), None


def _finish(layer, bits):
    """Returns output scale, bias and activation of a layer."""
    has_scale = isinstance(layer, (BinaryDense, BinaryConv2D))
    level = 1.0 if bits is None else 1 / ops.max_level(bits)
    bias = 0.0
    if layer.use_bias:
        bias = tf.cast(tf.convert_to_tensor(layer.bias), tf.float32)

    def exact(x):
        x = tf.constant(x)
        if level != 1.0:
            x *= level
        if has_scale:
            x = layer._scaled(x)
        return x + bias

    scale: Any = np.float64(level)
    if has_scale:
        # The factor does not depend on the input.
        ones = tf.ones((1, layer.kernel.shape[-1]))
        scale = scale * layer._scaled(ones).numpy()[0].astype(np.float64)
        if (scale == scale[0]).all():
            scale = scale[0]
    found = []
    if layer.use_bias or np.ndim(scale) or scale != 1.0:
        found.append(Elementwise(exact, scale, np.asarray(bias, np.float64)))
    return found + activation(layer.activation)


def activation(function):
    """Returns the operations of an activation function.

    Raises:
        Unsupported: If it is not supported.
    """
    if function in (None, keras.activations.linear):
        return []
    for name in (*MONOTONE, "softmax", "binary"):
        if function is keras.activations.get(name):
            if name == "softmax":
                return [steps.Activation(name)]
            return [
                Elementwise(lambda x: function(tf.constant(x)), activation=name)
            ]
    name = getattr(function, "__name__", function)
    raise Unsupported(f"its activation is {name}")


def _activation_layer(layer, rank):
    return activation(layer.activation)


def _relu(layer, rank):
    config = layer.get_config()
    slope = config["negative_slope"]
    if config["max_value"] is not None or slope or config["threshold"]:
        raise Unsupported("`max_value`, `negative_slope` or `threshold` is set")
    return activation(keras.activations.relu)


def _softmax(layer, rank):
    axis = layer.get_config()["axis"]
    if axis not in (-1, rank - 1):
        raise Unsupported(f"`axis` is {axis}")
    return activation(keras.activations.softmax)


def _batch_normalization(layer, rank):
    axis = layer.axis
    axis = list(axis) if isinstance(axis, (list, tuple)) else [axis]
    if axis not in ([-1], [rank - 1]):
        raise Unsupported(f"`axis` is {axis[0]}")
    mean, variance = (
        np.asarray(tf.convert_to_tensor(v), np.float64)
        for v in (layer.moving_mean, layer.moving_variance)
    )
    scale = 1 / np.sqrt(variance + layer.epsilon)
    if layer.scale:
        scale = scale * np.asarray(tf.convert_to_tensor(layer.gamma))
    shift = -mean * scale
    if layer.center:
        shift = shift + np.asarray(tf.convert_to_tensor(layer.beta))

    def exact(x):
        return tf.cast(layer(tf.constant(x), training=False), tf.float32)

    return [Elementwise(exact, scale, shift)]


def _flatten(layer, rank):
    return [steps.Reshape()]


def _reshape(layer, rank):
    return [steps.Reshape(tuple(layer.target_shape))]


def _padding(layer):
    if layer.padding not in ("valid", "same"):
        raise Unsupported(f"`padding` is {layer.padding!r}")
    return layer.padding


def _pooling(step):
    def translate(layer, rank):
        windows = Windows(
            tuple(layer.pool_size),
            tuple(layer.strides),
            (1, 1),
            _padding(layer),
        )
        return [step(windows)]

    return translate


def _global_pooling(step):
    return lambda layer, rank: [step(None, bool(layer.keepdims))]


TRANSLATIONS: dict[Any, Callable] = {
    BinaryDense: _dense,
    BinaryConv2D: _conv2d,
    keras.layers.Dense: _dense,
    keras.layers.Conv2D: _conv2d,
    keras.layers.Activation: _activation_layer,
    keras.layers.ReLU: _relu,
    keras.layers.Softmax: _softmax,
    keras.layers.BatchNormalization: _batch_normalization,
    keras.layers.Flatten: _flatten,
    keras.layers.Reshape: _reshape,
    keras.layers.MaxPooling2D: _pooling(steps.MaxPooling),
    keras.layers.AveragePooling2D: _pooling(steps.AveragePooling),
    keras.layers.GlobalMaxPooling2D: _global_pooling(steps.MaxPooling),
    keras.layers.GlobalAveragePooling2D: _global_pooling(steps.AveragePooling),
}
