"""Reads the pickles in Planetoid files without executing code from them.

In general, a pickle can call any function. This reader accepts only the few
globals that arrays, sparse matrices and adjacency lists consist of. In place of
the NumPy and SciPy globals, it uses records that store their arguments. The
arrays are created from the records after their content was checked. A file
therefore never reaches the unpickling code of these packages, which trusts its
input, nor their classes, which a pickle could modify for the whole process.
Built-in types that could create large objects from a small file are replaced in
the same way.

Before unpickling, all opcodes are checked. Only the opcodes that occur in such
files are accepted, and only if time and memory stay proportional to the size of
the file.

The reader also works with the deprecated module names in files that were
written by Python 2.
"""

import io
import math
import pickle
import pickletools
import re

import numpy as np

from keras_qpsbgd.datasets.files import DamagedFile
from keras_qpsbgd.datasets.graph_data import import_sparse

# Opcodes that push a new object other than a tuple.
_MAKERS = frozenset(
    """
    NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4
    FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING
    UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8
    SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8
    EMPTY_LIST LIST EMPTY_DICT DICT
    GLOBAL STACK_GLOBAL REDUCE NEWOBJ
    """.split()
)
_TUPLES = frozenset(["TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"])
_PUTS = frozenset(["PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"])
_GETS = frozenset(["GET", "BINGET", "LONG_BINGET"])
_OTHERS = frozenset(
    """
    PROTO FRAME STOP MARK EMPTY_TUPLE
    APPEND APPENDS SETITEM SETITEMS BUILD
    """.split()
)
_OPCODES = _MAKERS | _TUPLES | _PUTS | _GETS | _OTHERS
# A matrix takes about 20.
_MAX_TUPLES = 1000
_MAX_AXES = 32


class _Sealed(type):
    """Metaclass of classes whose attributes a pickle cannot set."""

    def __setattr__(cls, name, value):
        raise pickle.UnpicklingError(f"attribute {name!r} of a class")


class _Record(metaclass=_Sealed):
    """The constructor arguments and the state of an object in a pickle."""

    __slots__ = ("arguments", "state")

    def __new__(cls, *arguments):
        record = super().__new__(cls)
        record.arguments = arguments
        record.state = None
        return record

    def __setstate__(self, state):
        self.state = state


class _Matrix(_Record):
    __slots__ = ()


class _Array(_Record):
    __slots__ = ()


class _ArrayFromBuffer(_Record):
    __slots__ = ()


class _Dtype(_Record):
    __slots__ = ()


class _ArrayClass(metaclass=_Sealed):
    """Placeholder for `numpy.ndarray`, an argument of `_reconstruct`."""


class _ListClass(metaclass=_Sealed):
    """Placeholder for `list`, the factory of a `defaultdict`."""


class _Dict(metaclass=_Sealed):
    """Placeholder for `defaultdict`, whose entries follow in the pickle."""

    def __new__(cls, factory):
        return {}


class _Bytes(_Record):
    """Bytes, which Python 3 writes as text in protocols 0 to 2."""

    __slots__ = ()


# The module names in files written by Python 2, and the current ones.
GLOBALS = {
    "scipy.sparse.csr.csr_matrix": _Matrix,
    "scipy.sparse._csr.csr_matrix": _Matrix,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.core.numeric._frombuffer": _ArrayFromBuffer,
    "numpy._core.numeric._frombuffer": _ArrayFromBuffer,
    "numpy.ndarray": _ArrayClass,
    "numpy.dtype": _Dtype,
    "collections.defaultdict": _Dict,
    "__builtin__.list": _ListClass,
    "builtins.list": _ListClass,
    "_codecs.encode": _Bytes,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, content, path):
        super().__init__(io.BytesIO(content), encoding="latin1")
        self.path = path

    def find_class(self, module, name):
        found = GLOBALS.get(f"{module}.{name}")
        if found is None:
            raise DamagedFile(
                f"{self.path} was not read, because it is a pickle that "
                "imports a global that could execute arbitrary code. Only "
                "arrays, `csr_matrix` and lists of Python integers are "
                f"allowed. Received: {f'{module}.{name}'[:200]}"
            )
        return found


