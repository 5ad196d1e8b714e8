"""Products with binary kernels, in C and in NumPy.

A kernel with `b` bits per weight has the levels `q`, odd integers from `-L` to
`L` with `L = 2**b - 1`. It is the sum of `b` kernels of +1 and -1 with the
factors 1, 2, 4 and 8, and its product is the sum of theirs.

- If the inputs are +1 and -1, the product of a row is the number of inputs
  minus twice the number of bits that differ from those of the kernel.
- Otherwise the C kernel adds entries of tables (see `_sign_product.h`).
"""

import concurrent.futures
import importlib
from typing import Any

import numpy as np

from keras_qpsbgd import bits
from keras_qpsbgd.bits import Signs

try:
    _kernels: Any = importlib.import_module("keras_qpsbgd.inference._kernels")
except ImportError:  # built without a compiler
    _kernels = None

KERNELS = ("c", "numpy")
# Number of words that NumPy compares at a time.
BLOCK = 2**18
# The 8 signs of each byte.
_SIGNS = np.unpackbits(
    np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"
)
SIGNS = 2 * _SIGNS.astype(np.float32) - 1


def available():
    """Returns the names of the implementations, the fastest one first."""
    return KERNELS if _kernels is not None else ("numpy",)


class Workers:
    """Divides rows among threads.

    Args:
        threads: Positive integer.
    """

    def __init__(self, threads):
        self.threads = threads
        self._pool = None
        if threads > 1:
            # The calling thread also works.
            self._pool = concurrent.futures.ThreadPoolExecutor(threads - 1)

    def run(self, function, rows):
        """Calls `function(start, stop)` for ranges that cover all rows.

        The C kernel computes 4 rows at a time, so the ranges are multiples of
        4.
        """
        share = -(-rows // (4 * self.threads)) * 4
        if self._pool is None or rows <= share:
            function(0, rows)
            return
        futures = [
            self._pool.submit(function, start, min(start + share, rows))
            for start in range(share, rows, share)
        ]
        try:
            function(0, share)
        finally:
            concurrent.futures.wait(futures)
        for future in futures:
            future.result()


class _BinaryProduct:
    """Base class of products with a kernel of one or more bits."""

    inputs: int
    outputs: int
    arrays: list[np.ndarray]  # one kernel of +1 and -1 per bit
    _call: Any  # computes the product with one of them

    def _sum(self, rows, dtype, workers):
        """Returns the sum of the products with the kernels of all bits."""
        total = None
        for plane, kernel in enumerate(self.arrays):
            out = np.empty((len(rows), self.outputs), dtype)

            def part(start, stop, kernel=kernel, out=out):
                self._call(
                    rows[start:stop], kernel, out[start:stop], self.inputs
                )

            workers.run(part, len(rows))
            total = out if total is None else total + dtype(2**plane) * out
        return total


class XnorProduct(_BinaryProduct):
    """Products of `Signs` with a binary kernel, which are integers.

    Args:
        planes: Boolean array of shape `(bits, inputs, outputs)`.
        kernels: `"c"` or `"numpy"`.
        pixels: Integer. Number of parts of a row that are packed separately,
            such as the pixels of a patch. Defaults to `1`.
    """

    name = "XNOR and popcount"
    takes_signs = True

    def __init__(self, planes, kernels, pixels=1):
        self.inputs, self.outputs = planes[0].shape
        self._call = _xnor_c if kernels == "c" else _xnor_numpy
        self.arrays = []
        for plane in planes:
            rows = plane.T.reshape(self.outputs, pixels, -1)
            words = bits.pack_signs(rows).words
            self.arrays.append(words.reshape(self.outputs, -1))

    def __call__(self, value, workers):
        """Returns the int32 products, for `Signs` of shape `(..., inputs)`."""
        words = np.ascontiguousarray(value.words)
        words = words.reshape(-1, words.shape[-1])
        total = self._sum(words, np.int32, workers)
        return total.reshape(*value.shape[:-1], self.outputs)


class SignProduct(_BinaryProduct):
    """Products of real rows with a binary kernel.

    Args:
        planes: Boolean array of shape `(bits, inputs, outputs)`.
        kernels: `"c"` or `"numpy"`.
    """

    name = "sums of signed inputs"
    takes_signs = False

    def __init__(self, planes, kernels):
        self.inputs, self.outputs = planes[0].shape
        self._call = _sign_c if kernels == "c" else _sign_numpy
        self.arrays = [_blocks(plane) for plane in planes]

    def __call__(self, value, workers):
        """Returns the float32 products of an array `(..., inputs)`."""
        value = np.ascontiguousarray(value, np.float32)
        x = value.reshape(-1, self.inputs)
        total = self._sum(x, np.float32, workers)
        return total.reshape(*value.shape[:-1], self.outputs)


class RealProduct:
    """Products with a real kernel.

    Args:
        kernel: Array of shape `(inputs, outputs)`.
    """

    name = "NumPy"
    takes_signs = False

    def __init__(self, kernel):
        self.inputs, self.outputs = kernel.shape
        self.arrays = [np.ascontiguousarray(kernel, np.float32)]

    def __call__(self, value, workers):
        """Returns the float32 products of an array `(..., inputs)`."""
        del workers  # NumPy has its own threads
        return value @ self.arrays[0]


def _blocks(plane):
    """Returns a kernel as words of 64 inputs, with the shape (words, outputs).

    Outputs that the C kernel reads one after the other are adjacent.
    """
    inputs, outputs = plane.shape
    padded = np.zeros((-(-inputs // 64) * 64, outputs), np.uint8)
    padded[:inputs] = plane
    packed = np.packbits(
        padded.reshape(-1, 64, outputs), axis=1, bitorder="little"
    )
    words = np.ascontiguousarray(packed.transpose(0, 2, 1)).view("<u8")
    return words[..., 0].astype(np.uint64)


def _sign_c(x, kernel, out, inputs):
    _kernels.sign_product(x, kernel, out, len(x), inputs, out.shape[1])


def _sign_numpy(x, kernel, out, inputs):
    del inputs
    out[:] = 0
    packed = kernel.astype("<u8", copy=False)[..., None].view(np.uint8)
    for block, rows in enumerate(packed):
        signs = SIGNS[rows].reshape(len(rows), 64)
        part = x[:, 64 * block : 64 * block + 64]
        out += part @ signs[:, : part.shape[1]].T


def _xnor_c(words, kernel, out, inputs):
    _kernels.xnor_product(words, kernel, out, len(words), inputs, out.shape[1])


def _xnor_numpy(words, kernel, out, inputs):
    step = max(1, BLOCK // kernel.size)
    for start in range(0, len(words), step):
        different = words[start : start + step, None] ^ kernel
        counts = _count(different).sum(-1, dtype=np.int32)
        out[start : start + step] = inputs - 2 * counts


def _count(words):
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(words)
    # NumPy 1
    size = 64 * words.shape[-1]
    return bits.unpack_signs(Signs(words, size)).view(np.uint8)
