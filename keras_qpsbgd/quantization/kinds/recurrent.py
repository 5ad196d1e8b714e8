"""Kinds of recurrent layers.

At every time step, a recurrent layer multiplies its inputs by one kernel and
its previous states by another. Both products have one row per sample and time
step.
"""

from __future__ import annotations

import inspect

import numpy as np
import tensorflow as tf

from keras_qpsbgd.quantization.kinds.dense import DenseKind
from keras_qpsbgd.quantization.kinds.dense import first
from keras_qpsbgd.quantization.kinds.dense import some


class InputKernelKind(DenseKind):
    """The kernel for the inputs of `SimpleRNN`, `LSTM` and `GRU`."""

    stock = binary = None
    bias_index = 0

    def problem(self, layer):
        if layer.stateful:
            return "stateful"
        if getattr(layer, "time_major", False):
            return "`time_major` is True"
        return super().problem(layer)

    def variable(self, layer):
        return layer.cell.kernel

    def has_bias(self, layer):
        return bool(layer.cell.use_bias)

    def bias(self, layer):
        return layer.cell.bias

    def change_bias(self, layer, change):
        if self.has_bias(layer) and len(layer.cell.bias.shape) == 2:
            # A `GRU` with `reset_after` has a bias for each of its kernels.
            both = np.zeros(layer.cell.bias.shape)
            both[self.bias_index] = change.ravel()
            change = both
        super().change_bias(layer, change)

    def weights(self, layer):
        cell = layer.cell
        return [w for w in cell.weights if w is not cell.recurrent_kernel]

    def rows(self, layer, args, kwargs, count=None, seed=0):
        inputs, _, mask = _sequences(layer, args, kwargs)
        yield from some(_unmasked(inputs.numpy(), mask), count, seed)


class RecurrentKernelKind(InputKernelKind):
    """The kernel for the states of `SimpleRNN`, `LSTM` and `GRU`."""

    bias_index = 1

    def problem(self, layer):
        if not getattr(layer.cell, "reset_after", True):
            # One part of the kernel has different rows from the others.
            return "`reset_after` is False"
        return super().problem(layer)

    def variable(self, layer):
        return layer.cell.recurrent_kernel

    def weights(self, layer):
        return [layer.cell.recurrent_kernel]

    def rows(self, layer, args, kwargs, count=None, seed=0):
        inputs, states, mask = _sequences(layer, args, kwargs)
        if not states:
            sizes = tf.nest.flatten(layer.cell.state_size)
            shapes = [(inputs.shape[0], size) for size in sizes]
            states = [tf.zeros(shape, layer.compute_dtype) for shape in shapes]
        steps = range(inputs.shape[1])
        found = []
        for step in reversed(steps) if layer.go_backwards else steps:
            found.append(states[0].numpy())
            _, new = layer.cell(inputs[:, step], states, training=False)
            if mask is not None:
                # A masked step keeps the states.
                keep = mask[:, step, None]
                new = [tf.where(keep, *pair) for pair in zip(new, states)]
            states = new
        if layer.go_backwards:
            found.reverse()
        yield from some(_unmasked(np.stack(found, 1), mask), count, seed)


def _sequences(layer, args, kwargs):
    """Returns the inputs, the first states, and the mask of a call."""
    bound = inspect.signature(layer.call).bind(*args, **kwargs).arguments
    inputs, *states = tf.nest.flatten(first((), bound))
    states += tf.nest.flatten(bound.get("initial_state") or [])
    mask = bound.get("mask")
    if isinstance(mask, (list, tuple)):
        mask = mask[0]
    if mask is None:
        # As in a call of the layer, which gets the mask with the inputs.
        mask = getattr(inputs, "_keras_mask", None)
    return inputs, states, None if mask is None else tf.cast(mask, tf.bool)


def _unmasked(values, mask):
    """Returns an array without the steps that are masked."""
    return values if mask is None else values[mask.numpy()]
