"""Runs a network on all calibration data at once, one layer after the other.

The calls of layers in a functional model form a list of steps, with nested
models expanded into their layers. Two copies of the network run through the
steps together: the float copy and the copy whose layers are quantized one by
one. At each layer, the inputs of both copies are available for all batches, so
a single forward pass of each copy is enough. Tensors are released after their
last use.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd.quantization.calibration import named_inputs
from keras_qpsbgd.quantization.kinds.dense import first
from keras_qpsbgd.quantization.targets import Target


class Call(NamedTuple):
    """The arguments of one call of a layer in one batch.

    Attributes:
        batch: Integer. Index of the batch.
        given: Tuple `(args, kwargs)` in the float copy.
        quantized: The same in the quantized copy. It is the same object as
            `given` if no layer before it was changed.
    """

    batch: int
    given: tuple
    quantized: tuple


class Reference:
    """Stands for a tensor in the arguments of a step."""


class Step(NamedTuple):
    """One call of a layer of the given model.

    Attributes:
        layer: The layer, or another function of tensors.
        args: Positional arguments, with references in place of tensors.
        kwargs: Keyword arguments, also with references.
        inputs: List of the references in the arguments.
        outputs: List of the references to the outputs.
    """

    layer: Any
    args: Any
    kwargs: dict[str, Any]
    inputs: list[Reference]
    outputs: list[Reference]


class ForwardPass:
    """The forward pass of two copies of a model over all batches.

    Args:
        model: The given Sequential or functional model.
        copies: Pair of dictionaries that map the `id` of each layer of the
            model to its copy in the float and in the quantized network.
        batches: List of inputs of the model.

    Attributes:
        steps: List of `Step`, in the order of the calls.
    """

    def __init__(
        self,
        model: Any,
        copies: tuple[dict[int, Any], dict[int, Any]],
        batches: list[Any],
    ) -> None:
        self._copies = copies
        self._changed: set[int] = set()
        self._position = 0
        inputs, self.steps, _ = list_steps(model)
        last_use = {
            reference: index
            for index, step in enumerate(self.steps)
            for reference in step.inputs + step.outputs
        }
        self._released: list[list[Reference]] = [[] for _ in self.steps]
        for reference, index in last_use.items():
            self._released[index].append(reference)
        self._last_call = {
            id(step.layer): index for index, step in enumerate(self.steps)
        }
        self._values = []
        for batch in batches:
            pairs = zip(inputs, (value for _, value in _bind(model, batch)))
            self._values.append({reference: (v, v) for reference, v in pairs})

    def layers(self) -> list[Any]:
        """Returns the layers of the model in the order of their calls."""
        found = {id(step.layer): step.layer for step in self.steps}
        return list(found.values())

    def advance_to(self, layer: Any) -> None:
        """Runs all steps before the next call of a layer."""
        while self.steps[self._position].layer is not layer:
            for values in self._values:
                self._run(self._position, values)
            self._position += 1

    def calls(self, owner: Any, part: str | None = None) -> Iterator[Call]:
        """Yields the calls of a layer in all batches.

        If the layer is called several times, the calls after the first one come
        from a network in which the layer is not quantized yet.

        Args:
            owner: The layer. Its next call is the current step.
            part: String (optional). Name of an attribute of the layer, an inner
                layer whose calls are yielded instead. Defaults to `None`.
        """
        end = self._last_call[id(owner)]
        for batch, values in enumerate(self._values):
            values = dict(values)
            for index in range(self._position, end + 1):
                step = self.steps[index]
                if step.layer is owner:
                    yield from self._captured(step, part, values, batch)
                if index < end:
                    self._run(index, values)

    def mark_changed(self, target: Target) -> None:
        """Marks a layer of the quantized copy as changed."""
        self._changed.add(id(target.owner))

    def _captured(self, step, part, values, batch):
        """Yields the calls of a layer, or of a layer inside it, in one step."""
        arguments = [_fill(step, values, which) for which in (0, 1)]
        is_same = self._is_same(step, values)
        if type(step.layer) is keras.layers.TimeDistributed:
            # The inner layer may be called in a graph, once per time step.
            inputs = [first(*each) for each in arguments]
            flat = [tf.reshape(x, (-1, *x.shape[2:])) for x in inputs]
            calls = [[((x,), {})] for x in flat]
        elif part is None:
            calls = [[each] for each in arguments]
        else:
            calls = [
                _recorded(copied[id(step.layer)], part, *each)
                for copied, each in zip(self._copies, arguments)
            ]
        for given, quantized in zip(*calls):
            yield Call(batch, given, given if is_same else quantized)

    def _is_same(self, step, values):
        """Returns whether a step has the same result in both copies."""
        # In a layer with two kernels, the first one has already changed.
        return id(step.layer) not in self._changed and all(
            values[reference][0] is values[reference][1]
            for reference in step.inputs
        )

    def _run(self, index, values):
        """Runs a step of one batch in both copies and stores the outputs."""
        step = self.steps[index]
        is_same = self._is_same(step, values)
        results: list[list] = []
        for which, copied in enumerate(self._copies):
            if which and is_same:
                results.append(results[0])
                break
            args, kwargs = _fill(step, values, which)
            layer = copied.get(id(step.layer), step.layer)
            outputs = layer(*args, **kwargs)
            flat = tf.nest.flatten(outputs)
            if len(step.outputs) == 1 and len(flat) > 1:
                flat = [outputs]  # a structure between layers of a Sequential
            results.append(flat)
        values.update(zip(step.outputs, zip(*results)))
        for reference in self._released[index]:
            del values[reference]


def _fill(step, values, which):
    def fill(leaf):
        return values[leaf][which] if isinstance(leaf, Reference) else leaf

    return tf.nest.map_structure(fill, (step.args, step.kwargs))


def _recorded(owner, part, args, kwargs):
    """Calls a layer of a private copy and returns the calls of a part."""
    layer = getattr(owner, part)
    calls: list[tuple] = []
    call = layer.call

    def recorded(*args, **kwargs):
        calls.append((args, kwargs))
        return call(*args, **kwargs)

    # Keras inspects the signature of `call`.
    recorded.__signature__ = inspect.signature(call)  # type: ignore
    layer.call = recorded
    try:
        owner(*args, **kwargs)
    finally:
        layer.call = call
    return calls


# The list of steps


def list_steps(
    model: Any,
) -> tuple[list[Reference], list[Step], list[Reference]]:
    """Lists the calls of layers in a model.

    Returns:
        A tuple `(inputs, steps, outputs)` of the references to the inputs, the
        steps in order, and the references to the outputs.
    """
    steps: list[Step] = []
    inputs = [Reference() for _ in model.inputs]
    outputs = _add_model(steps, model, inputs)
    return inputs, steps, outputs


def _add_model(steps, model, inputs):
    """Adds the steps of a model and returns the references to its outputs."""
    if isinstance(model, keras.Sequential):
        outputs = inputs
        for layer in model.layers:
            outputs = _add_call(steps, layer, tuple(outputs), {}, 1)
        return outputs
    references = {
        id(tensor): reference for tensor, reference in zip(model.inputs, inputs)
    }
    for layer, args, kwargs, results in _keras.graph_calls(model):
        args, kwargs = tf.nest.map_structure(
            lambda leaf: references.get(id(leaf), leaf), (args, kwargs)
        )
        outputs = _add_call(steps, layer, args, kwargs, len(results))
        references.update(zip(map(id, results), outputs))
    return [references[id(tensor)] for tensor in model.outputs]


def _add_call(steps, layer, args, kwargs, num_outputs):
    nested = _nested_inputs(layer, args, kwargs)
    if nested is not None:
        converted = []
        for tensor, reference in nested:
            (reference,) = _add_step(
                steps, _Conversion(tensor.dtype), (reference,), {}, 1
            )
            converted.append(reference)
        return _add_model(steps, layer, converted)
    call = getattr(layer, "call", layer)
    if "training" in inspect.signature(call).parameters:
        # As in a call of the model with `training=False`. In legacy Keras, an
        # argument that was passed to the layer takes precedence.
        explicit = {} if _keras.KERAS_3 else kwargs
        kwargs = {**kwargs, "training": explicit.get("training", False)}
    return _add_step(steps, layer, args, kwargs, num_outputs)


def _add_step(steps, layer, args, kwargs, num_outputs):
    leaves = tf.nest.flatten((args, kwargs))
    inputs = list(
        {leaf: None for leaf in leaves if isinstance(leaf, Reference)}
    )
    outputs = [Reference() for _ in range(num_outputs)]
    steps.append(Step(layer, args, kwargs, inputs, outputs))
    return outputs


def _nested_inputs(layer, args, kwargs):
    """Returns pairs of an input of a nested model and a reference, or `None`.

    Returns `None` for a layer, and for a nested model with arguments other than
    its inputs. Such a model runs as a whole.
    """
    if not _keras.is_graph_of_layers(layer) or not layer.inputs:
        return None
    others = [value for name, value in kwargs.items() if name != "training"]
    if len(args) != 1 or any(value is not None for value in others):
        return None
    pairs = _bind(layer, args[0])
    is_known = all(isinstance(reference, Reference) for _, reference in pairs)
    return pairs if is_known and len(pairs) == len(layer.inputs) else None


def _bind(model, inputs):
    """Returns pairs of a symbolic input of a model and its value."""
    if isinstance(inputs, dict):
        symbolic = named_inputs(model)
        if set(symbolic) != set(inputs):
            return []
        order = [id(tensor) for tensor in model.inputs]
        pairs = [(symbolic[name], inputs[name]) for name in symbolic]
        return sorted(pairs, key=lambda pair: order.index(id(pair[0])))
    return list(zip(model.inputs, tf.nest.flatten(inputs)))


class _Conversion:
    """Casts an input of a nested model to its dtype, and keeps its mask."""

    def __init__(self, dtype):
        self._dtype = tf.as_dtype(dtype)

    def __call__(self, tensor):
        if isinstance(tensor, tf.SparseTensor) or tensor.dtype == self._dtype:
            return tensor
        converted = tf.cast(tensor, self._dtype)
        mask = getattr(tensor, "_keras_mask", None)
        if mask is not None:
            converted._keras_mask = mask
        return converted
