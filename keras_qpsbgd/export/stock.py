"""Replaces the layers of this package with Keras layers."""

import contextlib
import io
import math
import os
import pathlib
import secrets
import shutil
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd.bits import max_level
from keras_qpsbgd.layers import BinaryLayer
from keras_qpsbgd.layers.binary_multi_head_attention import (
    BinaryMultiHeadAttention,
)
from keras_qpsbgd.layers.binary_multi_head_attention import (
    FrozenMultiHeadAttention,
)
from keras_qpsbgd.quantization import kinds
from keras_qpsbgd.quantization import targets
from keras_qpsbgd.quantization.arguments import check_model
from keras_qpsbgd.quantization.model_copy import copy_model

# The file that every SavedModel has.
MAIN_FILE = "saved_model.pb"
ATTENTION = (BinaryMultiHeadAttention, FrozenMultiHeadAttention)
# Arguments of binary layers that stock layers do not have.
OWN_ARGUMENTS = ("bits", "output_scale", "training_weights", "check_adjacency")


def inference_model(model: Any) -> Any:
    """Returns the same network, built only from Keras layers.

    Every binary layer is replaced with the Keras layer that it is derived from.
    The float kernel of the new layer contains the binary weights times their
    scale. A graph convolution becomes a matrix product and a `Dense` layer. A
    layer with an activation of this package, such as `activation="binary"`,
    becomes a functional model of the layer and its activation. You can save and
    export the new model with Keras, and run the result where this package is
    not installed. Spektral layers and your own layers stay as they are, so
    loading the model requires their classes.

    The outputs are the same up to rounding, because the scale is part of the
    kernel. The new model is meant for inference: training would change the
    float kernels. Pass the original model to `Predictor`, not the new one.

    Args:
        model: Sequential or functional Keras model that has been built. It may
            contain nested models.

    Returns:
        An uncompiled Keras model.

    Raises:
        ValueError: If a layer cannot be replaced. The message names all such
            layers.

    Example:
        ```python
        import keras_qpsbgd as kq

        stock = kq.export.inference_model(model)
        stock.save("digits_stock.keras")  # loads without keras_qpsbgd
        stock.export("digits.onnx", format="onnx")  # needs the extra `deploy`
        ```
    """
    check(model)
    replaced: list[tuple[Any, Any]] = []
    restore = []

    def replace(layer):
        found = _replacement(layer)
        if found is None:
            return None
        new, part = found
        replaced.append((layer, part))
        if isinstance(new, keras.Model):
            restore.append(_keras.hide_inputs(new))
        return new

    copied, _ = copy_model(model, None, replace)
    for function in restore:
        function()
    for layer, part in replaced:
        _set_weights(layer, part)
    _keras.mark_called(copied)
    return copied


