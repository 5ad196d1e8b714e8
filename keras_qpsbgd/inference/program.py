"""Builds the steps of a prediction from their description in plain data.

`export/description.py` describes a Keras model, and a packed file contains the
description.
"""

import base64
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_qpsbgd import bits
from keras_qpsbgd._messages import reason
from keras_qpsbgd.export import container
from keras_qpsbgd.export.container import Weight
from keras_qpsbgd.inference import binary_products
from keras_qpsbgd.inference import steps
from keras_qpsbgd.inference.steps import Windows

POOLING = {
    "max_pooling": steps.MaxPooling,
    "average_pooling": steps.AveragePooling,
}
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
        step = waiting.pop(0)
        name = step["step"]
        following = waiting[0]["step"] if waiting else None
        if name == "product":
            threshold = waiting.pop(0) if following == "threshold" else None
            found += _product(step, threshold, is_signs, kernels)
            is_signs = threshold is not None
        elif name == "threshold":
            limits, signs = step["limits"], step.get("signs")
            if signs is not None:
                signs = signs.astype(np.float32)
            found.append(steps.Threshold(np.asarray(limits), signs))
            is_signs = True
        elif name in ("affine", "normalization"):
            waiting.insert(0, step)
            found.append(_affine(waiting))
            is_signs = False
        elif name == "activation":
            found.append(steps.Activation(step["name"]))
            is_signs = False
        elif name == "reshape":
            found.append(steps.Reshape(_shape(step.get("shape"))))
        elif name in POOLING:
            keepdims = bool(step["keepdims"])
            windows = _windows(step.get("windows"))
            found.append(POOLING[name](windows, keepdims))
            is_signs = is_signs and name == "max_pooling"
        else:
            raise ValueError(f"unknown step {name!r}")
    return Program(shape, found)


def _product(step, threshold, is_signs, kernels):
    """Returns the step of a product, and that of the threshold after it.

    Args:
        step: Dictionary.
        threshold: Dictionary or `None`.
        is_signs: Boolean. Whether the inputs are `Signs`.
        kernels: `"c"` or `"numpy"`.
    """
    array, num_bits = step["kernel"].array, step["kernel"].bits
    windows = _windows(step.get("windows"))
    if num_bits is None:
        array = array.astype(np.float32)
    size = () if windows is None else windows.size
    if array.ndim != len(size) + 2 or array.shape[: len(size)] != size:
        raise ValueError(f"a kernel has the shape {array.shape}")
    kernel = array.reshape(-1, array.shape[-1])
    limits = None
    if threshold is not None:
        limits = threshold["limits"]
        if threshold.get("signs") is not None:
            kernel = kernel * threshold["signs"].astype(kernel.dtype)
        if len(limits) != kernel.shape[-1]:
            raise ValueError("a product and its threshold differ in size")
        if num_bits is not None and is_signs:
            limits = _integer_limits(limits)
    found: Any
    places = 1 if windows is None else int(np.prod(windows.size))
    if num_bits is None:
        found = binary_products.RealProduct(kernel)
    elif is_signs:
        planes = bits.planes(kernel, num_bits)
        found = binary_products.XnorProduct(planes, kernels, places)
    else:
        found = binary_products.SignProduct(
            bits.planes(kernel, num_bits), kernels
        )
    is_exact = threshold is not None
    new: list = [steps.Dense(found, is_exact)]
    if windows is not None:
        sums = None
        if isinstance(found, binary_products.XnorProduct):
            parts = kernel.reshape(places, -1, kernel.shape[-1])
            sums = parts.sum(axis=1, dtype=np.int32)
        new = [steps.Convolution(found, is_exact, windows, sums)]
    if threshold is not None:
        new.append(steps.Threshold(limits))
    return new


def _integer_limits(limits):
    """Returns limits for comparisons with integers."""
    largest = 2**30  # larger than any product
    return np.ceil(np.clip(limits, -largest, largest)).astype(np.int32)


def _affine(waiting):
    """Removes the leading steps that scale and shift, and merges them into one.

    Args:
        waiting: List of dictionaries. At least the first one scales and shifts.
    """
    scale, shift = _scale_and_shift(waiting.pop(0))
    while waiting and waiting[0]["step"] in ("affine", "normalization"):
        next_scale, next_shift = _scale_and_shift(waiting.pop(0))
        scale = next_scale * scale
        shift = next_scale * shift + next_shift
    return steps.Affine(np.float32(scale), np.float32(shift))


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
