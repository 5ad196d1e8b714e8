"""Weights and signs as bits, in NumPy.

A weight of `b` bits has a level `q`, an odd integer from `-L` to `L` with
`L = 2**b - 1`. Its code is the number `(q + L) / 2`, which has `b` bits, the
lowest bit first. With one bit, the code 1 is the weight +1 and the code 0 the
weight -1. Packed files and the kernels of `Predictor` use the same codes:

- `pack_levels` writes codes one after the other, without gaps. Exported files
  have other codes for the same levels, which `pack` writes.
- `planes` returns an array for each bit, and `Signs` stores such an array in
  words.
"""

import dataclasses

import numpy as np

MAX_BITS = 4


def max_level(bits):
    """Returns `L`, the largest level of a weight with `bits` bits."""
    return 2**bits - 1


def planes(levels, bits):
    """Returns the bits of the codes of levels.

    Args:
        levels: Array of levels.
        bits: Integer from 1 to 4.

    Returns:
        Boolean array of shape `(bits, *levels.shape)`, the lowest bit first.
    """
    codes = _codes(levels, bits)
    return np.stack([codes >> plane & 1 for plane in range(bits)]).astype(bool)


def _codes(levels, bits):
    return (np.asarray(levels) + max_level(bits)).astype(np.uint8) // 2


def num_bytes(count, bits):
    """Returns the number of bytes of `count` packed weights."""
    return -(-count * bits // 8)


def pack_levels(levels, bits):
    """Returns levels as bytes.

    The weights follow each other in C order. The first weight is in the lowest
    bits of the first byte.

    Args:
        levels: Array of odd integers from `-L` to `L`, of any shape and dtype.
        bits: Integer from 1 to 4.

    Returns:
        Bytes.

    Raises:
        ValueError: If an entry is not a level, for example NaN.
    """
    limit = max_level(bits)
    flat = np.asarray(levels).ravel()
    if not np.isin(flat, np.arange(-limit, limit + 1, 2)).all():
        raise ValueError(
            f"`levels` must be odd integers from {-limit} to {limit}. "
            f"Received: levels={levels}"
        )
    return pack(_codes(flat, bits), bits).tobytes()


def pack(codes, bits):
    """Returns numbers of `bits` bits as a uint8 array, without gaps.

    The first number is in the lowest bits of the first byte.
    """
    digits = codes.ravel()[:, None] >> np.arange(bits, dtype=np.uint8) & 1
    return np.packbits(digits, bitorder="little")


def unpack_levels(packed, count, bits):
    """Returns the levels of `count` weights.

    Args:
        packed: Bytes of `pack_levels`.
        count: Integer.
        bits: Integer from 1 to 4.

    Returns:
        An int8 array of shape `(count,)`.
    """
    digits = np.unpackbits(
        np.frombuffer(packed, np.uint8), count=count * bits, bitorder="little"
    )
    powers = 2 ** np.arange(bits, dtype=np.int8)
    codes = digits.reshape(count, bits).astype(np.int8) @ powers
    return (2 * codes - max_level(bits)).astype(np.int8)


@dataclasses.dataclass(frozen=True)
class Signs:
    """An array of +1 and -1, with one bit per entry.

    The entries of the last axis are stored in 64-bit words, the first one in
    the lowest bit. Spare bits are 0.

    Attributes:
        words: Array of 64-bit words. All axes except the last one are those of
            the array.
        size: Number of entries of the last axis.
    """

    words: np.ndarray
    size: int

    @property
    def shape(self):
        return (*self.words.shape[:-1], self.size)


def pack_signs(mask):
    """Returns the `Signs` with +1 where a Boolean array is true."""
    size = mask.shape[-1]
    packed = np.packbits(mask, axis=-1, bitorder="little")
    num_bytes = -(-size // 64) * 8
    if packed.shape[-1] != num_bytes:
        padded = np.zeros((*packed.shape[:-1], num_bytes), np.uint8)
        padded[..., : packed.shape[-1]] = packed
        packed = padded
    packed = np.ascontiguousarray(packed)
    return Signs(packed.view("<u8").astype(np.uint64, copy=False), size)


def unpack_signs(signs):
    """Returns a Boolean array that is true where `Signs` are +1."""
    words = np.ascontiguousarray(signs.words)
    packed = words.astype("<u8", copy=False).view(np.uint8)
    found = np.unpackbits(packed, axis=-1, count=signs.size, bitorder="little")
    return found.view(bool)


def to_floats(value):
    """Returns an array or `Signs` as an array of float32."""
    if isinstance(value, Signs):
        return np.where(unpack_signs(value), np.float32(1), np.float32(-1))
    return value
