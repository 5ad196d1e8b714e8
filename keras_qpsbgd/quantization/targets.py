"""The layers of a network that can be quantized, and the choice among them."""

from __future__ import annotations

import dataclasses
import re
from typing import Any
from typing import Optional

from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd.layers import BinaryGraphConv
from keras_qpsbgd.layers import BinaryLayer
from keras_qpsbgd.layers import kinds


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """A layer that can be quantized.

    Attributes:
        name: Name of the layer, after the names of the models that contain it.
        layer: The layer of the given model.
        kind: Its kind, see `layers/kinds.py`.
        owner: The layer of the model that contains it, usually itself.
        part: Name of the attribute of `owner`, for a part of a layer.
    """

    name: str
    layer: Any
    kind: kinds.DenseKind
    owner: Any
    part: Optional[str] = None

    def find(self, copies: dict[int, Any]) -> Any:
        """Returns the same layer in a copy of the model."""
        copied = copies[id(self.owner)]
        return copied if self.part is None else getattr(copied, self.part)


def find_layers(
    model: Any,
) -> tuple[list[Target], list[tuple[str, Any, str]]]:
    """Finds the layers with weights, also those of nested models.

    Returns:
        A tuple `(targets, unsupported)`. `unsupported` is a list of tuples
        `(name, layer, reason)`.
    """
    targets: list[Target] = []
    unsupported: list[tuple[str, Any, str]] = []
    for name, layer in walk(model):
        if not layer.weights:
            continue
        if type(layer) is keras.layers.MultiHeadAttention:
            for part, dense in _keras.attention_parts(layer).items():
                path = f"{name}/{dense.name}"
                kind = kinds.EinsumDenseKind()
                reason = kind.problem(dense)
                if reason is None:
                    targets.append(Target(path, dense, kind, layer, part))
                else:
                    unsupported.append((path, dense, reason))
            continue
        found = kinds.kind_of(layer)
        if found is None or isinstance(layer, BinaryLayer):
            unsupported.append((name, layer, _unsupported_reason(layer)))
            continue
        reason = found.problem(layer)
        if reason is None:
            targets.append(Target(name, layer, found, layer))
        else:
            unsupported.append((name, layer, reason))
    return targets, unsupported


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
    """Returns whether a layer of the model takes a graph."""
    return any(_is_graph_layer(layer) for _, layer in walk(model))


def is_frozen(target: Target, targets: list[Target]) -> bool:
    """Returns whether a layer keeps its class and is frozen.

    Args:
        target: The layer.
        targets: List of all layers that are quantized. An attention layer is
            replaced only if all of its projections are in the list.
    """
    if target.part is None:
        return not target.kind.can_quantize(target.layer)
    parts = [other for other in targets if other.owner is target.owner]
    projections = [
        layer
        for layer in _keras.all_layers(target.owner)
        if isinstance(layer, keras.layers.EinsumDense)
    ]
    return len(parts) < len(projections) or not all(
        part.kind.can_quantize(part.layer) for part in parts
    )


def choose_layers(
    model: Any, layers: Any
) -> tuple[list[Target], list[tuple[str, Any, str]]]:
    """Returns the layers to quantize, and the other layers with weights.

    Args:
        model: Sequential or functional model.
        layers: The argument of `quantize`.

    Returns:
        A tuple `(targets, unchanged)`. `unchanged` is a list of tuples `(name,
        layer, reason)`.

    Raises:
        ValueError: If `layers` is invalid or matches no supported layer.
    """
    targets, unchanged = find_layers(model)
    if not targets:
        found = ", ".join(
            f"`{name}` ({type(layer).__name__}: {reason})"
            for name, layer, reason in unchanged
        )
        raise ValueError(
            "`model` must have a layer that can be quantized: `Dense`, "
            "`Conv2D`, `EinsumDense`, `MultiHeadAttention` or Spektral's "
            f"`GCNConv`. Received: {found or 'no layers with weights'}"
        )
    chosen = _selector(layers, targets, unchanged)
    kept = [target for target in targets if chosen(target)]
    if not kept:
        names = [target.name for target in targets]
        raise ValueError(
            "`layers` must match at least one supported layer of the model: "
            f"{names}. Received: layers={layers!r}"
        )
    unchanged += [
        (target.name, target.layer, "not chosen")
        for target in targets
        if target not in kept
    ]
    return kept, unchanged


def _selector(layers, targets, unsupported):
    if layers is None:
        return lambda target: True
    if isinstance(layers, str):
        # As the `filters` of `keras.Model.quantize`.
        try:
            pattern = re.compile(layers)
        except re.error as error:
            raise ValueError(
                f"`layers` must be a valid regular expression ({error}). "
                f"Received: layers={layers!r}"
            ) from error
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
    """Returns the names by which a list may choose a layer."""
    path = (
        target.name if target.part is None else target.name.rpartition("/")[0]
    )
    return {target.name, path, target.owner.name}


def _is_graph_layer(layer):
    """Returns whether a layer takes a graph, whose nodes belong together."""
    return isinstance(layer, BinaryGraphConv) or type(
        layer
    ).__module__.startswith("spektral.")


def _unsupported_reason(layer):
    """Returns why the class of a layer is not supported."""
    if isinstance(layer, BinaryLayer):
        return "already binary"
    if isinstance(layer, keras.Model):
        return "subclassed model"
    return "unsupported type"
