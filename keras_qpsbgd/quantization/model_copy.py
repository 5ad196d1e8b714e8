"""Copies of a network.

Quantization works on two private copies. The first one does not change. In the
second one, the kernels of layers that are already quantized are replaced with
their quantized values, so it computes what the quantized network will compute.
The given model is only read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd._messages import reason
from keras_qpsbgd.layers.binary_multi_head_attention import (
    BinaryMultiHeadAttention,
)
from keras_qpsbgd.layers.binary_multi_head_attention import (
    FrozenMultiHeadAttention,
)
from keras_qpsbgd.quantization.kinds.dense import with_bits
from keras_qpsbgd.quantization.targets import Target
from keras_qpsbgd.quantization.targets import is_frozen


def copy_model(
    model: Any,
    batch: Any,
    replace: Callable[[Any], Any] = lambda layer: None,
) -> tuple[Any, dict[int, Any]]:
    """Copies a model with its weights and its `trainable` flags.

    Args:
        model: Sequential or functional model.
        batch: Inputs on which the copy is called, to build it. `None` if the
            shapes of the inputs of the model are known.
        replace: Function that takes a layer and returns the layer of the
            copy, or `None` to copy the layer. The weights of replaced layers
            are not set. Defaults to copying all layers.

    Returns:
        A tuple `(copy, copies)`. `copies` maps the `id` of each layer of the
        model to the layer of the copy.
    """
    copies: dict[int, Any] = {}
    replaced = set()

    def copy_layer(layer):
        if id(layer) not in copies:
            new = None
            if _keras.is_graph_of_layers(layer):
                new = _copy_graph(layer, copy_layer)
            else:
                new = replace(layer)
                if new is not None:
                    replaced.add(id(layer))
            copies[id(layer)] = _copy_config(layer) if new is None else new
        return copies[id(layer)]

    copied = copy_layer(model)
    if batch is not None:
        copied(batch, training=False)
    _copy_state(model, copies, replaced)
    return copied, copies


def _copy_graph(model, copy_layer):
    if not isinstance(model, keras.Sequential):
        return _keras.copy_functional(model, copy_layer)
    layers = [copy_layer(layer) for layer in model.layers]
    if not model.inputs:  # Keras could not infer the shapes
        return keras.Sequential(layers, name=model.name)
    # A model that was built by its first call has the batch size of that call.
    stateful = any(getattr(layer, "stateful", False) for layer in layers)
    start = _keras.copy_input(model.inputs[0], keep_batch_size=stateful)
    return keras.Sequential([start, *layers], name=model.name)


def _copy_config(layer):
    try:
        config = layer.get_config()
        if not isinstance(layer, keras.layers.Lambda):
            return type(layer).from_config(config)
        # The function comes from this process, not from a file. Its serialized
        # form does not include the modules that it uses.
        safe = {"safe_mode": False} if _keras.KERAS_3 else {}
        copied = type(layer).from_config(config, **safe)
        copied.function = layer.function
        return copied
    except Exception as error:  # layers of users may raise anything
        raise ValueError(
            "`model` must have layers that can be copied from their "
            "configuration. Define `get_config` and `from_config` of the "
            f"layer. Received: the layer `{layer.name}` of type "
            f"{type(layer).__name__}, which raised: {reason(error)}"
        ) from error


def _copy_state(layer, copies, replaced):
    """Copies weights and `trainable` flags, from outer to inner layers."""
    copied = copies[id(layer)]
    copied.trainable = layer.trainable
    if _keras.is_graph_of_layers(layer):
        for inner in layer.layers:
            if id(inner) in copies:  # all but input layers
                _copy_state(inner, copies, replaced)
        return
    if id(layer) in replaced:
        return
    # Setting the flag of a layer sets the flags of all inner layers. In legacy
    # Keras, the order of the weights depends on the flags.
    parts = zip(_keras.all_layers(layer), _keras.all_layers(copied))
    for part, copied_part in parts:
        copied_part.trainable = part.trainable
    copied.set_weights(layer.get_weights())


def quantized_copy(
    model: Any, batch: Any, targets: list[Target]
) -> tuple[Any, dict[int, Any]]:
    """Copies a model, with layers that can hold quantized weights.

    Args:
        model: Sequential or functional model.
        batch: Inputs on which the copy is called, to build it.
        targets: List of `Target`. The layers to quantize. The caller sets their
            weights.

    Returns:
        The return value of `copy_model`.
    """
    by_owner = {id(target.owner): target for target in targets}

    def replace(layer):
        target = by_owner.get(id(layer))
        if target is None:
            return None
        frozen = is_frozen(target, targets)
        if type(layer) is not keras.layers.MultiHeadAttention:
            return None if frozen else target.kind.quantized(layer, target.bits)
        config = layer.get_config()
        if frozen:
            return FrozenMultiHeadAttention.from_config(config)
        return BinaryMultiHeadAttention.from_config(
            with_bits(config, target.bits)
        )

    copied, copies = copy_model(model, batch, replace)
    for target in by_owner.values():
        owner = copies[id(target.owner)]
        if isinstance(owner, FrozenMultiHeadAttention):
            owner.set_weights(target.owner.get_weights())
        if is_frozen(target, targets):
            # Training would move the weights off the grid.
            owner.trainable = False
    return copied, copies
