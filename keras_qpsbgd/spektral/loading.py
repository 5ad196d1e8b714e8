"""Patches for loaders. Keras 3 accepts generators but not other iterators."""

import copy

import numpy as np
import tensorflow as tf

from keras_qpsbgd.spektral.patches import ModuleProxy
from keras_qpsbgd.spektral.patches import Patch
from keras_qpsbgd.spektral.patches import keras3


def load_as_generator(_):
    def load(self):
        """Returns a generator of batches for `fit`, `evaluate`, `predict`."""
        return (as_tuples(batch) for batch in self)

    return load


def load_as_dataset(_):
    """Replaces `load` for padded batches.

    Keras infers the shapes of a generator from its first batches, but every
    batch is padded to a different length.
    """

    def load(self):
        """Returns a `tf.data.Dataset` of batches."""
        return tf.data.Dataset.from_generator(
            lambda: (as_tuples(batch) for batch in self),
            output_signature=batch_signature(self),
        )

    return load


def as_tuples(batch):
    """Converts lists to tuples, as Keras 3 requires for (inputs, labels)."""
    if isinstance(batch, (list, tuple)):
        return tuple(as_tuples(part) for part in batch)
    return batch


def batch_signature(loader):
    """Returns the signature of the batches of a `BatchLoader`."""
    # A copy, because `tf_signature` modifies the loader.
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
    """Lets loaders join graphs after `AdjToSpTensor`."""

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

    return ModuleProxy(sparse, block_diag=block_diag)


PATCHES = (
    Patch(
        "loaders",
        "Keras 3 does not accept iterators",
        keras3,
        {"data.loaders:Loader.load": load_as_generator},
        {"data.loaders:BatchLoader.load": load_as_dataset},
    ),
    Patch(
        "sparse tensors",
        "SingleLoader cannot join the tensors of AdjToSpTensor",
        keras3,
        {"data.utils:sp": block_diag_of_tensors},
    ),
)
