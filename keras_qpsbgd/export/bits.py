"""Kernels as bits: one to four bits per weight, without gaps.

A level `q` of a weight with `b` bits is an odd integer from `-L` to `L`, where
`L = 2**b - 1`. It is stored as the number `(q + L) / 2`, which has `b` bits,
the lowest bit first. The weights follow each other in C order, and the first
weight is in the lowest bits of the first byte.
"""

import numpy as np

from keras_qpsbgd.ops import max_level


def num_bytes(count, bits):
    """Returns the number of bytes of `count` weights."""
    return -(-count * bits // 8)


def pack(levels, bits):
    """Returns levels as bytes.

    Args:
        levels: Array of odd integers from `-L` to `L`, of any shape and dtype.
        bits: Integer from 1 to 4.

    Returns:
        Bytes.

    Raises:
        ValueError: If an entry is not a level, for example NaN.
    """
    limit = max_level(bits)
    numbers = (np.asarray(levels).ravel() + limit) / 2
    if not np.isin(numbers, np.arange(limit + 1)).all():
        raise ValueError(
            f"`levels` must be odd integers from {-limit} to {limit}. "
            f"Received: levels={levels}"
        )
    numbers = numbers.astype(np.uint8)
    digits = numbers[:, None] >> np.arange(bits, dtype=np.uint8) & 1
    return np.packbits(digits, bitorder="little").tobytes()


def unpack(packed, count, bits):
    """Returns the levels of `count` weights.

    Args:
        packed: Bytes of `pack`.
        count: Integer.
        bits: Integer from 1 to 4.

    Returns:
        An int8 array of shape `(count,)`.
    """
    digits = np.unpackbits(
        np.frombuffer(packed, np.uint8), count=count * bits, bitorder="little"
    )
    powers = 2 ** np.arange(bits, dtype=np.int8)
    numbers = digits.reshape(count, bits).astype(np.int8) @ powers
    return (2 * numbers - max_level(bits)).astype(np.int8)
