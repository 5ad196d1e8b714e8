"""Describes a network as steps in plain data, for `Predictor`.

A packed file contains this description, so that `Predictor` computes the
predictions without TensorFlow. `docs/guides/packed-format.md` lists the steps.

Behind a product, Keras computes scale, bias, batch normalization and
activations before a binary activation. Each of them is a monotone function of
one number, also with its rounding errors. So the sign is +1 from some number
on, or up to some number. This threshold is found by bisection over all floats,
with the functions of Keras, and the comparison gives exactly the same signs.
"""

import base64
import dataclasses
from collections.abc import Callable
from typing import Any
from typing import Optional

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd.bits import max_level
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
# The largest product. Larger ones would overflow on the way.
LARGEST = np.float32(2.0**64)


class NotSupported(ValueError):
    """Raised if `Predictor` does not support a model or a layer."""


@dataclasses.dataclass(frozen=True, eq=False)
class Stored:
    """A weight of the model that a step uses.

    Attributes:
        variable: The variable.
        array: Its value as an array. The levels of a binary kernel.
        bits: Integer, or `None` if it is not a binary kernel.
    """

    variable: Any
    array: np.ndarray
    bits: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class Elementwise:
    """A function of each entry.

    Attributes:
        exact: Function that computes it as Keras does, with an array whose last
            axis has the outputs.
        outputs: Integer. The number of outputs, 1 if they are all treated
            alike.
        step: Dictionary. The step that computes it, with other rounding errors.
            `None` for the binary activation.
    """

    exact: Callable
    outputs: int
    step: Optional[dict[str, Any]]


def describe(model: Any) -> dict[str, Any]:
    """Returns the steps of a model.

    Args:
        model: Keras model.

    Returns:
        Dictionary with the keys `"input_shape"` and `"steps"`. The steps are
        dictionaries of numbers, strings, arrays, and `Stored` weights.

    Raises:
        NotSupported: If the model or a layer is not supported. The message
            names all such layers.
    """
    _check(model)
    operations = _operations(model)
    found: list = []
    rank = len(model.input_shape)
    while operations:
        product = None
        if isinstance(operations[0], dict):
            first = operations.pop(0)
            found.append(first)
            rank = _rank_after(first, rank)
            if first["step"] != "product":
                continue
            product = first
        before = _before_binary(operations)
        if before is not None:
            found.append(_threshold(operations[:before], product, rank))
            del operations[: before + 1]
        elif product is None:
            found.append(operations.pop(0).step)
    return {"input_shape": list(model.input_shape), "steps": found}


def to_json(description: dict[str, Any], variables: list[Any]) -> Any:
    """Returns a description for the header of a packed file.

    Args:
        description: The return value of `describe`.
        variables: List. The variables of the arrays in the file.
    """
    places = {id(each): number for number, each in enumerate(variables)}

    def convert(value):
        if isinstance(value, dict):
            return {
                key: convert(inner)
                for key, inner in value.items()
                if inner is not None
            }
        if isinstance(value, list):
            return [convert(inner) for inner in value]
        if isinstance(value, Stored):
            return {"array": places[id(value.variable)]}
        if isinstance(value, np.ndarray):
            data = value.astype(value.dtype.newbyteorder("<")).tobytes()
            return {value.dtype.name: base64.b64encode(data).decode()}
        return value

    return convert(description)


def _check(model):
    if not _keras.is_graph_of_layers(model):
        raise NotSupported(
            "`path_or_model` must be a Sequential or functional model. "
            f"Received: a model of the class {type(model).__name__}"
        )
    try:
        shape = model.input_shape if model.built else None
    except AttributeError:  # Keras has no shape before the first call
        shape = None
    if shape is None:
        raise NotSupported(
            "`path_or_model` must be a model that has been built. Call it on a "
            f"batch first. Received: model with the name {model.name!r}"
        )
    if not isinstance(shape, tuple) or isinstance(shape[0], tuple):
        raise NotSupported(
            "`path_or_model` must be a model with one input. "
            f"Received: input_shape={shape}"
        )


