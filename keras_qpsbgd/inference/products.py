"""Products with kernels, in C and in NumPy.

A kernel with `b` bits per weight has the levels `q`, odd integers from `-L` to
`L` with `L = 2**b - 1`. It is the sum of `b` kernels of +1 and -1 with the
factors 1, 2, 4 and 8, so its product is the sum of their products with the same
factors.

- If the inputs are +1 and -1, the product of a patch is the number of inputs
  minus twice the number of bits that differ from those of the kernel.
- Otherwise the C kernel adds entries of tables (see `_sign_product.h`).

The C kernels read the patches in place. NumPy copies them.
"""

import concurrent.futures
import importlib
import math
from typing import Any

import numpy as np

from keras_qpsbgd import bits
from keras_qpsbgd.bits import Signs
from keras_qpsbgd.inference.windows import Sizes

try:
    _kernels: Any = importlib.import_module("keras_qpsbgd.inference._kernels")
except ImportError:  # built without a compiler
    _kernels = None

KERNELS = ("c", "numpy")
# Number of words that NumPy compares at a time.
MAX_WORDS = 2**18
# Number of entries of the patches that NumPy copies at a time.
MAX_PATCHES = 2**22
# Rows that the C kernels compute together.
ROWS = 16
# The 8 signs of each byte.
_SIGNS = np.unpackbits(
    np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"
)
SIGNS = 2 * _SIGNS.astype(np.float32) - 1


def available():
    """Returns the names of the implementations, the fastest one first."""
    return KERNELS if _kernels is not None else ("numpy",)


def variants():
    """Returns the names of the instruction sets with C kernels.

    The processor supports all of them, and the first one is the fastest.
    """
    return _kernels.variants() if _kernels is not None else ()


def pool_signs(value, sizes, masks):
    """Returns the largest signs of windows, in C.

    Args:
        value: `Signs`.
        sizes: `Sizes` of the windows.
        masks: Pair `(keep, flip)` of words, which change the result to
            `found & keep ^ flip`, or `(None, None)`.
    """
    found = sizes(value.shape, value.size)
    out = np.empty((*found.shape, value.words.shape[-1]), np.uint64)
    words = np.ascontiguousarray(value.words)
    _kernels.bit_pool(found.numbers, words, *masks, out)
    return Signs(out, value.size)


