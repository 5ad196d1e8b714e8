"""Fixes for loaders, and for names that SciPy and NumPy have removed.

Keras 3 accepts generators but not other iterators. The names of SciPy and NumPy
are missing under Keras 3 and legacy Keras. The libraries themselves are not
modified: only the Spektral modules that use a removed name get a proxy.
"""

import copy

import numpy as np
import tensorflow as tf

from keras_qpsbgd.spektral.fixes import Fix
from keras_qpsbgd.spektral.fixes import ModuleProxy


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
    # Use a copy, because `tf_signature` modifies the loader.
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


# SciPy and NumPy


def with_find(sparse):
    """Adds a `find` that accepts float16 matrices, which SciPy now rejects."""

    def find(matrix):
        if getattr(matrix, "dtype", None) != np.float16:
            return sparse.find(matrix)
        row, column, values = sparse.find(matrix.astype("float32"))
        return row, column, values.astype("float16")

    return ModuleProxy(sparse, find=find)


def with_eigvals(linalg):
    def eigh(a, eigvals=None, **kwargs):
        return linalg.eigh(a, subset_by_index=eigvals, **kwargs)

    return ModuleProxy(linalg, eigh=eigh)


def read_dense(read_file):
    """Reads Planetoid files as dense arrays, so that `.A` is not needed."""

    def read(path, name, suffix):
        content = read_file(path, name, suffix)
        return content.toarray() if hasattr(content, "toarray") else content

    return read


def with_vertices(delaunay):
    class Delaunay(delaunay):
        vertices = property(lambda self: self.simplices)

    return Delaunay


def with_in1d(numpy):
    def in1d(*args, **kwargs):
        return numpy.isin(*args, **kwargs).ravel()

    return ModuleProxy(numpy, in1d=in1d)


FIXES = (
    Fix(
        "loaders",
        "Keras 3 does not accept iterators",
        {"data.loaders:Loader.load": load_as_generator},
        {"data.loaders:BatchLoader.load": load_as_dataset},
    ),
    Fix(
        "sparse tensors",
        "SingleLoader cannot join the tensors of AdjToSpTensor",
        {"data.utils:sp": block_diag_of_tensors},
    ),
    Fix(
        "half",
        "SciPy no longer supports sparse float16 matrices",
        {"utils.sparse:sp": with_find, "data.utils:sp": with_find},
        needs_keras_3=False,
    ),
    Fix(
        "chebyshev",
        "SciPy removed `eigvals` from `eigh`: ChebConv.preprocess raises",
        {"utils.convolution:linalg": with_eigvals},
        needs_keras_3=False,
    ),
    Fix(
        "citation",
        "SciPy removed `.A` of matrices: Cora, Citeseer, Pubmed do not load",
        {"datasets.citation:_read_file": read_dense},
        needs_keras_3=False,
    ),
    Fix(
        "delaunay",
        "SciPy renamed `vertices` to `simplices`",
        {"transforms.delaunay:DelaunaySP": with_vertices},
        needs_keras_3=False,
    ),
    Fix(
        "labels",
        "NumPy removed `in1d`: label_to_one_hot raises",
        {"utils.misc:np": with_in1d},
        needs_keras_3=False,
    ),
)
