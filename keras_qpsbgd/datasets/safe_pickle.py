"""Reads the pickles of Planetoid files without running what they say.

A pickle may name any function and have it called. Here it may name the few
globals that arrays, sparse matrices and adjacency lists are made of. Those of
NumPy and SciPy are not the real ones but records that keep what they are given;
arrays are made from the records afterwards, when the content was checked. So a
file reaches neither the unpickling of these packages, which trusts its input,
nor their classes, which a pickle could change for the whole process. The same
holds for the types of Python that could make much out of little.

Before that, all opcodes are looked at. Only those are let through that such
files are written with, and only where time and memory stay in proportion to the
size of the file.

This also makes the files independent of the module names, deprecated by now,
under which Python 2 wrote them.
"""

import io
import math
import pickle
import pickletools
import re

import numpy as np

from keras_qpsbgd.datasets.files import DamagedFile
from keras_qpsbgd.datasets.graph_data import import_sparse

# Opcodes after which an object is on the stack that is new and no tuple.
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
_MOST_TUPLES = 1000
_MOST_AXES = 32


class _Sealed(type):
    """A class on which a pickle cannot set attributes."""

    def __setattr__(cls, name, value):
        raise pickle.UnpicklingError(f"attribute {name!r} of a class")


class _Record(metaclass=_Sealed):
    """What a pickle gave to a constructor and as state."""

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
    """Stands for `numpy.ndarray`, an argument of its constructor."""


class _ListClass(metaclass=_Sealed):
    """Stands for `list`, which a `defaultdict` makes."""


class _Dict(metaclass=_Sealed):
    """Stands for `defaultdict`, of which the entries follow."""

    def __new__(cls, factory):
        return {}


class _Bytes(_Record):
    """Bytes, which Python 3 writes as text in protocols below 3."""

    __slots__ = ()


# Python 2 wrote the first of each group, today's packages write the others.
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
                f"{self.path} was not read, since it is a pickle that names a "
                "global which graph data do not need and which could run "
                "anything. Write arrays, `csr_matrix` and lists of Python "
                f"integers only. Received: {f'{module}.{name}'[:200]}"
            )
        return found


def load(content, path):
    """The object in a pickle.

    Args:
        content: the pickle, bytes.
        path: where it came from, for errors.

    Returns:
        A NumPy array, a `scipy.sparse.csr_matrix`, or what the pickle holds
        otherwise, made of numbers, strings and containers. Containers are not
        looked into.

    Raises:
        DamagedFile: it is no pickle, names another global, asks for more time
            or memory than data need, or its arrays contradict themselves.
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
    # Whatever nonsense a pickle holds, it shows as one of these.
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
            f"{path} must be a pickle of an array, of a `csr_matrix` or of "
            "adjacency lists. Received: "
            f"{type(error).__name__}: {str(error)[:200]}"
        ) from error


def _check_opcodes(content):
    """Raises `UnpicklingError` where a pickle is not written as data are.

    - Extensions and persistent objects would come past `find_class`.
    - Python makes a table as long as the highest number under which a pickle
      remembers an object: one wrong byte would ask for gigabytes.
    - A tuple as a key is hashed with all that is in it. Tuples in tuples, a
      million deep, end the process; the same one in many places, again and
      again, takes years.
    - Products of integers of a million digits take years, too.
    """
    remembered = {}
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
        if num_tuples > _MOST_TUPLES:
            raise pickle.UnpicklingError(f"more than {_MOST_TUPLES} tuples")
        if name in _PUTS:
            number = len(remembered) if name == "MEMOIZE" else argument
            if number > len(content):
                raise pickle.UnpicklingError(f"object number {number}")
            remembered[number] = before in _MAKERS
        if name in _GETS and not remembered.get(argument, False):
            raise pickle.UnpicklingError(
                f"object number {argument}, of which there is none to repeat"
            )
        before = name


def _array(record):
    """The array of a record, with real numbers only."""
    if isinstance(record, _ArrayFromBuffer):
        # NumPy adds an order of axes where they are neither in C's nor in
        # Fortran's order, which `reshape` below refuses.
        raw, dtype, shape, order, *_ = record.arguments
    elif isinstance(record, _Array):
        _, shape, dtype, fortran, raw = record.state
        order = "F" if fortran else "C"
    else:
        raise TypeError(f"{type(record).__name__} instead of an array")
    if not isinstance(dtype, _Dtype):
        raise TypeError(f"{type(dtype).__name__} instead of a dtype")
    kind, byte_order = dtype.arguments[0], dtype.state[1]
    # No objects, no structures.
    if not re.fullmatch("[biuf][1248]", kind) or byte_order not in "<>=|":
        raise ValueError(f"an array of dtype {byte_order}{kind}")
    dtype = np.dtype(byte_order + kind)
    if isinstance(raw, _Bytes):
        raw, encoding = raw.arguments
        if encoding != "latin1":
            raise ValueError(f"bytes encoded in {encoding!r}")
    if isinstance(raw, str):
        raw = raw.encode("latin1")
    # The product of a text and a number is a long text.
    if len(shape) > _MOST_AXES or any(type(size) is not int for size in shape):
        raise TypeError(f"a shape that is {type(shape).__name__} of others")
    if math.prod(shape) * dtype.itemsize != len(raw) or min(shape) < 0:
        raise ValueError(f"{len(raw)} bytes for an array of shape {shape}")
    # A copy that belongs to us, in the byte order of the machine.
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
    # Compiled code follows the indices without looking, and SciPy's own check
    # leaves gaps: it stops where the last pointer is 0 or less.
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
            f"a `csr_matrix` of shape {(rows, columns)} whose arrays "
            "contradict each other"
        )
    matrix = sparse.csr_matrix((data, indices, indptr), (rows, columns))
    matrix.check_format(full_check=True)
    return matrix