class Workers:
    """Divides rows among threads.

    Args:
        threads: Positive integer.
        variant: Integer. The index of the kernels in `variants()`. Defaults to
            `0`.
    """

    def __init__(self, threads, variant=0):
        self.threads, self.variant = threads, variant
        self._pool = None
        if threads > 1:
            # The calling thread also works.
            self._pool = concurrent.futures.ThreadPoolExecutor(threads - 1)

    def run(self, function, rows, multiple=1):
        """Calls `function(start, stop)` for ranges that cover all rows.

        All ranges but the last one have a multiple of `multiple` rows.
        """
        if self._pool is None or rows == 0:
            function(0, rows)
            return
        share = -(-rows // (multiple * self.threads)) * multiple
        futures = [
            self._pool.submit(function, start, min(start + share, rows))
            for start in range(share, rows, share)
        ]
        try:
            function(0, min(share, rows))
        finally:
            concurrent.futures.wait(futures)
        for future in futures:
            future.result()


class Output:
    """Turns products into signs, or into numbers that are scaled and limited.

    Args:
        limits: Array (optional). The signs are +1 where a product is at least
            as large as its limit. Defaults to `None`, which uses the other
            arguments.
        scale: Array (optional), one number per output. Defaults to `None`.
        shift: Array, required with `scale`. Defaults to `None`.
        low: Float. The lower limit, for `relu` and `hard_tanh`. Defaults to
            minus infinity.
        high: Float. The upper limit, for `hard_tanh`. Defaults to infinity.
    """

    def __init__(
        self, limits=None, scale=None, shift=None, low=-np.inf, high=np.inf
    ):
        self.limits, self.scale, self.shift = limits, scale, shift
        self.low, self.high = np.float32(low), np.float32(high)
        self.arrays = [v for v in (limits, scale, shift) if v is not None]

    def __call__(self, products):
        """Returns `Signs` or float32 numbers. It may change `products`."""
        if self.limits is not None:
            return bits.pack_signs(products >= self.limits)
        products = products.astype(np.float32, copy=False)
        if self.scale is not None:
            products *= self.scale
            products += self.shift
        if self.low > -np.inf:
            np.maximum(products, self.low, out=products)
        if self.high < np.inf:
            np.minimum(products, self.high, out=products)
        return products

    def empty(self, shape, outputs):
        """Returns an empty result, and the array in it that a kernel fills."""
        if self.limits is None:
            found = np.empty((*shape, outputs), np.float32)
            return found, found
        words = np.empty((*shape, -(-outputs // 64)), np.uint64)
        return Signs(words, outputs), words


class _Product:
    """Base class of products with the patches of images, or with rows.

    Args:
        kernel: Array of shape `(inputs, outputs)`. The inputs are those of all
            places of the window.
        windows: `Windows`, or `None` for rows.
        output: `Output`.
    """

    name: str
    arrays: list[np.ndarray]
    is_compiled = False

    def __init__(self, kernel, windows, output):
        self.inputs, self.outputs = kernel.shape
        self.windows, self.output = windows, output
        self._sizes = Sizes(windows)
        self.places = 1 if windows is None else math.prod(windows.size)

    def __call__(self, value, workers):
        """Returns the products along the last axis, or of all patches."""
        value = self._input(value)
        if self.is_compiled:
            return self._compiled(value, workers)
        if self.windows is None:
            return self.output(self._rows(value))
        shape = value.shape
        positions = math.prod(self.windows.count(shape[1:3]))
        step = max(1, MAX_PATCHES // max(positions * self.inputs, 1))
        parts = []
        for start in range(0, max(shape[0], 1), step):
            parts.append(self.output(self._images(value, start, start + step)))
        if isinstance(parts[0], Signs):
            words = np.concatenate([part.words for part in parts])
            return Signs(words, self.outputs)
        return np.concatenate(parts)

    def _input(self, value):
        return bits.to_floats(value)

    def _images(self, images, start, stop):
        return self._rows(self.windows.patches(images[start:stop]))

    def _rows(self, value):
        """Returns the products along the last axis in NumPy."""
        raise NotImplementedError

    def _compiled(self, value, workers):
        """Returns the products of the C kernel."""
        raise NotImplementedError


class XnorProduct(_Product):
    """Products of `Signs` with a binary kernel, which are integers.

    Args:
        kernel: Array of levels, of shape `(inputs, outputs)`.
        num_bits: Integer. Number of bits of a weight.
        kernels: `"c"` or `"numpy"`.
        windows: `Windows`, or `None` for rows.
        output: `Output`.
    """

    name = "XNOR and popcount"

    def __init__(self, kernel, num_bits, kernels, windows=None, output=None):
        super().__init__(kernel, windows, output or Output())
        self.is_compiled = kernels == "c"
        if not self.is_compiled:
            parts = kernel.reshape(self.places, -1, self.outputs)
            self._sums = parts.sum(axis=1, dtype=np.int32)
        self.arrays = []
        for plane in bits.planes(kernel, num_bits):
            rows = plane.T.reshape(self.outputs, self.places, -1)
            words = bits.pack_signs(rows).words.reshape(self.outputs, -1)
            self.arrays.append(_lanes(words) if self.is_compiled else words)

    def _input(self, value):
        return value

    def _compiled(self, value, workers):
        sizes = self._sizes(value.shape, self.outputs)
        words = np.ascontiguousarray(value.words)
        multiple = ROWS if self.windows is None else 1
        # Signs come from the kernel if there is only one.
        is_fused = len(self.arrays) == 1 and self.output.limits is not None
        total = None
        for plane, kernel in enumerate(self.arrays):
            if is_fused:
                result, out = self.output.empty(sizes.shape, self.outputs)
            else:
                out = np.empty((*sizes.shape, self.outputs), np.int32)
            limits = self.output.limits if is_fused else None

            def part(start, stop, kernel=kernel, limits=limits, out=out):
                _kernels.bit_product(
                    workers.variant,
                    sizes.numbers,
                    words,
                    kernel,
                    limits,
                    out,
                    start,
                    stop,
                )

            workers.run(part, sizes.rows, multiple)
            if is_fused:
                return result
            total = out if total is None else total + np.int32(2**plane) * out
        return self.output(total)

    def _images(self, images, start, stop):
        words = images.words[start:stop]
        found = self._rows(Signs(self.windows.patches(words), self.inputs))
        if self.windows.padding == "same":
            # Zeros around an image were counted as -1.
            ones = np.ones((1, *images.shape[1:3], 1), np.int32)
            found += (1 - self.windows.patches(ones)) @ self._sums
        return found

    def _rows(self, value):
        words = value.words.reshape(-1, value.words.shape[-1])
        total = np.zeros((len(words), self.outputs), np.int32)
        step = max(1, MAX_WORDS // self.arrays[0].size)
        for plane, kernel in enumerate(self.arrays):
            for start in range(0, len(words), step):
                different = words[start : start + step, None] ^ kernel
                counts = _count(different).sum(-1, dtype=np.int32)
                products = self.inputs - 2 * counts
                total[start : start + step] += np.int32(2**plane) * products
        return total.reshape(*value.shape[:-1], self.outputs)


class SignProduct(_Product):
    """Products of real inputs with a binary kernel.

    Args:
        kernel: Array of levels, of shape `(inputs, outputs)`.
        num_bits: Integer. Number of bits of a weight.
        kernels: `"c"` or `"numpy"`.
        windows: `Windows`, or `None` for rows.
        output: `Output`.
    """

    name = "sums of signed inputs"

    def __init__(self, kernel, num_bits, kernels, windows=None, output=None):
        super().__init__(kernel, windows, output or Output())
        self.is_compiled = kernels == "c"
        planes = bits.planes(kernel, num_bits)
        # The bits of a word are 64 inputs. Words that the C kernel reads one
        # after the other are adjacent.
        words = [bits.pack_signs(plane.T).words.T for plane in planes]
        self.arrays = [np.ascontiguousarray(np.stack(words, axis=1))]

    def _compiled(self, value, workers):
        value = np.ascontiguousarray(value, np.float32)
        sizes = self._sizes(value.shape, self.outputs)
        multiple = ROWS if self.windows is None else 1
        (kernel,) = self.arrays
        output = self.output
        result, out = output.empty(sizes.shape, self.outputs)

        def part(start, stop):
            _kernels.sign_product(
                workers.variant,
                sizes.numbers,
                value,
                kernel,
                kernel.shape[1],
                output.limits,
                output.scale,
                output.shift,
                output.low,
                output.high,
                out,
                start,
                stop,
            )

        workers.run(part, sizes.rows, multiple)
        return result

    def _rows(self, value):
        x = value.reshape(-1, self.inputs)
        total = np.zeros((len(x), self.outputs), np.float32)
        (kernel,) = self.arrays
        packed = kernel.astype("<u8", copy=False)[..., None].view(np.uint8)
        for plane in range(kernel.shape[1]):
            found = np.zeros_like(total)
            for block, rows in enumerate(packed[:, plane]):
                signs = SIGNS[rows].reshape(len(rows), 64)
                part = x[:, 64 * block : 64 * block + 64]
                found += part @ signs[:, : part.shape[1]].T
            total += np.float32(2**plane) * found
        return total.reshape(*value.shape[:-1], self.outputs)


class RealProduct(_Product):
    """Products with a real kernel. NumPy has its own threads.

    Args:
        kernel: Array of shape `(inputs, outputs)`.
        windows: `Windows`, or `None` for rows.
        output: `Output`.
    """

    name = "NumPy"

    def __init__(self, kernel, windows=None, output=None):
        super().__init__(kernel, windows, output or Output())
        self.arrays = [np.ascontiguousarray(kernel, np.float32)]

    def _rows(self, value):
        return value @ self.arrays[0]


def _lanes(words):
    """Interleaves the words of 8 outputs.

    Args:
        words: Array of shape `(outputs, words)`.

    Returns:
        Array of shape `(ceil(outputs / 8), words, 8)`. Spare words are 0.
    """
    outputs, size = words.shape
    padded = np.zeros((-(-outputs // 8) * 8, size), np.uint64)
    padded[:outputs] = words
    return np.ascontiguousarray(padded.reshape(-1, 8, size).transpose(0, 2, 1))


def _count(words):
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(words)
    # NumPy 1
    size = 64 * words.shape[-1]
    return bits.unpack_signs(Signs(words, size)).view(np.uint8)
