"""Describes Keras layers as steps of a prediction, in plain data."""

import dataclasses
from collections.abc import Callable
from typing import Any
from typing import Optional

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd.bits import max_level
from keras_qpsbgd.export.container import Weight
from keras_qpsbgd.layers import BinaryConv2D
from keras_qpsbgd.layers import BinaryDense
from keras_qpsbgd.layers import BinaryLayer
from keras_qpsbgd.quantization import kinds

# Monotone functions of one number.
MONOTONE = ("relu", "hard_tanh", "tanh", "sigmoid")


class NotSupported(ValueError):
    """Raised if `Predictor` does not support a model or a layer."""


@dataclasses.dataclass(frozen=True)
class Elementwise:
    """A function of each entry.

    Attributes:
        exact: Function that computes it as Keras does, with an array of one
            number per output.
        outputs: Integer. The number of outputs, or 1 if the function is the
            same for all of them.
        step: Dictionary. The step that computes it, with other rounding errors.
            `None` for the binary activation.
    """

    exact: Callable
    outputs: int
    step: Optional[dict[str, Any]]


def translated(layer, rank):
    """Returns the steps and elementwise functions of a layer.

    Args:
        layer: Keras layer.
        rank: Integer. The rank of its input.

    Raises:
        NotSupported: If the layer is not supported. The message is the reason.
    """
    if type(layer) not in TRANSLATIONS:
        raise NotSupported("")
    if getattr(layer, "data_format", None) == "channels_first":
        raise NotSupported("`data_format` is 'channels_first'")
    return TRANSLATIONS[type(layer)](layer, rank)


def _product(layer, rank):
    problem = kinds.DenseKind().problem(layer)
    if getattr(layer, "groups", 1) != 1:
        problem = f"`groups` is {layer.groups}"
    if problem is not None:
        raise NotSupported(problem)
    windows = None
    if hasattr(layer, "kernel_size"):
        windows = _windows(
            layer.kernel_size, layer.strides, layer.padding, layer.dilation_rate
        )
    step = {
        "step": "product",
        "kernel": _kernel(layer),
        "windows": windows,
    }
    return [step, *_finish(layer, step["kernel"].bits)]


def _windows(size, strides, padding, dilations=(1, 1)):
    if padding not in ("valid", "same"):
        raise NotSupported(f"`padding` is {padding!r}")
    return {
        "size": _integers(size),
        "strides": _integers(strides),
        "dilations": _integers(dilations),
        "padding": padding,
    }


def _integers(values):
    return [int(value) for value in values]


def _kernel(layer):
    if not isinstance(layer, BinaryLayer) or layer.has_real_kernel:
        return _stored(layer.kernel)
    levels = layer.binary_kernel.numpy()
    if np.isnan(levels).any():
        raise NotSupported("its kernel contains NaN")
    return Weight(levels.astype(np.int8), layer.bits, layer.kernel)


def _stored(variable):
    value = tf.convert_to_tensor(variable)
    if value.dtype == tf.bfloat16:  # NumPy has no bfloat16
        value = tf.cast(value, tf.float32)
    return Weight(value.numpy(), None, variable)


def _finish(layer, bits):
    """Returns the output scale, the bias and the activation of a layer."""
    has_scale = isinstance(layer, BinaryLayer)
    level = 1.0 if bits is None else 1 / max_level(bits)
    bias = _stored(layer.bias) if layer.use_bias else None

    def exact(x):
        x = tf.constant(x)
        if level != 1.0:
            x *= level
        if has_scale:
            x = layer._scaled(x)
        return x + (0.0 if bias is None else tf.cast(bias.array, tf.float32))

    factor: float = level
    scale: Any = None
    if has_scale:
        # The scale does not depend on the input.
        ones = tf.ones((1, layer.kernel.shape[-1]))
        scale = layer._scaled(ones).numpy()[0]
        if (scale == scale[0]).all():
            factor, scale = factor * float(scale[0]), None
        elif not layer.has_real_kernel:
            scale = _stored(layer.scale)
    found = []
    if bias is not None or scale is not None or factor != 1.0:
        step = {
            "step": "affine",
            "factor": factor,
            "scale": scale,
            "shift": bias,
        }
        outputs = (
            1 if bias is None and scale is None else layer.kernel.shape[-1]
        )
        found.append(Elementwise(exact, outputs, step))
    return found + _activation(layer.activation)


