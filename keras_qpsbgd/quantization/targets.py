"""Finds the layers that can be quantized, and chooses among them."""

from __future__ import annotations

import dataclasses
import itertools
import numbers
import re
from typing import Any
from typing import Optional

from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd.bits import MAX_BITS
from keras_qpsbgd.layers import BinaryGraphConv
from keras_qpsbgd.layers import BinaryLayer
from keras_qpsbgd.quantization import kinds

NORMALIZATIONS = (
    keras.layers.BatchNormalization,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
)
# The attributes of the layers inside a wrapper.
WRAPPERS = {
    keras.layers.TimeDistributed: ("layer",),
    keras.layers.Bidirectional: ("forward_layer", "backward_layer"),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """A kernel of a layer that can be quantized.

    Attributes:
        names: Names of the layer of the model and, where needed, of the layer
            inside it and of the kernel.
        layer: The layer of the given model.
        kind: The kind of the kernel. See `quantization.kinds`.
        owner: The layer of the model that contains `layer`, usually `layer`
            itself.
        part: Name of the attribute of `owner` that holds `layer`, or `None`.
        bits: Number of bits per weight.
        name: The names, joined by slashes.
    """

    names: tuple[str, ...]
    layer: Any
    kind: kinds.DenseKind
    owner: Any
    part: Optional[str] = None
    bits: int = 1

    @property
    def name(self) -> str:
        return "/".join(self.names)

    def find(self, copies: dict[int, Any]) -> Any:
        """Returns the same layer in a copy of the model."""
        copied = copies[id(self.owner)]
        return copied if self.part is None else getattr(copied, self.part)


def find_layers(
    model: Any,
) -> tuple[list[Target], list[tuple[str, Any, str]]]:
    """Finds the layers with weights, including those of nested models.

    Returns:
        A tuple `(targets, unsupported)`. `unsupported` is a list of tuples
        `(name, layer, reason)`.
    """
    targets: list[Target] = []
    unsupported: list[tuple[str, Any, str]] = []
    for name, layer in walk(model):
        if not layer.weights:
            continue
        for part, inner in _parts(layer).items():
            names = (name,) if part is None else (name, inner.name)
            kernels = kinds.kernels_of(inner)
            if not kernels or isinstance(inner, BinaryLayer):
                reason = _unsupported_reason(inner)
                unsupported.append(("/".join(names), inner, reason))
                continue
            for kernel, kind in kernels.items():
                target = Target(
                    (*names, kernel) if kernel else names,
                    inner,
                    kind,
                    layer,
                    part,
                )
                problem = kind.problem(inner)
                if problem is None:
                    targets.append(target)
                else:
                    unsupported.append((target.name, inner, problem))
    return targets, unsupported


def _parts(layer):
    """Returns the layers with kernels inside a layer of a model.

    Returns:
        A dictionary that maps attributes to layers. The attribute of the layer
        itself is `None`.
    """
    if type(layer) is keras.layers.MultiHeadAttention:
        return _keras.attention_parts(layer)
    names = WRAPPERS.get(type(layer), ())
    return {name: getattr(layer, name) for name in names} or {None: layer}


def walk(model, prefix="", seen=None):
    """Yields names and layers, each once, in the order of the model."""
    seen = set() if seen is None else seen
    for layer in model.layers:
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        name = prefix + layer.name
        if _keras.is_graph_of_layers(layer):
            yield from walk(layer, f"{name}/", seen)
        else:
            yield name, layer


def has_graph_layers(model: Any) -> bool:
    """Returns whether any layer of the model takes a graph."""
    return any(_is_graph_layer(layer) for _, layer in walk(model))


def is_frozen(target: Target, targets: list[Target]) -> bool:
    """Returns whether a layer keeps its class and is frozen.

    Args:
        target: The layer.
        targets: List of all layers that are quantized. An attention layer is
            replaced only if all of its projections are in the list.
    """
    if type(target.owner) is not keras.layers.MultiHeadAttention:
        return target.part is not None or not target.kind.can_quantize(
            target.layer
        )
    parts = [other for other in targets if other.owner is target.owner]
    projections = [
        layer
        for layer in _keras.all_layers(target.owner)
        if isinstance(layer, keras.layers.EinsumDense)
    ]
    # All projections of a binary attention layer have the same number of bits.
    return (
        len(parts) < len(projections)
        or len({part.bits for part in parts}) > 1
        or not all(part.kind.can_quantize(part.layer) for part in parts)
    )


def choose_layers(
    model: Any, layers: Any, bits: Any = 1
) -> tuple[list[Target], list[tuple[str, Any, str]]]:
    """Returns the layers to quantize, and the other layers with weights.

    Args:
        model: Sequential or functional model.
        layers: The argument of `quantize`.
        bits: The argument of `quantize`. Defaults to `1`.

    Returns:
        A tuple `(targets, unchanged)`. `unchanged` is a list of tuples `(name,
        layer, reason)`.

    Raises:
        ValueError: If `layers` or `bits` is invalid or matches no supported
            layer.
    """
    targets, unchanged = find_layers(model)
    if not targets:
        found = ", ".join(
            f"`{name}` ({type(layer).__name__}: {reason})"
            for name, layer, reason in unchanged
        )
        raise ValueError(
            "`model` must have a layer that can be quantized: `Dense`, a "
            "convolution, `EinsumDense`, `MultiHeadAttention`, a recurrent "
            "layer, or Spektral's `GCNConv`. "
            f"Received: {found or 'no layers with weights'}"
        )
    chosen = _selector(layers, targets, unchanged)
    kept = [target for target in targets if chosen(target)]
    if not kept:
        names = [target.name for target in targets]
        raise ValueError(
            "`layers` must match at least one supported layer of the model: "
            f"{names}. Received: layers={layers!r}"
        )
    numbers_of_bits = _bits_of(bits, kept)
    with_bits: list[Target] = []
    for target in targets:
        number = numbers_of_bits.get(target.name)
        if number is not None:
            with_bits.append(dataclasses.replace(target, bits=int(number)))
            continue
        reason = "not in `bits`"
        if target not in kept:
            reason = "not chosen"
        elif target.name in numbers_of_bits:
            reason = "None in `bits`"
        unchanged.append((target.name, target.layer, reason))
    if not with_bits:
        raise ValueError(
            "`bits` must match at least one of the layers "
            f"{[target.name for target in kept]}. Received: bits={bits!r}"
        )
    return with_bits, unchanged


def _bits_of(bits, targets):
    """Maps names of layers to numbers of bits, or to `None` for float.

    Layers that match no key of a dictionary have no entry. A name takes
    precedence over a pattern, and an earlier pattern over a later one.
    """
    if not isinstance(bits, dict):
        _check_bits("bits", bits)
        return {target.name: bits for target in targets}
    patterns = {key: _pattern("bits", key) for key in bits}
    for key, value in bits.items():
        if value is not None:
            _check_bits(f"bits[{key!r}]", value)
    found, used = {}, set()
    for target in targets:
        keys = [key for key in bits if key in _names(target)]
        keys += [key for key in bits if patterns[key].search(target.name)]
        if keys:
            found[target.name] = bits[keys[0]]
            used.update(keys)
    unused = [key for key in bits if key not in used]
    if unused:
        raise ValueError(
            "Every key of `bits` must match a layer: "
            f"{[target.name for target in targets]}. Received: {unused[0]!r}"
        )
    return found


def _check_bits(name, bits):
    is_integer = isinstance(bits, numbers.Integral)
    is_integer = is_integer and not isinstance(bits, bool)
    if not is_integer or not 1 <= bits <= MAX_BITS:
        raise ValueError(
            f"`{name}` must be an integer from 1 to {MAX_BITS}. `bits` can "
            "also be a dictionary that maps names or patterns of layers to "
            f"such integers or None. Received: {name}={bits!r}"
        )


def _pattern(argument, text):
    try:
        return re.compile(text)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"`{argument}` must be a valid regular expression ({error}). "
            f"Received: {argument}={text!r}"
        ) from error


