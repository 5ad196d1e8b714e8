"""Builds the steps of a prediction from a Keras model."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.inference import layers
from keras_qpsbgd.inference import products
from keras_qpsbgd.inference import steps
from keras_qpsbgd.inference import thresholds


def build(model, kernels):
    """Returns the list of steps of a model.

    Args:
        model: Sequential or functional model.
        kernels: `"c"` or `"numpy"`.

    Raises:
        ValueError: If the model or a layer is not supported. The message names
            all such layers.
    """
    operations = _operations(model)
    found: list = []
    is_bits, rank = False, len(model.input_shape)
    while operations:
        first = operations.pop(0)
        product = first if isinstance(first, layers.Product) else None
        if isinstance(first, steps.Step):
            found.append(first)
            is_bits = is_bits and isinstance(
                first, (steps.Reshape, steps.MaxPooling)
            )
            rank = layers.rank_after(first, rank)
            continue
        if product is None:
            operations.insert(0, first)
        before = _before_binary(operations)
        if before is None:
            if product is not None:
                found.append(_product(product, is_bits, kernels))
            else:
                found.append(_elementwise(operations))
            is_bits = False
            continue
        signs, limits = _threshold(operations[:before], product, rank)
        del operations[: before + 1]
        if product is not None:
            step = _product(product, is_bits, kernels, signs)
            found.append(step)
            is_integer = product.bits is not None and is_bits
            found.append(steps.Threshold(_limits(limits, is_integer)))
        else:
            has_signs = (signs < 0).any()
            found.append(steps.Threshold(limits, signs if has_signs else None))
        is_bits = True
    return found


def _operations(model):
    """Returns the operations of all layers, or raises an error."""
    found: list = []
    problems: list = []
    rank = len(model.input_shape)
    for name, layer in _layers(model):
        try:
            new = layers.operations(layer, rank)
        except layers.Unsupported as problem:
            reason = f": {problem}" if str(problem) else ""
            problems.append(f"`{name}` ({type(layer).__name__}{reason})")
            continue
        for operation in new:
            rank = layers.rank_after(operation, rank)
        found += new
    if problems:
        raise ValueError(
            f"`Predictor` does not support the layers {', '.join(problems)}. "
            f"Received: model with the name {model.name!r}"
        )
    return found


def _layers(model, prefix=""):
    """Returns the names and layers of a model and of models inside it."""
    chain = _keras.layer_chain(model)
    if chain is None:
        raise ValueError(
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


def _before_binary(operations):
    """Returns how many monotone operations are before a binary activation.

    Returns `None` if there is none, or another operation before it.
    """
    for index, operation in enumerate(operations):
        if not isinstance(operation, layers.Elementwise):
            return None
        if operation.activation == "binary":
            return index
    return None


def _threshold(operations, product, rank):
    """Returns the signs and limits of `thresholds.find`."""
    if product is not None:
        outputs = product.kernel.shape[-1]
    else:
        outputs = max([1, *(operation.outputs for operation in operations)])

    def function(x):
        x = tf.constant(x.reshape((1,) * (rank - 1) + (-1,)), tf.float32)
        for operation in operations:
            x = operation.exact(x)
        return np.asarray(x).ravel() >= 0

    return thresholds.find(function, outputs)


def _limits(limits, is_integer):
    """Returns limits for comparisons with integers, if `is_integer`."""
    if not is_integer:
        return limits
    largest = 2**30  # larger than any product
    return np.ceil(np.clip(limits, -largest, largest)).astype(np.int32)


def _product(product, is_bits, kernels, signs=None):
    """Returns the step of a product.

    Args:
        product: `layers.Product`.
        is_bits: Boolean. Whether its input is `Bits`.
        kernels: `"c"` or `"numpy"`.
        signs: Array of +1 and -1 (optional). Factors of the outputs, if a
            `Threshold` follows.
    """
    kernel, windows = product.kernel, product.windows
    if signs is not None:
        kernel = kernel * signs.astype(kernel.dtype)
    found: Any
    if product.bits is None:
        found = products.RealProduct(kernel)
    else:
        planes = products.planes_of(kernel, product.bits)
        if is_bits:
            places = 1 if windows is None else int(np.prod(windows.size))
            found = products.XnorProduct(planes, kernels, places)
        else:
            found = products.SignProduct(planes, kernels)
    is_exact = signs is not None
    if windows is None:
        return steps.Dense(found, is_exact)
    sums = None
    if isinstance(found, products.XnorProduct):
        shape = (int(np.prod(windows.size)), -1, kernel.shape[-1])
        sums = kernel.reshape(shape).sum(axis=1, dtype=np.int32)
    return steps.Convolution(found, is_exact, windows, sums)


def _elementwise(operations):
    """Removes the first operations and returns their step.

    Scales and shifts that follow each other become one.
    """
    first = operations.pop(0)
    if first.activation is not None:
        return steps.Activation(first.activation)
    scale, shift = first.scale, first.shift
    while operations and _is_affine(operations[0]):
        following = operations.pop(0)
        scale = following.scale * scale
        shift = following.scale * shift + following.shift
    return steps.Affine(np.float32(scale), np.float32(shift))


def _is_affine(operation):
    is_elementwise = isinstance(operation, layers.Elementwise)
    return is_elementwise and operation.activation is None