def _operations(model):
    """Returns the steps and elementwise functions of all layers."""
    found: list = []
    problems: list = []
    rank = len(model.input_shape)
    for name, layer in _layers(model):
        try:
            new = _translated(layer, rank)
        except NotSupported as problem:
            reason = f": {problem}" if str(problem) else ""
            problems.append(f"`{name}` ({type(layer).__name__}{reason})")
            continue
        for operation in new:
            if isinstance(operation, dict):
                rank = _rank_after(operation, rank)
        found += new
    if problems:
        raise NotSupported(
            f"`Predictor` does not support the layers {', '.join(problems)}. "
            f"Received: model with the name {model.name!r}"
        )
    return found


def _layers(model, prefix=""):
    """Returns the names and layers of a model and of models inside it."""
    chain = _keras.layer_chain(model)
    if chain is None:
        raise NotSupported(
            "`Predictor` supports only chains, in which each layer has one "
            "input and its output goes to one layer. "
            f"Received: model with the name {prefix + model.name!r}"
        )
    found = []
    for layer in chain:
        if _keras.is_graph_of_layers(layer):
            found += _layers(layer, f"{prefix}{layer.name}/")
        else:
            found.append((prefix + layer.name, layer))
    return found


def _rank_after(step, rank):
    """Returns the rank of the output of a step."""
    if step["step"] == "reshape":
        return 2 if step["shape"] is None else 1 + len(step["shape"])
    if step["step"] in ("max_pooling", "average_pooling"):
        is_flat = step["windows"] is None and not step["keepdims"]
        return 2 if is_flat else rank
    return rank


def _before_binary(operations):
    """Returns how many monotone operations are before a binary activation.

    Returns `None` if there is none, or another operation before it.
    """
    for index, operation in enumerate(operations):
        if not isinstance(operation, Elementwise):
            return None
        if operation.step is None:
            return index
    return None


# Thresholds


def _threshold(operations, product, rank):
    """Returns the step of elementwise functions and a binary activation."""
    outputs = max([1, *(operation.outputs for operation in operations)])
    if product is not None:
        outputs = product["kernel"].array.shape[-1]

    def function(x):
        x = tf.constant(x.reshape((1,) * (rank - 1) + (-1,)), tf.float32)
        for operation in operations:
            x = operation.exact(x)
        return np.asarray(x).ravel() >= 0

    signs, limits = find_thresholds(function, outputs)
    has_signs = (signs < 0).any()
    return {
        "step": "threshold",
        "limits": limits,
        "signs": signs.astype(np.int8) if has_signs else None,
    }


