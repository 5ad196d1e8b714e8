"""Chooses the layers to quantize."""

import re
from typing import Any

from keras_qpsbgd.quantize import network
from keras_qpsbgd.quantize.network import Target


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
    targets, unchanged = network.find_layers(model)
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
