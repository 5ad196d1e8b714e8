"""Builds the steps of a prediction from their description in plain data.

`export/description.py` describes a Keras model, and a packed file contains the
description.
"""

import base64
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_qpsbgd._messages import reason
from keras_qpsbgd.export import container
from keras_qpsbgd.export.container import Weight
from keras_qpsbgd.inference import products
from keras_qpsbgd.inference import steps
from keras_qpsbgd.inference.products import Output
from keras_qpsbgd.inference.windows import Windows

# Steps that scale and shift.
AFFINE = ("affine", "normalization")
# Lower and upper limits of the activations that a product can include.
LIMITS = {"relu": (0.0, np.inf), "hard_tanh": (-1.0, 1.0)}
PADDINGS = ("valid", "same")
# Larger windows, from a damaged file, would take very long.
MAX_WINDOW = 2**12


class Program(NamedTuple):
    """The steps of a prediction.

    Attributes:
        input_shape: Tuple. `None` stands for any size.
        steps: List of `Step`.
    """

    input_shape: tuple[int | None, ...]
    steps: list[steps.Step]


def load(content: bytes, kernels: str) -> Program:
    """Returns the program of a packed file.

    Args:
        content: Bytes. The content of the file.
        kernels: `"c"` or `"numpy"`.

    Returns:
        A `Program`.

    Raises:
        InvalidFile: If the file is not valid or does not describe a program.
    """
    header, arrays = container.decode(content)
    if "predictor" not in header:
        raise container.InvalidFile(
            "`Predictor` does not support the model in this file. Where "
            "TensorFlow is installed, `Predictor(export.load_packed(path))` "
            "names the layers that are not supported"
        )

    def convert(value):
        if isinstance(value, list):
            return [convert(inner) for inner in value]
        if not isinstance(value, dict):
            return value
        if value.keys() == {"array"}:
            entry, data = arrays[value["array"]]
            if not entry.is_binary:
                return Weight(container.array_from(data, entry), None)
            return Weight(container.levels_from(data, entry), entry.bits)
        for dtype in ("float32", "int8"):
            if value.keys() == {dtype}:
                data = base64.b64decode(value[dtype], validate=True)
                found = np.frombuffer(data, np.dtype(dtype).newbyteorder("<"))
                return found.astype(dtype)
        return {key: convert(inner) for key, inner in value.items()}

    try:
        return build(convert(header["predictor"]), kernels)
    except Exception as error:  # a wrong description may raise anything
        raise container.InvalidFile(
            f"its steps are wrong ({reason(error)})"
        ) from error


def build(description: dict[str, Any], kernels: str) -> Program:
    """Returns the program of a description.

    Args:
        description: Dictionary, as `export.description.describe` returns it.
        kernels: `"c"` or `"numpy"`.
    """
    shape = tuple(
        None if size is None else _positive(size)
        for size in description["input_shape"]
    )
    waiting = list(description["steps"])
    found: list = []
    is_signs = False
    while waiting:
        name = waiting[0]["step"]
        if name == "product":
            is_last_signs, is_signs = is_signs, _next(waiting, 1) == "threshold"
            found.append(_product(waiting, is_last_signs, kernels))
            continue
        if name in AFFINE:
            found.append(steps.Affine(*_affine(waiting)))
            is_signs = False
            continue
        step = waiting.pop(0)
        if name == "threshold":
            signs = step.get("signs")
            if signs is not None:
                signs = signs.astype(np.float32)
            threshold = steps.Threshold(np.asarray(step["limits"]), signs)
            if is_signs and isinstance(found[-1], steps.MaxPooling):
                found[-1].include(threshold)
            else:
                found.append(threshold)
            is_signs = True
        elif name == "activation":
            found.append(steps.Activation(step["name"]))
            is_signs = False
        elif name == "reshape":
            found.append(steps.Reshape(_shape(step.get("shape"))))
        elif name in ("max_pooling", "average_pooling"):
            keepdims = bool(step["keepdims"])
            windows = _windows(step.get("windows"))
            if name == "max_pooling":
                is_compiled = kernels == "c"
                found.append(steps.MaxPooling(windows, keepdims, is_compiled))
            else:
                found.append(steps.AveragePooling(windows, keepdims))
                is_signs = False
        else:
            raise ValueError(f"unknown step {name!r}")
    return Program(shape, found)


def _next(waiting, place=0):
    return waiting[place]["step"] if len(waiting) > place else None


