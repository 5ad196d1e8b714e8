"""What Keras 3 does differently from the Keras that Spektral was written for.

Under legacy Keras none of these is applied.
"""

import copy
import functools
import inspect

import numpy as np
import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd.spektral.patches import Instead
from keras_qpsbgd.spektral.patches import Patch
from keras_qpsbgd.spektral.patches import find


def keras3():
    return _keras.KERAS_3


def lacking(*targets):
    """A test: Keras 3, and Spektral has not got one of these itself."""

    def needed():
        return _keras.KERAS_3 and any(
            attribute not in vars(owner)
            for owner, attribute in map(find, targets)
        )

    return needed


def training_is_lost():
    return _keras.KERAS_3 and not all(
        names_training(getattr(*find(target))) for target in MODELS
    )


def names_training(call):
    return "training" in inspect.signature(call).parameters


def backend_lacks_learning_phase():
    return not hasattr(_keras.keras.backend, "learning_phase")


# Masks. Legacy Keras gives `mask=None` where no input has a mask, Keras 3 a
# structure of `None`; Spektral multiplies by `mask[0]` in both cases.


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


# Loaders. Keras 3 takes generators and `tf.data`, but no other iterators.


def load_as_generator(_):
    def load(self):
        """Returns a generator of batches for `fit`, `evaluate`, `predict`."""
        return (as_tuples(batch) for batch in self)

    return load


def load_as_dataset(_):
    """For padded batches: Keras guesses the shapes of a generator from its
    first batches, but each is padded to a length of its own."""

    def load(self):
        """Returns a `tf.data.Dataset` of batches."""
        return tf.data.Dataset.from_generator(
            lambda: (as_tuples(batch) for batch in self),
            output_signature=batch_signature(self),
        )

    return load


def as_tuples(batch):
    """Keras 3 takes (inputs, labels) as such only if they are tuples."""
    if isinstance(batch, (list, tuple)):
        return tuple(as_tuples(part) for part in batch)
    return batch


def batch_signature(loader):
    """The types of a `BatchLoader`'s batches, as `collate` nests them."""
    # `tf_signature` changes the loader: let it change a copy.
    loader = copy.copy(loader)
    loader.signature = copy.deepcopy(loader.signature)
    has_labels = "y" in loader.signature
    signature = loader.tf_signature()
    inputs, labels = signature if has_labels else (signature, None)
    if len(inputs) == 1:
        inputs = inputs[0]
    if not has_labels:
        return inputs
    if isinstance(loader.dataset, tuple):  # packed arrays
        scalar = np.ndim(loader.dataset[-1]) == 1
    else:
        scalar = np.ndim(loader.dataset[0].y) == 0
    if scalar:
        labels = tf.TensorSpec((None,), labels.dtype)
    return inputs, labels


def block_diag_of_tensors(sparse):
    """Lets loaders join graphs that `AdjToSpTensor` has been applied to."""

    def to_scipy(matrix):
        if not isinstance(matrix, tf.SparseTensor):
            return matrix
        return sparse.coo_matrix(
            (matrix.values.numpy(), matrix.indices.numpy().T),
            shape=tuple(matrix.shape),
        )

    def block_diag(matrices, *args, **kwargs):
        matrices = [to_scipy(matrix) for matrix in matrices]
        return sparse.block_diag(matrices, *args, **kwargs)

    return Instead(sparse, block_diag=block_diag)


# Models and layers.


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


CONV = "layers.convolutional"
POOL = "layers.pooling"
MODELS = (
    "models.gcn:GCN.call",
    "models.general_gnn:GeneralGNN.call",
    "models.general_gnn:MLP.call",
)

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
    Patch(
        "loaders",
        "Keras 3 takes no iterators",
        keras3,
        {"data.loaders:Loader.load": load_as_generator},
        {"data.loaders:BatchLoader.load": load_as_dataset},
    ),
    Patch(
        "sparse tensors",
        "SingleLoader cannot join what AdjToSpTensor makes",
        keras3,
        {"data.utils:sp": block_diag_of_tensors},
    ),
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
