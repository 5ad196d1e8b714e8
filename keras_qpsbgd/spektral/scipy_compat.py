"""Patches for names that SciPy and NumPy have removed since Spektral 1.3.

They are needed under Keras 3 and legacy Keras. SciPy and NumPy themselves are
not modified: only the Spektral modules that use a removed name get a proxy of
the library.
"""

import inspect

import numpy as np

from keras_qpsbgd.spektral.patches import ModuleProxy
from keras_qpsbgd.spektral.patches import Patch


def find_rejects_half():
    from scipy import sparse

    try:
        sparse.find(np.ones((1, 1), "float16"))
    except ValueError:
        return True
    return False


def with_find(sparse):
    """Adds a `find` that accepts float16 matrices, which SciPy now rejects."""

    def find(matrix):
        if getattr(matrix, "dtype", None) != np.float16:
            return sparse.find(matrix)
        row, column, values = sparse.find(matrix.astype("float32"))
        return row, column, values.astype("float16")

    return ModuleProxy(sparse, find=find)


def eigh_lacks_eigvals():
    from scipy import linalg

    return "eigvals" not in inspect.signature(linalg.eigh).parameters


def with_eigvals(linalg):
    def eigh(a, eigvals=None, **kwargs):
        return linalg.eigh(a, subset_by_index=eigvals, **kwargs)

    return ModuleProxy(linalg, eigh=eigh)


def sparse_lacks_dense_attribute():
    from scipy import sparse

    return not hasattr(sparse.csr_matrix, "A")


def read_dense(read_file):
    """Reads Planetoid files as dense arrays, so that `.A` is not needed."""

    def read(path, name, suffix):
        content = read_file(path, name, suffix)
        return content.toarray() if hasattr(content, "toarray") else content

    return read


def delaunay_lacks_vertices():
    from scipy import spatial

    return not hasattr(spatial.Delaunay, "vertices")


def with_vertices(delaunay):
    class Delaunay(delaunay):
        vertices = property(lambda self: self.simplices)

    return Delaunay


def numpy_lacks_in1d():
    return not hasattr(np, "in1d")


def with_in1d(numpy):
    def in1d(*args, **kwargs):
        return numpy.isin(*args, **kwargs).ravel()

    return ModuleProxy(numpy, in1d=in1d)


PATCHES = (
    Patch(
        "half",
        "SciPy no longer supports sparse float16 matrices",
        find_rejects_half,
        {"utils.sparse:sp": with_find, "data.utils:sp": with_find},
    ),
    Patch(
        "chebyshev",
        "SciPy removed `eigvals` from `eigh`: ChebConv.preprocess raises",
        eigh_lacks_eigvals,
        {"utils.convolution:linalg": with_eigvals},
    ),
    Patch(
        "citation",
        "SciPy removed `.A` of matrices: Cora, Citeseer, Pubmed do not load",
        sparse_lacks_dense_attribute,
        {"datasets.citation:_read_file": read_dense},
    ),
    Patch(
        "delaunay",
        "SciPy renamed `vertices` to `simplices`",
        delaunay_lacks_vertices,
        {"transforms.delaunay:DelaunaySP": with_vertices},
    ),
    Patch(
        "labels",
        "NumPy removed `in1d`: label_to_one_hot raises",
        numpy_lacks_in1d,
        {"utils.misc:np": with_in1d},
    ),
)