def _activation(function):
    """Returns the steps and elementwise functions of an activation."""
    if function in (None, keras.activations.linear):
        return []
    for name in (*MONOTONE, "softmax", "binary"):
        if function is keras.activations.get(name):
            step = {"step": "activation", "name": name}
            if name == "softmax":
                return [step]
            return [
                Elementwise(
                    lambda x: function(tf.constant(x)),
                    1,
                    None if name == "binary" else step,
                )
            ]
    name = getattr(function, "__name__", function)
    raise NotSupported(f"its activation is {name}")


def _relu(layer, rank):
    config = layer.get_config()
    slope = config["negative_slope"]
    if config["max_value"] is not None or slope or config["threshold"]:
        raise NotSupported(
            "`max_value`, `negative_slope` or `threshold` is set"
        )
    return _activation(keras.activations.relu)


def _softmax(layer, rank):
    axis = layer.get_config()["axis"]
    if axis not in (-1, rank - 1):
        raise NotSupported(f"`axis` is {axis}")
    return _activation(keras.activations.softmax)


def _batch_normalization(layer, rank):
    axis = layer.axis
    axis = list(axis) if isinstance(axis, (list, tuple)) else [axis]
    if axis not in ([-1], [rank - 1]):
        raise NotSupported(f"`axis` is {axis[0]}")

    def exact(x):
        x = tf.reshape(x, (1,) * (rank - 1) + (-1,))
        return tf.reshape(tf.cast(layer(x, training=False), tf.float32), (-1,))

    step = {
        "step": "normalization",
        "mean": _stored(layer.moving_mean),
        "variance": _stored(layer.moving_variance),
        "gamma": _stored(layer.gamma) if layer.scale else None,
        "beta": _stored(layer.beta) if layer.center else None,
        "epsilon": float(layer.epsilon),
    }
    return [Elementwise(exact, int(layer.moving_mean.shape[0]), step)]


def _reshape(layer, rank):
    shape = getattr(layer, "target_shape", None)  # `Flatten` has none
    return [{"step": "reshape", "shape": shape and _integers(shape)}]


def _pooling(layer, rank):
    windows = None
    if hasattr(layer, "pool_size"):  # not set if global
        windows = _windows(layer.pool_size, layer.strides, layer.padding)
    return [
        {
            "step": POOLING[type(layer)],
            "windows": windows,
            "keepdims": bool(getattr(layer, "keepdims", False)),
        }
    ]


PRODUCTS = (
    keras.layers.Dense,
    keras.layers.Conv2D,
    BinaryDense,
    BinaryConv2D,
)
POOLING = {
    keras.layers.MaxPooling2D: "max_pooling",
    keras.layers.GlobalMaxPooling2D: "max_pooling",
    keras.layers.AveragePooling2D: "average_pooling",
    keras.layers.GlobalAveragePooling2D: "average_pooling",
}
# Layers that return their input at inference.
IDENTITIES = (
    keras.layers.ActivityRegularization,
    keras.layers.AlphaDropout,
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
    keras.layers.SpatialDropout1D,
    keras.layers.SpatialDropout2D,
)
TRANSLATIONS: dict[Any, Callable] = {
    **dict.fromkeys(IDENTITIES, lambda layer, rank: []),
    **dict.fromkeys(PRODUCTS, _product),
    **dict.fromkeys(POOLING, _pooling),
    keras.layers.Activation: lambda layer, rank: _activation(layer.activation),
    keras.layers.ReLU: _relu,
    keras.layers.Softmax: _softmax,
    keras.layers.BatchNormalization: _batch_normalization,
    keras.layers.Flatten: _reshape,
    keras.layers.Reshape: _reshape,
}
