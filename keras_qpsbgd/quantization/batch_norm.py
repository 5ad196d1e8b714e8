"""Batch normalization in quantized networks.

A normalization that directly follows a layer is folded into the kernel and the
bias of that layer. The layer then has a bias, which quantization corrects.
Other normalizations are kept. Their moving statistics are changed so that their
outputs are as close as possible to those in the float network.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any
from typing import NamedTuple

import numpy as np
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd.quantization import kinds
from keras_qpsbgd.quantization import model_copy
from keras_qpsbgd.quantization.forward import ForwardPass
from keras_qpsbgd.quantization.forward import Step
from keras_qpsbgd.quantization.forward import list_steps
from keras_qpsbgd.quantization.targets import Target

# Limits of the slope. A channel that hardly correlates with the channel of the
# float network keeps part of its scale.
SLOPES = (0.1, 10.0)


class Folded(NamedTuple):
    """A model whose batch normalizations are folded.

    Attributes:
        model: The copy of the model, or the model itself if nothing was folded.
        targets: List of `Target`, the layers to quantize in this model.
        norms: Set of the `id`s of the folded layers of the given model.
    """

    model: Any
    targets: list[Target]
    norms: set[int]


def fold(model: Any, batch: Any, targets: list[Target]) -> Folded:
    """Folds batch normalizations into the layers before them.

    A normalization is folded if it directly follows a `Dense` layer or a
    convolution that will be quantized and has no activation. Both must be
    called once, and nothing else may use the output of the layer. A linear
    `Activation` of the same name takes the place of the normalization, so the
    copy has the layers and the outputs of the model.

    Args:
        model: Sequential or functional model. It is not changed.
        batch: Inputs on which the copy is called, to build it.
        targets: List of `Target`. The layers to quantize.

    Returns:
        A `Folded`.
    """
    pairs = _find_pairs(model, targets)
    if not pairs:
        return Folded(model, targets, set())
    layers = {id(target.layer) for target, _ in pairs}
    norms = {id(norm) for _, norm in pairs}

    def replace(layer):
        config = layer.get_config()
        if id(layer) in norms:
            common = {key: config[key] for key in ("name", "dtype")}
            return keras.layers.Activation.from_config(
                {**common, "activation": "linear"}
            )
        if id(layer) in layers:
            return type(layer).from_config({**config, "use_bias": True})
        return None

    folded, copies = model_copy.copy_model(model, batch, replace)
    for target, norm in pairs:
        _fold_weights(target, norm, copies[id(target.layer)])
    moved = [
        dataclasses.replace(
            target, layer=target.find(copies), owner=copies[id(target.owner)]
        )
        for target in targets
    ]
    return Folded(folded, moved, norms)


def _fold_weights(target, norm, copied):
    """Sets the weights of a copied layer, including the normalization."""
    for kind in kinds.kernels_of(target.layer).values():
        kind.set_kernel(copied, kind.kernel(target.layer))
    factor, shift = _factor_and_shift(norm)
    kernel = target.kind.kernel(target.layer)
    groups = kernel.shape[:-2]
    target.kind.set_kernel(copied, kernel * factor.reshape(*groups, 1, -1))
    if target.layer.use_bias:
        shift = shift + factor * target.layer.bias.numpy().astype(np.float64)
    copied.bias.assign(shift.astype(np.float32))


def _factor_and_shift(norm):
    """Returns the factor and the shift of a normalization."""
    mean, variance = (
        weight.numpy().astype(np.float64)
        for weight in (norm.moving_mean, norm.moving_variance)
    )
    factor = 1.0 / np.sqrt(variance + norm.epsilon)
    if norm.gamma is not None:
        factor = factor * norm.gamma.numpy()
    shift = -mean * factor
    return factor, shift if norm.beta is None else shift + norm.beta.numpy()


def _find_pairs(model, targets):
    """Returns pairs of a target and the normalization to fold into it."""
    _, steps, outputs = list_steps(model)
    once = _called_once(steps)
    sources = {tensor: step for step in steps for tensor in step.outputs}
    uses = collections.Counter(
        tensor for step in steps for tensor in step.inputs
    )
    uses.update(outputs)
    by_layer = {
        id(target.layer): target
        for target in targets
        if target.owner is target.layer and _is_linear(target)
    }
    pairs = []
    for step in steps:
        if id(step.layer) not in once or not _is_norm(step):
            continue
        (tensor,) = step.inputs
        source = sources.get(tensor)
        if source is None or uses[tensor] > 1 or id(source.layer) not in once:
            continue
        target = by_layer.get(id(source.layer))
        if target is not None and _has_same_channels(target, step.layer):
            pairs.append((target, step.layer))
    return pairs


def _called_once(steps: list[Step]) -> set[int]:
    """Returns the `id` of each layer that is called once."""
    calls: collections.Counter[int] = collections.Counter()
    for step in steps:
        calls[id(step.layer)] += 1
        if isinstance(step.layer, keras.layers.Layer):
            # A wrapper or a nested model may call a layer of the model.
            calls.update(map(id, _keras.all_layers(step.layer)))
    return {layer for layer, count in calls.items() if count == 1}


def _is_norm(step):
    """Returns whether a step normalizes with the moving statistics."""
    return (
        type(step.layer) is keras.layers.BatchNormalization
        and len(step.inputs) == len(step.args) == 1
        and not step.kwargs.get("training")
        and step.kwargs.get("mask") is None
        and len(_axes(step.layer)) == 1
    )


def _is_linear(target):
    """Returns whether the outputs are products with the kernel plus a bias."""
    kind = target.kind
    is_supported = (
        type(kind) in (kinds.DenseKind, kinds.PointwiseKind)
        or isinstance(kind, kinds.ConvKind)
        # The other kernel of the same layer computes the outputs.
        and not isinstance(kind, kinds.SeparableDepthwiseKind)
    )
    activation = getattr(target.layer, "activation", None)
    return is_supported and activation is keras.activations.linear


def _has_same_channels(target, norm):
    """Returns whether a normalization has one entry per output of a layer."""
    is_first = getattr(target.layer, "data_format", None) == "channels_first"
    kernel = target.kind.kernel(target.layer)
    num_outputs = kernel.size // kernel.shape[-2]
    channels = norm.moving_mean.shape[0]
    last = norm.input_spec.ndim - 1
    wanted = [1 if is_first else last]
    return _axes(norm) == wanted and num_outputs == channels


def _axes(norm):
    """Returns the axes of a normalization, as non-negative integers."""
    spec = norm.input_spec
    return sorted(axis % spec.ndim for axis in spec.axes)


class Correction:
    """Corrects the batch normalizations of the quantized copy.

    With the corrected moving statistics, the outputs of each channel have the
    same mean as in the float copy on the calibration data, and the smallest
    squared difference from the outputs of the float copy. A layer that is
    called several times keeps its statistics.

    Args:
        forward: `ForwardPass`.
        copies: Pair of dictionaries that map the `id` of each layer of the
            model to its copy in the float and in the quantized network.
        num_used: Integer. Number of batches that are not held out. They come
            first.
    """

    def __init__(
        self,
        forward: ForwardPass,
        copies: tuple[dict[int, Any], dict[int, Any]],
        num_used: int,
    ) -> None:
        self._forward = forward
        self._copies = copies
        self._num_used = num_used
        once = _called_once(forward.steps)
        self._waiting = [
            step.layer
            for step in forward.steps
            if id(step.layer) in once and _is_norm(step)
        ]
        layers = forward.layers()
        self._places = {id(layer): place for place, layer in enumerate(layers)}
        self._corrected: list[Any] = []

    def advance_to(self, layer: Any) -> None:
        """Runs the forward pass to the first call of a layer."""
        place = self._places[id(layer)]
        while self._waiting and self._places[id(self._waiting[0])] < place:
            self._correct(self._waiting.pop(0))
        self._forward.advance_to(layer)

    def finish(self, found: dict[int, Any]) -> None:
        """Corrects the remaining layers and writes all statistics to a model.

        Args:
            found: Dictionary that maps the `id` of each layer of the model to
                the layer that receives the statistics.
        """
        while self._waiting:
            self._correct(self._waiting.pop(0))
        for layer in self._corrected:
            for name in ("moving_mean", "moving_variance"):
                new = getattr(self._copies[1][id(layer)], name)
                getattr(found[id(layer)], name).assign(new.numpy())

    def _correct(self, layer):
        self._forward.advance_to(layer)
        norm = self._copies[1][id(layer)]
        count, sums = 0, np.zeros((4, 1))
        for call in self._forward.calls(layer):
            if call.quantized is call.given:
                return  # no quantized layer comes before it
            if call.batch < self._num_used:
                x, y = (
                    _channels(inputs[0], _axes(norm)[0])
                    for inputs, _ in (call.given, call.quantized)
                )
                count += len(x)
                squares, products = (
                    np.einsum("bc,bc->c", values, y) for values in (y, x)
                )
                sums = sums + np.stack([x.sum(0), y.sum(0), squares, products])
        given, quantized, squares, products = sums / count
        slope = _slope(
            squares, squares - quantized**2, products - given * quantized
        )
        mean, variance = (
            weight.numpy().astype(np.float64)
            for weight in (norm.moving_mean, norm.moving_variance)
        )
        square = variance + norm.epsilon
        new = np.maximum(square / slope**2 - norm.epsilon, 0.0)
        ratio = np.sqrt((new + norm.epsilon) / square)
        norm.moving_mean.assign(quantized - (given - mean) * ratio)
        norm.moving_variance.assign(new)
        self._corrected.append(layer)


def _channels(tensor, axis):
    """Returns a tensor as a matrix with a column for each channel."""
    values = np.moveaxis(tensor.numpy(), axis, -1).astype(np.float64)
    return values.reshape(-1, values.shape[-1])


def _slope(squares, variance, covariance):
    """Returns the slope of the best linear fit of the given activations."""
    slope = np.ones_like(variance)
    # A channel that is constant up to rounding has no slope.
    usable = variance > 1e-6 * squares
    np.divide(covariance, variance, out=slope, where=usable)
    return np.clip(slope, *SLOPES)
