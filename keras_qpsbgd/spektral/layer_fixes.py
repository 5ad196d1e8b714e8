"""Fixes for layers and models that Keras 3 does not build or mask correctly.

If no input has a mask, legacy Keras passes `mask=None` and Keras 3 passes a
structure of `None`. Spektral multiplies by `mask[0]` unless `mask` is `None`.
"""

import functools
import inspect

import tensorflow as tf

from keras_qpsbgd.spektral.fixes import Fix
from keras_qpsbgd.spektral.fixes import ModuleProxy

CONV = "layers.convolutional"
POOL = "layers.pooling"
MODELS = (
    "models.gcn:GCN.call",
    "models.general_gnn:GeneralGNN.call",
    "models.general_gnn:MLP.call",
)


def name_training(call):
    """Adds a `training` argument to `call`.

    Keras 3 passes `training` only to models whose `call` has this argument.
    From there, Keras passes it on to the layers.
    """

    @functools.wraps(call)
    def wrapped(self, inputs, training=None):
        return call(self, inputs)

    # Otherwise Keras would see the original signature.
    del wrapped.__wrapped__
    return wrapped


def does_not_raise(n_nodes):
    """Makes `n_nodes` return `None` before the first call.

    Keras 3 reads all attributes of a layer.
    """
    return property(
        lambda self: self._n_nodes, n_nodes.fset, n_nodes.fdel, n_nodes.__doc__
    )


def no_jit(_):
    """Opts out of XLA, which Keras 3 uses on a GPU by default."""
    return property(
        lambda self: False,
        # Stored for layers that outlive the fixes.
        lambda self, value: vars(self).update(supports_jit=value),
    )


def with_learning_phase(backend):
    """Adds `learning_phase`, which is inference by default as in Keras 3."""
    return ModuleProxy(backend, learning_phase=lambda: False)


def with_softmax(backend):
    """Replaces `softmax` with one that accepts a vector (a single graph)."""
    return ModuleProxy(backend, softmax=tf.nn.softmax)


def tensor_length(_):
    def length(values):
        return tf.shape(values)[0] if tf.is_tensor(values) else len(values)

    return length


def gated_call(call):
    """Adapts `GatedGraphConv.call` to the GRU cell of Keras 3.

    The cell needs a static width when it is built, and rejects inputs of rank 3
    (mixed mode).
    """

    @functools.wraps(call)
    def wrapped(self, inputs):
        x, a, _ = self.get_inputs(inputs)
        widths = [[0, 0]] * (len(x.shape) - 1)
        state = tf.pad(x, [*widths, [0, self.channels - x.shape[-1]]])
        shape, static_shape = tf.shape(state), state.shape
        for layer in range(self.n_layers):
            messages = self.propagate(tf.matmul(state, self.kernel[layer]), a)
            rows = [
                tf.reshape(part, (-1, self.channels))
                for part in (messages, state)
            ]
            state = tf.reshape(self.rnn(rows[0], rows[1:])[0], shape)
            state = tf.ensure_shape(state, static_shape)
        return self.activation(state)

    return wrapped


def with_lasting_constants(tensorflow):
    """Creates constants outside the graph in which Keras 3 calls `build`."""

    def cast(x, dtype):
        if tensorflow.is_tensor(x):
            return tensorflow.cast(x, dtype)
        with tensorflow.init_scope():
            return tensorflow.cast(x, dtype)

    return ModuleProxy(tensorflow, cast=cast)


def node_and_edge_shapes(_):
    def compute_output_shape(self, input_shape):
        nodes, _, edges = input_shape
        return (
            (*nodes[:-1], self.node_channels),
            (*edges[:-1], self.edge_channels),
        )

    return compute_output_shape


def sorted_shape(compute_output_shape):
    @functools.wraps(compute_output_shape)
    def wrapped(self, input_shape):
        if self.data_mode == "disjoint":
            return (None, self.k, self.F)
        return compute_output_shape(self, input_shape)

    return wrapped


# Masks of padded nodes


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

    `GraphMasking` replaces the first input with the features without the mask
    column. Keras then computes the mask from the modified list.
    """

    @functools.wraps(call)
    def wrapped(self, inputs, **kwargs):
        if isinstance(inputs, list):
            inputs = list(inputs)
        return call(self, inputs, **kwargs)

    return wrapped


FIXES = (
    Fix(
        "masks",
        "Keras 3 passes [None, None] if nothing is masked",
        {
            f"{CONV}.conv:check_dtypes_decorator": decorate_with_mask,
            f"{CONV}.message_passing:MessagePassing.__init__": init_with_mask,
            f"{POOL}.src:SRCPool.pool": mask_or_none,
        },
    ),
    Fix(
        "graph mask",
        "GraphMasking of a list uses features as the mask",
        {"layers.base:GraphMasking.call": keep_list},
    ),
    Fix(
        "pooled mask",
        "Keras 3 passes the mask of the nodes to the loss of the graphs",
        {},
        {f"{POOL}.global_pool:GlobalPool.compute_mask": no_mask},
    ),
    Fix(
        "training",
        "Keras 3 trains these without Dropout and batch normalization",
        dict.fromkeys(MODELS, name_training),
    ),
    Fix(
        "n_nodes",
        "Keras 3 reads all attributes of a layer, and this one raises",
        {f"{POOL}.src:SRCPool.n_nodes": does_not_raise},
    ),
    Fix(
        "SparseDropout",
        "Keras 3 removed `learning_phase`",
        {"layers.base:K": with_learning_phase},
    ),
    Fix(
        "attention",
        "GlobalAttnSumPool raises in single mode",
        {f"{POOL}.global_pool:K": with_softmax},
    ),
    Fix(
        "XLA",
        "XLA cannot multiply sparse matrices",
        {},
        {
            f"{CONV}.conv:Conv.supports_jit": no_jit,
            f"{CONV}.message_passing:MessagePassing.supports_jit": no_jit,
            f"{POOL}.src:SRCPool.supports_jit": no_jit,
        },
    ),
    Fix(
        "edges",
        "The number of edges is unknown when Keras 3 builds the layer",
        {},
        {
            f"{POOL}.asym_cheeger_cut_pool:len": tensor_length,
            f"{POOL}.dmon_pool:len": tensor_length,
        },
    ),
    Fix(
        "gated",
        "The GRU cell of Keras 3 needs a static width and rank 2",
        {f"{CONV}.gated_graph_conv:GatedGraphConv.call": gated_call},
    ),
    Fix(
        "constants",
        "Keras 3 builds layers in a graph that it discards",
        {
            f"{CONV}.gin_conv:tf": with_lasting_constants,
            f"{CONV}.agnn_conv:tf": with_lasting_constants,
        },
    ),
    Fix(
        "CensNet",
        "Keras 3 cannot infer the output shape",
        {},
        {
            f"{CONV}.censnet_conv:CensNetConv.compute_output_shape": (
                node_and_edge_shapes
            )
        },
    ),
    Fix(
        "SortPool",
        "Its output shape in disjoint mode is wrong, and Keras 3 uses it",
        {f"{POOL}.global_pool:SortPool.compute_output_shape": sorted_shape},
    ),
)