def _selector(layers, targets, unsupported):
    if layers is None:
        return lambda target: True
    if isinstance(layers, str):
        # Like `filters` in `keras.Model.quantize`.
        pattern = _pattern("layers", layers)
        return lambda target: pattern.search(target.name) is not None
    if callable(layers):
        return lambda target: bool(layers(target.owner))
    if not isinstance(layers, (list, tuple)):
        raise ValueError(
            "`layers` must be a regular expression, a list of names, a "
            f"function or None. Received: layers={layers!r}"
        )
    known = set()
    for target in targets:
        known.update(_names(target))
    reasons = {name: reason for name, _, reason in unsupported}
    for name in layers:
        if name not in known:
            reason = f" ({reasons[name]})" if name in reasons else ""
            raise ValueError(
                "`layers` must contain names of supported layers: "
                f"{[target.name for target in targets]}. "
                f"Received: {name!r}{reason}"
            )
    return lambda target: not _names(target).isdisjoint(layers)


def _names(target):
    """Returns the names that select a layer in a list."""
    paths = itertools.accumulate(target.names, "{}/{}".format)
    return {*paths, target.owner.name}


def _is_graph_layer(layer):
    """Returns whether a layer takes a graph, whose nodes cannot be split."""
    return isinstance(layer, BinaryGraphConv) or type(
        layer
    ).__module__.startswith("spektral.")


def _unsupported_reason(layer):
    """Returns why the class of a layer is not supported."""
    if isinstance(layer, BinaryLayer):
        return "already quantized"
    if _keras.is_graph_of_layers(layer):
        return "model inside another layer"
    if isinstance(layer, keras.Model):
        return "subclassed model"
    if isinstance(layer, NORMALIZATIONS):
        return "normalization"
    return "unsupported type"
