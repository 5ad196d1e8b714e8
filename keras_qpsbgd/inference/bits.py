"""Arrays of +1 and -1, with one bit per entry.

A bit 1 stands for +1 and a bit 0 for -1. The entries of the last axis are
stored in 64-bit words, the first one in the lowest bit. Their number of words
is even, because the C kernel reads 128 bits at a time. Spare bits are 0.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Bits:
    """An array of +1 and -1.

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


def pack(mask):
    """Returns the `Bits` with +1 where a Boolean array is true."""
    size = mask.shape[-1]
    packed = np.packbits(mask, axis=-1, bitorder="little")
    num_bytes = -(-size // 128) * 16
    if packed.shape[-1] != num_bytes:
        padded = np.zeros((*packed.shape[:-1], num_bytes), np.uint8)
        padded[..., : packed.shape[-1]] = packed
        packed = padded
    packed = np.ascontiguousarray(packed)
    return Bits(packed.view("<u8").astype(np.uint64, copy=False), size)


def unpack(bits):
    """Returns the entries of a `Bits` as a Boolean array."""
    words = np.ascontiguousarray(bits.words)
    packed = words.astype("<u8", copy=False).view(np.uint8)
    found = np.unpackbits(packed, axis=-1, count=bits.size, bitorder="little")
    return found.view(bool)


def to_floats(value):
    """Returns an array or `Bits` as an array of float32."""
    if isinstance(value, Bits):
        return np.where(unpack(value), np.float32(1), np.float32(-1))
    return value