def saved_model(model: Any, path: Any) -> None:
    """Writes a model as a SavedModel folder, which does not need this package.

    The folder contains `inference_model(model)`. It is written next to `path`
    and renamed at the end, so an existing SavedModel is never partly replaced.

    Args:
        model: Keras model that `inference_model` supports.
        path: Path of the folder. If it exists, it must be a SavedModel, which
            is replaced. Missing parent folders are created, and `~` is
            expanded.

    Raises:
        ValueError: If a layer is not supported, or if `path` is anything other
            than a SavedModel.

    Example:
        ```python
        import tensorflow as tf

        kq.export.saved_model(model, "digits")
        loaded = tf.saved_model.load("digits")  # keep it: it owns the weights
        loaded.serve(x)
        ```
    """
    check(model)
    given = os.fspath(path)
    path = pathlib.Path(os.path.expanduser(given))
    exists = os.path.lexists(path)
    if not given or exists and not (path / MAIN_FILE).is_file():
        raise ValueError(
            "`path` must be a new folder or a SavedModel. "
            f"Received: path={given!r}"
        )
    replacement = inference_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    number = secrets.token_hex(8)
    new, old = (
        path.with_name(f".{path.name}-{number}.{kind}")
        for kind in ("new", "old")
    )
    try:
        export_folder(replacement, str(new))
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(new, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.replace(old, path)
            raise
    finally:
        for leftover in (new, old):
            shutil.rmtree(leftover, ignore_errors=True)


def export_folder(model: Any, path: str) -> None:
    """Exports a model of Keras layers, without the messages of Keras."""
    with contextlib.redirect_stdout(io.StringIO()):
        model.export(path)


def check(model: Any) -> None:
    """Checks that all layers of a model can be replaced.

    Raises:
        ValueError: If the model is not supported. The message names all layers
            that cannot be replaced.
    """
    check_model(model)
    problems = [
        f"{name} ({type(layer).__name__}: {reason})"
        for name, layer in targets.walk(model)
        if (reason := _problem(layer)) is not None
    ]
    if problems:
        raise ValueError(
            "`model` must only have layers that can be replaced with Keras "
            f"layers. Received: {', '.join(problems)}"
        )


def _problem(layer):
    """Returns why a layer cannot be replaced, or `None`."""
    if isinstance(layer, keras.Model):
        return "subclassed model"
    if _stock_class(layer) is not type(layer):
        kind = kinds.kind_of(layer)
        return None if kind is None else kind.stock_problem(layer)
    if isinstance(layer, BinaryLayer):
        return "custom binary layer"
    if any(_is_own(type(inner)) for inner in _keras.all_layers(layer)):
        return "binary layer inside another layer"
    function = getattr(layer, "activation", None)
    if _is_own(function) and function.__name__ not in ACTIVATIONS:
        return f"activation {function.__name__}"
    return "unknown layer" if _is_own(type(layer)) else None


def _stock_class(layer):
    """Returns the class of the equivalent Keras layer.

    It is the class of the layer itself if it is not a layer of this package.
    """
    if type(layer) in ATTENTION:
        return keras.layers.MultiHeadAttention
    binary = {kind.binary: kind.stock for kind in kinds.KINDS if kind.binary}
    return binary.get(type(layer), type(layer))


def _replacement(layer):
    """Returns a new layer and the part of it that holds the weights.

    Returns:
        A tuple, or `None` if the layer can stay as it is.
    """
    config = layer.get_config()
    function = getattr(layer, "activation", None)
    own_function = function if _is_own(function) else None
    stock = _stock_class(layer)
    kind = kinds.kind_of(layer) if isinstance(layer, BinaryLayer) else None
    stripped = {
        key: None if key.endswith(("_constraint", "_regularizer")) else value
        for key, value in config.items()
        if key not in OWN_ARGUMENTS or stock is type(layer)
    }
    if stock is type(layer) and stripped == config and not own_function:
        return None
    if own_function:
        stripped["activation"] = "linear"
    is_one = kind is None or kind.is_one_stock_layer(layer)
    if is_one and not own_function:
        new = stock.from_config(stripped)
        return new, new
    inputs = copied_inputs(layer)
    if kind is None:
        new = stock.from_config(stripped)
        outputs = new(inputs)
    else:
        new, outputs = kind.stock_outputs(layer, stripped, inputs)
    if own_function:
        outputs = ACTIVATIONS[own_function.__name__](outputs)
    return keras.Model(inputs, outputs, name=layer.name), new


def copied_inputs(layer: Any) -> Any:
    """Returns new symbolic inputs, like those of a layer."""
    tensors = tf.nest.flatten(_keras.input_tensors(layer))
    if len(tensors) == 1:
        return _keras.copy_input(tensors[0])
    return [
        _keras.copy_input(tensor, f"{layer.name}_{number}")
        for number, tensor in enumerate(tensors)
    ]


def _set_weights(layer, new):
    if isinstance(new, keras.layers.MultiHeadAttention):
        parts = _keras.attention_parts(new)
        for name, part in _keras.attention_parts(layer).items():
            _set_weights(part, parts[name])
    elif isinstance(layer, BinaryLayer):
        new.kernel.assign(_float_kernel(layer))
        if getattr(layer, "bias", None) is not None:
            new.bias.assign(layer.bias.numpy())
    else:
        new.set_weights(layer.get_weights())


def _float_kernel(layer: Any) -> np.ndarray:
    """Returns what a binary layer multiplies its inputs by, as float32.

    This is levels times scales, which exported files store with few bits, or a
    real kernel times its scale.
    """
    if not layer.has_real_kernel:
        levels = layer.binary_kernel.numpy().astype(np.float32)
        scales = _output_factors(layer) / max_level(layer.bits)
        return levels * scales.astype(np.float32)
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


def _is_own(found):
    # Keras lists some functions as its own, but not their global variables.
    names = getattr(found, "__globals__", {})
    module = names.get("__name__", getattr(found, "__module__", None))
    return isinstance(module, str) and module.startswith("keras_qpsbgd.")


def _sign(tensor):
    return _keras.symbolic_cast(tensor >= 0, tensor.dtype) * 2.0 - 1.0


# Activations of this package, as operations on symbolic tensors.
ACTIVATIONS = {
    "hard_tanh": lambda tensor: _keras.symbolic_clip(tensor, -1.0, 1.0),
    "binary": _sign,
}