def find_thresholds(
    function: Callable, outputs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the thresholds of monotone functions, one per output.

    Args:
        function: Function that takes a float32 array of shape `(outputs,)` and
            returns a Boolean one.
        outputs: Integer.

    Returns:
        A tuple `(signs, limits)` of float32 arrays. `function(x)` is equal to
        `signs * x >= limits`. The signs are 1 and -1.
    """
    ends = np.full(outputs, LARGEST.view(np.int32), np.int64)
    at_low, at_high = function(_floats(-ends)), function(_floats(ends))
    signs = np.where(at_low & ~at_high, -1, 1).astype(np.float32)
    low, high = -ends, ends
    while (high - low > 1).any():
        middle = (low + high) // 2
        found = function(signs * _floats(middle))
        low, high = np.where(found, low, middle), np.where(found, middle, high)
    limits = _floats(high)
    limits[at_low & at_high] = -np.inf
    limits[~at_low & ~at_high] = np.inf
    return signs, limits


def _floats(keys):
    """Returns the floats at places in their order, where zero is at 0."""
    sizes = np.abs(keys).astype(np.int32).view(np.float32)
    return np.where(keys < 0, -sizes, sizes)


# Layers


def _translated(layer, rank):
    """Returns the steps and elementwise functions of a layer.

    Args:
        layer: Keras layer.
        rank: Integer. The rank of its input.

    Raises:
        NotSupported: If the layer is not supported. The message is the reason.
    """
    name = type(layer).__name__
    if type(layer) in TRANSLATIONS:
        if getattr(layer, "data_format", None) == "channels_first":
            raise NotSupported("`data_format` is 'channels_first'")
        return TRANSLATIONS[type(layer)](layer, rank)
    is_stock = type(layer) is getattr(keras.layers, name, None)
    if is_stock and name in IDENTITIES:
        return []
    raise NotSupported("")


def _dense(layer, rank):
    kernel = _kernel(layer)
    step = {"step": "product", "kernel": kernel, "windows": None}
    return [step, *_finish(layer, kernel.bits)]


def _conv2d(layer, rank):
    if layer.groups != 1:
        raise NotSupported(f"`groups` is {layer.groups}")
    kernel = _kernel(layer)
    windows = _windows(layer, layer.kernel_size, layer.dilation_rate)
    step = {"step": "product", "kernel": kernel, "windows": windows}
    return [step, *_finish(layer, kernel.bits)]


def _windows(layer, size, dilations=(1, 1)):
    if layer.padding not in ("valid", "same"):
        raise NotSupported(f"`padding` is {layer.padding!r}")
    return {
        "size": _integers(size),
        "strides": _integers(layer.strides),
        "dilations": _integers(dilations),
        "padding": layer.padding,
    }


def _integers(values):
    return [int(value) for value in values]


def _kernel(layer):
    is_binary = isinstance(layer, (BinaryDense, BinaryConv2D))
    if is_binary and not layer.has_real_kernel:
        levels = layer.binary_kernel.numpy()
        if np.isnan(levels).any():
            raise NotSupported("its kernel has NaN")
        return Stored(layer.kernel, levels.astype(np.int8), layer.bits)
    if getattr(layer, "lora_enabled", False) or getattr(
        layer, "quantization_mode", None
    ):
        raise NotSupported("it has an adapter or is quantized")
    return _stored(layer.kernel)


def _stored(variable):
    value = tf.convert_to_tensor(variable)
    if value.dtype == tf.bfloat16:  # NumPy has no bfloat16
        value = tf.cast(value, tf.float32)
    return Stored(variable, value.numpy())


def _finish(layer, bits):
    """Returns output scale, bias and activation of a layer."""
    has_scale = isinstance(layer, (BinaryDense, BinaryConv2D))
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


def _activation_layer(layer, rank):
    return _activation(layer.activation)


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
        return tf.cast(layer(tf.constant(x), training=False), tf.float32)

    step = {
        "step": "normalization",
        "mean": _stored(layer.moving_mean),
        "variance": _stored(layer.moving_variance),
        "gamma": _stored(layer.gamma) if layer.scale else None,
        "beta": _stored(layer.beta) if layer.center else None,
        "epsilon": float(layer.epsilon),
    }
    return [Elementwise(exact, int(layer.moving_mean.shape[0]), step)]


def _flatten(layer, rank):
    return [{"step": "reshape", "shape": None}]


def _reshape(layer, rank):
    return [{"step": "reshape", "shape": _integers(layer.target_shape)}]


def _pooling(name):
    def translate(layer, rank):
        windows = _windows(layer, layer.pool_size)
        return [{"step": name, "windows": windows, "keepdims": False}]

    return translate


def _global_pooling(name):
    return lambda layer, rank: [
        {"step": name, "windows": None, "keepdims": bool(layer.keepdims)}
    ]


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
    keras.layers.MaxPooling2D: _pooling("max_pooling"),
    keras.layers.AveragePooling2D: _pooling("average_pooling"),
    keras.layers.GlobalMaxPooling2D: _global_pooling("max_pooling"),
    keras.layers.GlobalAveragePooling2D: _global_pooling("average_pooling"),
}