def load(content, path):
    """Returns the object in a pickle.

    Args:
        content: Bytes. The pickle.
        path: Path of the file, for error messages.

    Returns:
        A NumPy array, a `scipy.sparse.csr_matrix`, or another object that
        consists of numbers, strings and containers. The elements of containers
        are not checked.

    Raises:
        DamagedFile: If the content is not a pickle, imports other globals,
            needs more time or memory than such data, or has inconsistent
            arrays.
    """
    try:
        _check_opcodes(content)
        found = _Unpickler(content, path).load()
        if isinstance(found, _Matrix):
            return _matrix(found)
        if isinstance(found, _Record):
            return _array(found)
        return found
    except DamagedFile:
        raise
    # Any malformed pickle raises one of these.
    except (
        pickle.UnpicklingError,
        ArithmeticError,
        AttributeError,
        EOFError,
        LookupError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise DamagedFile(
            f"{path} must be a pickle of an array, a `csr_matrix` or adjacency "
            "lists. Received: "
            f"{type(error).__name__}: {str(error)[:200]}"
        ) from error


def _check_opcodes(content):
    """Raises `UnpicklingError` for opcodes that such data does not need.

    - Extensions and persistent objects would bypass `find_class`.
    - Python allocates a memo table as long as the largest memo index, so one
      wrong byte could allocate gigabytes.
    - Hashing a tuple as a key hashes everything in it. Tuples nested a million
      levels deep crash the process. Tuples that repeat the same tuple many
      times, at several levels, take years to hash.
    - Multiplying integers with a million digits also takes years.
    """
    memo = {}
    num_tuples = 0
    before = None
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name not in _OPCODES:
            raise pickle.UnpicklingError(f"opcode {name}")
        if isinstance(argument, int) and argument.bit_length() > 64:
            bits = argument.bit_length()
            raise pickle.UnpicklingError(f"an integer of {bits} bits")
        num_tuples += name in _TUPLES
        if num_tuples > _MAX_TUPLES:
            raise pickle.UnpicklingError(f"more than {_MAX_TUPLES} tuples")
        if name in _PUTS:
            index = len(memo) if name == "MEMOIZE" else argument
            if index > len(content):
                raise pickle.UnpicklingError(f"memo index {index}")
            memo[index] = before in _MAKERS
        if name in _GETS and not memo.get(argument, False):
            raise pickle.UnpicklingError(
                f"memo index {argument}, which cannot be reused"
            )
        before = name


def _array(record):
    """Returns the array of a record. Only booleans and real numbers."""
    if isinstance(record, _ArrayFromBuffer):
        # For arrays in neither C nor Fortran order, NumPy appends an axis
        # order. `reshape` below rejects the `order` of such arrays.
        raw, dtype, shape, order, *_ = record.arguments
    elif isinstance(record, _Array):
        _, shape, dtype, fortran, raw = record.state
        order = "F" if fortran else "C"
    else:
        raise TypeError(f"{type(record).__name__} instead of an array")
    if not isinstance(dtype, _Dtype):
        raise TypeError(f"{type(dtype).__name__} instead of a dtype")
    kind, byte_order = dtype.arguments[0], dtype.state[1]
    # Excludes object and structured arrays.
    if not re.fullmatch("[biuf][1248]", kind) or byte_order not in "<>=|":
        raise ValueError(f"an array of dtype {byte_order}{kind}")
    dtype = np.dtype(byte_order + kind)
    if isinstance(raw, _Bytes):
        raw, encoding = raw.arguments
        if encoding != "latin1":
            raise ValueError(f"bytes encoded in {encoding!r}")
    if isinstance(raw, str):
        raw = raw.encode("latin1")
    # In Python, a string times an integer is a long string.
    if len(shape) > _MAX_AXES or any(type(size) is not int for size in shape):
        raise TypeError(
            f"a shape that is not a tuple of at most {_MAX_AXES} integers"
        )
    if math.prod(shape) * dtype.itemsize != len(raw) or min(shape) < 0:
        raise ValueError(f"{len(raw)} bytes for an array of shape {shape}")
    # A copy that owns its data, in native byte order.
    array = np.frombuffer(raw, dtype).reshape(shape, order=order)
    return array.astype(dtype.newbyteorder("="))


def _matrix(record):
    sparse = import_sparse()
    data, indices, indptr = (
        _array(record.state[key]) for key in ("data", "indices", "indptr")
    )
    if indices.dtype.kind != "i" or indptr.dtype.kind != "i":
        raise TypeError(f"indices of dtype {indices.dtype}, {indptr.dtype}")
    rows, columns = record.state["_shape"]
    # Compiled code uses the indices without bounds checks, and SciPy's own
    # check is incomplete: it stops if the last pointer is 0 or less.
    if (
        any(array.ndim != 1 for array in (data, indices, indptr))
        or len(indptr) != rows + 1
        or indptr[0] != 0
        or (indptr[1:] < indptr[:-1]).any()
        or not indptr[-1] == len(indices) == len(data)
        or len(indices) > 0
        and not 0 <= indices.min() <= indices.max() < columns
    ):
        raise ValueError(
            f"a `csr_matrix` of shape {(rows, columns)} with inconsistent "
            "arrays"
        )
    matrix = sparse.csr_matrix((data, indices, indptr), (rows, columns))
    matrix.check_format(full_check=True)
    return matrix