def _product(waiting, is_signs, kernels):
    """Removes a product and what it can include, and returns its step.

    Args:
        waiting: List of dictionaries. The first one is a product.
        is_signs: Boolean. Whether the inputs are `Signs`.
        kernels: `"c"` or `"numpy"`.
    """
    step = waiting.pop(0)
    array, num_bits = step["kernel"].array, step["kernel"].bits
    windows = _windows(step.get("windows"))
    if num_bits is None:
        array = array.astype(np.float32)
    size = () if windows is None else windows.size
    if array.ndim != len(size) + 2 or array.shape[: len(size)] != size:
        raise ValueError(f"a kernel has the shape {array.shape}")
    kernel = array.reshape(-1, array.shape[-1])
    is_exact = num_bits is not None and is_signs
    output, signs = _output(waiting, kernel.shape[-1], is_exact)
    if signs is not None:
        kernel = kernel * signs.astype(kernel.dtype)
    if num_bits is None:
        return steps.Product(products.RealProduct(kernel, windows, output))
    kind = products.XnorProduct if is_signs else products.SignProduct
    return steps.Product(kind(kernel, num_bits, kernels, windows, output))


def _output(waiting, outputs, is_exact):
    """Removes the steps that follow a product and returns its `Output`.

    Args:
        waiting: List of dictionaries.
        outputs: Integer. Number of outputs of the product.
        is_exact: Boolean. Whether the products are integers.

    Returns:
        A tuple of the `Output` and the signs of a threshold, or `None`.
    """
    if _next(waiting) == "threshold":
        threshold = waiting.pop(0)
        limits = np.asarray(threshold["limits"], np.float32)
        if limits.shape != (outputs,):
            raise ValueError("a product and its threshold differ in size")
        if is_exact:
            limits = _integer_limits(limits)
        return Output(limits), threshold.get("signs")
    scale, shift = None, None
    if _next(waiting) in AFFINE:
        scale, shift = (
            # This raises an error if the sizes differ.
            np.ascontiguousarray(np.broadcast_to(each, outputs))
            for each in _affine(waiting)
        )
    limits = -np.inf, np.inf
    if _next(waiting) == "activation" and waiting[0]["name"] in LIMITS:
        limits = LIMITS[waiting.pop(0)["name"]]
    return Output(None, scale, shift, *limits), None


def _integer_limits(limits):
    """Returns limits for comparisons with integers."""
    largest = 2**30  # larger than any product
    return np.ceil(np.clip(limits, -largest, largest)).astype(np.int32)


def _affine(waiting):
    """Removes the leading steps that scale and shift, and merges them.

    Args:
        waiting: List of dictionaries. At least the first one scales and shifts.

    Returns:
        A tuple `(scale, shift)` of float32 arrays with one axis.
    """
    scale, shift = _scale_and_shift(waiting.pop(0))
    while _next(waiting) in AFFINE:
        next_scale, next_shift = _scale_and_shift(waiting.pop(0))
        scale = next_scale * scale
        shift = next_scale * shift + next_shift
    return np.atleast_1d(np.float32(scale)), np.atleast_1d(np.float32(shift))


def _scale_and_shift(step):
    """Returns the scale and the shift of a step in float64."""
    if step["step"] == "affine":
        scale, shift = np.float64(step["factor"]), np.float64(0.0)
        if step.get("scale") is not None:
            scale = scale * _vector(step["scale"], np.float32)
        if step.get("shift") is not None:
            shift = _vector(step["shift"], np.float32)
        return scale, shift
    mean, variance = (_vector(step[key]) for key in ("mean", "variance"))
    scale = 1 / np.sqrt(variance + float(step["epsilon"]))
    if step.get("gamma") is not None:
        scale = scale * _vector(step["gamma"])
    shift = -mean * scale
    if step.get("beta") is not None:
        shift = shift + _vector(step["beta"])
    return scale, shift


def _vector(value, dtype=np.float64):
    """Returns an array or a weight as a float64 array."""
    array = value if isinstance(value, np.ndarray) else value.array
    return array.astype(dtype).astype(np.float64)


def _windows(found):
    if found is None:
        return None
    pairs = []
    for key in ("size", "strides", "dilations"):
        height, width = found[key]
        pairs.append((_positive(height), _positive(width)))
        if max(pairs[-1]) > MAX_WINDOW:
            raise ValueError(f"the window {pairs[-1]} is too large")
    if found["padding"] not in PADDINGS:
        raise ValueError(f"unknown padding {found['padding']!r}")
    return Windows(*pairs, found["padding"])


def _shape(found):
    if found is None:
        return None
    return tuple(size if size == -1 else _positive(size) for size in found)


def _positive(value):
    # `True` is an integer in Python, but not in JSON.
    if type(value) is not int or value < 1:
        raise ValueError(f"{value!r} is not a positive integer")
    return value
