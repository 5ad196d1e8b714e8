"""Layers and models that Keras 3 cannot build, or builds differently."""

import functools
import inspect

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.spektral.patches import Instead
from keras_qpsbgd.spektral.patches import Patch
from keras_qpsbgd.spektral.patches import find
from keras_qpsbgd.spektral.patches import keras3
from keras_qpsbgd.spektral.patches import lacking

CONV = "layers.convolutional"
POOL = "layers.pooling"
MODELS = (
    "models.gcn:GCN.call",
    "models.general_gnn:GeneralGNN.call",
    "models.general_gnn:MLP.call",
)


def training_is_lost():
    return _keras.KERAS_3 and not all(
        names_training(getattr(*find(target, must_exist=True)))
        for target in MODELS
    )


def names_training(call):
    return "training" in inspect.signature(call).parameters


def backend_lacks_learning_phase():
    return not hasattr(_keras.keras.backend, "learning_phase")


def name_training(call):
    """Keras 3 tells a model that it is trained if `call` names `training`.

    Its layers learn it from Keras then.
    """
    if names_training(call):
        return call

    @functools.wraps(call)
    def wrapped(self, inputs, training=None):
        return call(self, inputs)

    del wrapped.__wrapped__  # else Keras sees the signature without
    return wrapped


def does_not_raise(n_nodes):
    """`None` before the first call, as Keras 3 reads all attributes."""
    return property(
        lambda self: self._n_nodes, n_nodes.fset, n_nodes.fdel, n_nodes.__doc__
    )


def no_jit(_):
    """Keras 3 compiles with XLA on a GPU unless a layer is against it."""
    return property(
        lambda self: False,
        # Kept for when the patches are gone and the layer is not.
        lambda self, value: vars(self).update(supports_jit=value),
    )


def with_learning_phase(backend):
    """Without a word on training, Keras 3 takes it for inference."""
    return Instead(backend, learning_phase=lambda: False)


def with_softmax(backend):
    """`softmax` that takes the scores of a single graph, a vector."""
    return Instead(backend, softmax=tf.nn.softmax)


def tensor_length(_):
    def length(values):
        return tf.shape(values)[0] if tf.is_tensor(values) else len(values)

    return length


def gated_call(call):
    """`GatedGraphConv.call` for the GRU cell of Keras 3.

    That one must know the width when it is built, and takes no third axis
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
    """Constants made in `build` outlive the graph that Keras 3 builds in."""

    def cast(x, dtype):
        if tensorflow.is_tensor(x):
            return tensorflow.cast(x, dtype)
        with tensorflow.init_scope():
            return tensorflow.cast(x, dtype)

    return Instead(tensorflow, cast=cast)


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


PATCHES = (
    Patch(
        "training",
        "Keras 3 trains these without Dropout and batch normalization",
        training_is_lost,
        dict.fromkeys(MODELS, name_training),
    ),
    Patch(
        "n_nodes",
        "Keras 3 reads all attributes of a layer; this one raises",
        keras3,
        {f"{POOL}.src:SRCPool.n_nodes": does_not_raise},
    ),
    Patch(
        "SparseDropout",
        "Keras 3 lost `learning_phase`",
        backend_lacks_learning_phase,
        {"layers.base:K": with_learning_phase},
    ),
    Patch(
        "attention",
        "GlobalAttnSumPool raises in single mode",
        keras3,
        {f"{POOL}.global_pool:K": with_softmax},
    ),
    Patch(
        "XLA",
        "XLA has no products of sparse matrices",
        keras3,
        {},
        {
            f"{CONV}.conv:Conv.supports_jit": no_jit,
            f"{CONV}.message_passing:MessagePassing.supports_jit": no_jit,
            f"{POOL}.src:SRCPool.supports_jit": no_jit,
        },
    ),
    Patch(
        "edges",
        "the number of edges is not known when Keras 3 builds the layer",
        keras3,
        {},
        {
            f"{POOL}.asym_cheeger_cut_pool:len": tensor_length,
            f"{POOL}.dmon_pool:len": tensor_length,
        },
    ),
    Patch(
        "gated",
        "the GRU cell of Keras 3 must know its width, and has two axes",
        keras3,
        {f"{CONV}.gated_graph_conv:GatedGraphConv.call": gated_call},
    ),
    Patch(
        "constants",
        "Keras 3 builds layers in a graph that it throws away",
        keras3,
        {
            f"{CONV}.gin_conv:tf": with_lasting_constants,
            f"{CONV}.agnn_conv:tf": with_lasting_constants,
        },
    ),
    Patch(
        "CensNet",
        "Keras 3 does not find the shape out",
        lacking(f"{CONV}.censnet_conv:CensNetConv.compute_output_shape"),
        {},
        {
            f"{CONV}.censnet_conv:CensNetConv.compute_output_shape": (
                node_and_edge_shapes
            )
        },
    ),
    Patch(
        "SortPool",
        "its shape in disjoint mode is wrong, and Keras 3 uses it",
        keras3,
        {f"{POOL}.global_pool:SortPool.compute_output_shape": sorted_shape},
    ),
)
