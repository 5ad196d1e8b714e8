"""The file format of packed models: a header, arrays, and a checksum.

    bytes    content
    8        magic number, `MAGIC`
    4        version of the format, unsigned integer
    4        size of the header in bytes, unsigned integer
    ...      header, JSON in UTF-8, padded with spaces
    ...      arrays, each at a multiple of 8 bytes
    32       SHA-256 of all bytes before it

All numbers are little-endian. `docs/guides/packed-format.md` describes the
header. This module needs only NumPy, because `Predictor` reads files where
TensorFlow is not installed.
"""

import dataclasses
import hashlib
import json
import math
import struct
from typing import Any
from typing import NamedTuple
from typing import Optional

import numpy as np

from keras_qpsbgd import bits as bits_module

MAGIC = b"\x93KQPACK\n"
VERSION = 1
START = struct.Struct("<8sII")
CHECKSUM = hashlib.sha256().digest_size
ALIGNMENT = 8
# NumPy has no bfloat16. Its values are stored as the upper halves of float32.
BFLOAT16 = "bfloat16"
DTYPES = (
    *("float16", "float32", "float64", BFLOAT16, "bool"),
    *("int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)


class InvalidFile(ValueError):
    """Raised if the content of a file is not a valid packed model."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """The description of an array in the header.

    Attributes:
        name: String. Human-readable name.
        layer: String. Path of the layer in the model, see `weights`.
        index: Integer. Position among the layer's own weights.
        dtype: String. The dtype of the variable.
        shape: Tuple of integers.
        bits: Integer from 1 to 4 for a kernel that is stored as levels, else
            `None`.
        axes: Tuple of integers, the axes of a kernel that have a scale for each
            of their entries. `None` for other arrays, and for the kernels of
            binary layers, whose levels are divided by the largest level.
    """

    name: str
    layer: str
    index: int
    dtype: str
    shape: tuple[int, ...]
    bits: Optional[int] = None
    axes: Optional[tuple[int, ...]] = None

    @property
    def is_binary(self) -> bool:
        """Whether the array is the kernel of a binary layer."""
        return self.bits is not None and self.axes is None

    @property
    def scales_shape(self) -> tuple[int, ...]:
        """The shape of the scales, with 1 for each axis without scales."""
        return tuple(
            size if axis in (self.axes or ()) else 1
            for axis, size in enumerate(self.shape)
        )

    @property
    def scale_bytes(self) -> int:
        """The size of the scales, which come before the bits."""
        return 0 if self.axes is None else 4 * math.prod(self.scales_shape)

    @property
    def num_bytes(self) -> int:
        """The size of the data."""
        count = math.prod(self.shape)
        if self.bits is not None:
            size = bits_module.num_bytes(count, self.bits)
            return self.scale_bytes + size
        size = 2 if self.dtype == BFLOAT16 else np.dtype(self.dtype).itemsize
        return count * size


class Weight(NamedTuple):
    """The value of a weight.

    Attributes:
        array: Array. The levels of a binary kernel.
        bits: Integer, or `None` if it is not a binary kernel.
        variable: The variable, if it comes from a Keras model.
    """

    array: np.ndarray
    bits: Optional[int]
    variable: Any = None


def array_bytes(
    array: np.ndarray, entry: Entry, scales: Optional[np.ndarray] = None
) -> bytes:
    """Returns the data of an array. For a kernel with bits, pass its levels."""
    if entry.bits is not None:
        start = b"" if scales is None else scales.astype("<f4").tobytes()
        return start + bits_module.pack_levels(array, entry.bits)
    array = np.ascontiguousarray(array)
    if entry.dtype == BFLOAT16:
        array = array.view(np.uint16)
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def array_from(data: bytes, entry: Entry) -> np.ndarray:
    """Returns an array from its data. Levels become weights.

    A bfloat16 array is returned as float32.

    Raises:
        InvalidFile: If a scale is not finite.
    """
    if entry.bits is not None:
        array = levels_from(data, entry).astype(np.float32)
        if entry.axes is None:
            array *= np.float32(1 / bits_module.max_level(entry.bits))
        else:
            count = math.prod(entry.scales_shape)
            scales = np.frombuffer(data, "<f4", count)
            if not np.isfinite(scales).all():
                raise InvalidFile(f"a scale of {entry.name!r} is not finite")
            array *= scales.reshape(entry.scales_shape)
    elif entry.dtype == BFLOAT16:
        halves = np.frombuffer(data, "<u2").astype(np.uint32)
        array = (halves << 16).view(np.float32)
    else:
        dtype = np.dtype(entry.dtype).newbyteorder("<")
        array = np.frombuffer(data, dtype).astype(entry.dtype)
    return array.reshape(entry.shape)


def levels_from(data: bytes, entry: Entry) -> np.ndarray:
    """Returns the levels of a kernel from its data, as int8."""
    count, packed = math.prod(entry.shape), data[entry.scale_bytes :]
    levels = bits_module.unpack_levels(packed, count, entry.bits)
    return levels.reshape(entry.shape)


def encode(
    fields: dict[str, Any], arrays: list[tuple[Entry, int, bytes]]
) -> bytes:
    """Returns the content of a file.

    Args:
        fields: Dictionary. The header, without the key `"arrays"`.
        arrays: List of tuples `(entry, identity, data)`. Entries with the same
            identity share their data.
    """
    places: dict[int, int] = {}
    data, described = bytearray(), []
    for entry, identity, own in arrays:
        if not entry.num_bytes:
            places[identity] = 0
        if identity not in places:
            data.extend(bytes(-len(data) % ALIGNMENT))
            places[identity] = len(data)
            data.extend(own)
        fields_of = dataclasses.asdict(entry).items()
        found = {key: value for key, value in fields_of if value is not None}
        described.append({**found, "offset": places[identity]})
    text = json.dumps({**fields, "arrays": described}, separators=(",", ":"))
    header = text.encode()
    header += b" " * (-(START.size + len(header)) % ALIGNMENT)
    content = START.pack(MAGIC, VERSION, len(header)) + header + bytes(data)
    return content + hashlib.sha256(content).digest()


def decode(content: bytes) -> tuple[dict[str, Any], list[tuple[Entry, bytes]]]:
    """Checks the content of a file and returns its header and arrays.

    Returns:
        A tuple `(header, arrays)`. `arrays` has tuples `(entry, data)`.

    Raises:
        InvalidFile: If the content is not a valid file.
    """
    if content[: len(MAGIC)] != MAGIC[: len(content)] or not content:
        raise InvalidFile("it is another kind of file")
    if len(content) < START.size + CHECKSUM:
        raise InvalidFile("it is truncated")
    _, version, size = START.unpack_from(content)
    if version > VERSION:
        raise InvalidFile(
            f"it has version {version} of the format, but this version of "
            f"keras_qpsbgd reads versions up to {VERSION}. Update keras_qpsbgd"
        )
    body, checksum = content[:-CHECKSUM], content[-CHECKSUM:]
    if hashlib.sha256(body).digest() != checksum:
        raise InvalidFile("its checksum is wrong. It is truncated or altered")
    if version < 1 or START.size + size > len(body):
        raise InvalidFile("its version or the size of its header is wrong")
    try:
        header = json.loads(body[START.size : START.size + size].decode())
    except (ValueError, RecursionError) as error:
        raise InvalidFile("its header is not JSON") from error
    if not isinstance(header, dict) or not isinstance(
        header.get("arrays"), list
    ):
        raise InvalidFile("its header has no list of arrays")
    return header, _arrays(header["arrays"], body[START.size + size :])


def _arrays(described, data):
    """Returns the arrays, which must fill the data without gaps."""
    arrays, end, known = [], 0, {}
    for found in described:
        entry, offset = _entry(found)
        size = entry.num_bytes
        if (
            size
            and known.get(offset, size) != size
            or offset + size > len(data)
        ):
            raise InvalidFile(
                f"the position of its array {entry.name!r} is wrong"
            )
        if size and offset not in known:
            if offset != end + -end % ALIGNMENT:
                raise InvalidFile(
                    f"the position of its array {entry.name!r} is wrong"
                )
            known[offset], end = size, offset + size
        arrays.append((entry, data[offset : offset + size]))
    if end != len(data):
        raise InvalidFile("the size of its arrays is wrong")
    return arrays


def _entry(found):
    fields = {field.name for field in dataclasses.fields(Entry)}
    if not isinstance(found, dict) or not (
        fields - {"bits", "axes"} <= found.keys() - {"offset"} <= fields
        and all(isinstance(found[key], str) for key in ("name", "layer"))
        and found["dtype"] in DTYPES
        and isinstance(found["shape"], list)
        and all(_is_size(n) for n in found["shape"])
        and _is_size(found["index"])
        and _is_size(found.get("offset"))
    ):
        raise InvalidFile("the description of an array is wrong")
    if "bits" in found and not (
        _is_size(found["bits"])
        and 1 <= found["bits"] <= bits_module.MAX_BITS
        and found["dtype"].endswith(("float16", "float32", "float64"))
    ):
        raise InvalidFile("the number of bits of an array is wrong")
    values = {**found, "shape": tuple(found["shape"])}
    if "axes" in found:
        if not _are_axes(found):
            raise InvalidFile("the axes of an array are wrong")
        values["axes"] = tuple(found["axes"])
    offset = values.pop("offset")
    return Entry(**values), offset


def _are_axes(found):
    """Returns whether the axes of a description are sorted and exist."""
    axes = found["axes"]
    return (
        "bits" in found
        and found["dtype"] == "float32"
        and isinstance(axes, list)
        and all(_is_size(axis) for axis in axes)
        and axes == sorted(set(axes))
        and max(axes, default=-1) < len(found["shape"])
    )


def _is_size(value):
    # `True` is an integer in Python, but not in JSON.
    return type(value) is int and 0 <= value < 2**63
