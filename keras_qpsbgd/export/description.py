"""Describes a network as steps in plain data, for `Predictor`.

A packed file contains this description, so that `Predictor` computes the
predictions without TensorFlow. `docs/guides/packed-format.md` lists the steps.

Between a product and a binary activation, Keras computes scale, bias, batch
normalization and other activations. Each of them is a monotone function of one
number, even with its rounding errors. Therefore the sign is +1 on one side of a
threshold. The threshold is found by bisection over all floats, with the
functions of Keras, so the comparison gives exactly the same signs.
"""

import base64
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_qpsbgd import _keras
from keras_qpsbgd.export import layer_steps
from keras_qpsbgd.export.container import Weight
from keras_qpsbgd.export.layer_steps import Elementwise
from keras_qpsbgd.export.layer_steps import NotSupported

# The largest product. Larger ones would overflow in later operations.
LARGEST = np.float32(2.0**64)


def describe(model: Any) -> dict[str, Any]:
    """Returns the steps of a model.

    Args:
        model: Keras model.

    Returns:
        Dictionary with the keys `"input_shape"` and `"steps"`. The steps are
        dictionaries of numbers, strings, arrays, and `Weight`s.

    Raises:
        NotSupported: If the model or a layer is not supported. The message
            names all such layers.
    """
    _check(model)
    operations = _operations(model)
    found: list = []
    while operations:
        product = None
        if isinstance(operations[0], dict):
            first = operations.pop(0)
            found.append(first)
            if first["step"] != "product":
                continue
            product = first
            found += _pooled_threshold(operations, product)
        before = _before_binary(operations)
        if before is not None:
            found.append(_threshold(operations[:before], product))
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
        if isinstance(value, Weight):
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
            f"Received: a model of type {type(model).__name__}"
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
            new = layer_steps.translated(layer, rank)
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
            "`Predictor` only supports chains of layers, in which each layer "
            "has one input and its output goes to one layer. "
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
    """Returns the number of monotone operations before a binary activation.

    Returns `None` if there is no binary activation, or if another kind of
    operation comes before it.
    """
    for index, operation in enumerate(operations):
        if not isinstance(operation, Elementwise):
            return None
        if operation.step is None:
            return index
    return None


# Thresholds


def _threshold(operations, product):
    """Returns the step of elementwise functions and a binary activation."""
    outputs = max([1, *(operation.outputs for operation in operations)])
    if product is not None:
        outputs = product["kernel"].array.shape[-1]
    return _step(*find_thresholds(_composed(operations), outputs))


def _composed(operations):
    """Returns the function that is true where the last result is at least 0."""

    def function(x):
        for operation in operations:
            x = operation.exact(x)
        return np.asarray(x) >= 0

    return function


def _step(signs, limits):
    has_signs = (signs < 0).any()
    return {
        "step": "threshold",
        "limits": limits,
        "signs": signs.astype(np.int8) if has_signs else None,
    }


def _pooled_threshold(operations, product):
    """Removes max pooling before a binary activation and returns its steps.

    The signs are computed before the pooling, which then needs only one bit per
    entry. Where the sign decreases as the product increases, the pooling must
    select the smallest sign. There, the signs are negated before and after the
    pooling.

    Args:
        operations: List. The operations after a product.
        product: Dictionary. The step of the product.

    Returns:
        List of steps, which is empty if there is no such pooling.
    """
    is_pooling = [
        isinstance(operation, dict) and operation["step"] == "max_pooling"
        for operation in operations
    ]
    if True not in is_pooling:
        return []
    place = is_pooling.index(True)
    before = operations[:place]
    after = _before_binary(operations[place + 1 :])
    if after is None or any(
        isinstance(operation, dict) or operation.step is None
        for operation in before
    ):
        return []
    functions = before + operations[place + 1 : place + 1 + after]
    outputs = product["kernel"].array.shape[-1]
    signs, limits = find_thresholds(_composed(functions), outputs)
    # Where the pooled value decreases as the product increases, the pooling
    # selects the smallest product.
    ends = np.full(outputs, LARGEST)
    low, high = -ends, ends
    for operation in before:
        low, high = (np.asarray(operation.exact(x)) for x in (low, high))
    changed = (signs < 0) != np.broadcast_to(low > high, outputs)
    # `signs * x < limits`, as a threshold
    above = np.nextafter(-limits, np.float32(np.inf))
    above[limits == -np.inf] = np.inf
    signs = np.where(changed, -signs, signs)
    limits = np.where(changed, above, limits)
    pooling = operations[place]
    del operations[: place + after + 2]
    steps = [_step(signs, limits), pooling]
    if changed.any():
        zeros = np.zeros(outputs, np.float32)
        steps.append(_step(np.where(changed, -1.0, 1.0), zeros))
    return steps


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
    """Returns the floats at given positions in their order. Zero is at 0."""
    sizes = np.abs(keys).astype(np.int32).view(np.float32)
    return np.where(keys < 0, -sizes, sizes)
