"""Masks of padded nodes.

Legacy Keras gives `mask=None` where no input has a mask, Keras 3 a structure
of `None`; Spektral multiplies by `mask[0]` in both cases.
"""

import functools
import inspect

import tensorflow as tf

from keras_qpsbgd.spektral.patches import Patch
from keras_qpsbgd.spektral.patches import keras3
from keras_qpsbgd.spektral.patches import lacking

CONV = "layers.convolutional"
POOL = "layers.pooling"


def none_if_empty(mask):
    if all(part is None for part in tf.nest.flatten(mask)):
        return None
    return mask


def mask_or_none(call):
    """Wraps a bound `call`; Keras sees the same signature."""

    @functools.wraps(call)
    def wrapped(*args, **kwargs):
        if "mask" in kwargs:
            kwargs["mask"] = none_if_empty(kwargs["mask"])
        return call(*args, **kwargs)

    return wrapped


def decorate_with_mask(decorator):
    """For `Conv`, which decorates the `call` of each instance."""
    return functools.wraps(decorator)(
        lambda call: mask_or_none(decorator(call))
    )


def init_with_mask(init):
    """For `MessagePassing`, whose subclasses may name `mask` in `call`."""

    @functools.wraps(init)
    def __init__(self, aggregate="sum", **kwargs):
        init(self, aggregate, **kwargs)
        if "mask" in inspect.signature(self.call).parameters:
            self.call = mask_or_none(self.call)

    return __init__


def no_mask(_):
    """A pooled graph has no padding, hence no mask."""

    def compute_mask(self, inputs, previous_mask=None):
        return None

    return compute_mask


def keep_list(call):
    """Leaves the caller's list of inputs alone.

    `GraphMasking` writes the features without the mask into it, and Keras then
    computes the mask from what it finds there.
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
        "Keras 3 says [None, None] if nothing is masked",
        keras3,
        {
            f"{CONV}.conv:check_dtypes_decorator": decorate_with_mask,
            f"{CONV}.message_passing:MessagePassing.__init__": init_with_mask,
            f"{POOL}.src:SRCPool.pool": mask_or_none,
        },
    ),
    Patch(
        "graph mask",
        "given a list, GraphMasking takes features for the mask",
        keras3,
        {"layers.base:GraphMasking.call": keep_list},
    ),
    Patch(
        "pooled mask",
        "Keras 3 hands the mask of the nodes on to the loss of the graphs",
        lacking(f"{POOL}.global_pool:GlobalPool.compute_mask"),
        {},
        {f"{POOL}.global_pool:GlobalPool.compute_mask": no_mask},
    ),
)
