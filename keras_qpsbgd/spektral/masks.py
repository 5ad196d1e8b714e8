"""Patches for masks of padded nodes.

If no input has a mask, legacy Keras passes `mask=None` and Keras 3 passes a
structure of `None`. Spektral multiplies by `mask[0]` unless `mask` is `None`.
"""

import functools
import inspect

import tensorflow as tf

from keras_qpsbgd.spektral.patches import Patch
from keras_qpsbgd.spektral.patches import keras3
from keras_qpsbgd.spektral.patches import missing

CONV = "layers.convolutional"
POOL = "layers.pooling"


def none_if_empty(mask):
    if all(part is None for part in tf.nest.flatten(mask)):
        return None
    return mask


def mask_or_none(call):
    """Wraps a bound `call` and preserves its signature for Keras."""

    @functools.wraps(call)
    def wrapped(*args, **kwargs):
        if "mask" in kwargs:
            kwargs["mask"] = none_if_empty(kwargs["mask"])
        return call(*args, **kwargs)

    return wrapped


def decorate_with_mask(decorator):
    """Wraps the decorator that `Conv` applies to `call` of each instance."""
    return functools.wraps(decorator)(
        lambda call: mask_or_none(decorator(call))
    )


def init_with_mask(init):
    """Wraps `call` of `MessagePassing` subclasses that accept `mask`."""

    @functools.wraps(init)
    def __init__(self, aggregate="sum", **kwargs):
        init(self, aggregate, **kwargs)
        if "mask" in inspect.signature(self.call).parameters:
            self.call = mask_or_none(self.call)

    return __init__


def no_mask(_):
    """Removes the mask, because a pooled graph has no padding."""

    def compute_mask(self, inputs, previous_mask=None):
        return None

    return compute_mask


def keep_list(call):
    """Keeps `GraphMasking` from modifying the list of inputs.

    It replaces the first input by the features without the mask column, and
    Keras then computes the mask from the modified list.
    """

    @functools.wraps(call)
    def wrapped(self, inputs, **kwargs):
        if isinstance(inputs, list):
            inputs = list(inputs)
        return call(self, inputs, **kwargs)

    return wrapped


PATCHES = (
    Patch(
        "masks",
        "Keras 3 passes [None, None] if nothing is masked",
        keras3,
        {
            f"{CONV}.conv:check_dtypes_decorator": decorate_with_mask,
            f"{CONV}.message_passing:MessagePassing.__init__": init_with_mask,
            f"{POOL}.src:SRCPool.pool": mask_or_none,
        },
    ),
    Patch(
        "graph mask",
        "GraphMasking of a list uses features as the mask",
        keras3,
        {"layers.base:GraphMasking.call": keep_list},
    ),
    Patch(
        "pooled mask",
        "Keras 3 passes the mask of the nodes to the loss of the graphs",
        missing(f"{POOL}.global_pool:GlobalPool.compute_mask"),
        {},
        {f"{POOL}.global_pool:GlobalPool.compute_mask": no_mask},
    ),
)
