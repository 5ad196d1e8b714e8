"""The steps of a prediction.

A step receives a value and the `Workers`, and returns a value. Values are
float32 arrays or `Signs`, with the batch on the first axis. Between a product
and its `Threshold`, they may also be int32. Images have the shape
`(batch, height, width, channels)`.
"""

import dataclasses
import math

import numpy as np

from keras_qpsbgd import bits
from keras_qpsbgd.bits import Signs

# Number of entries of the patches that are computed at a time.
MAX_PATCHES = 2**22


@dataclasses.dataclass(frozen=True)
class Windows:
    """The positions of a window in an image, as in Keras.

    Attributes:
        size: Pair of integers, the height and width of the window.
        strides: Pair of integers.
        dilations: Pair of integers.
        padding: `"valid"` or `"same"`.
    """

    size: tuple
    strides: tuple
    dilations: tuple
    padding: str

    def count(self, shape):
        """Returns the number of positions along both axes of an image."""
        return tuple(axis[0] for axis in self._axes(shape))

    def slices(self, images, fill):
        """Yields the images at each place of the window.

        Args:
            images: Array.
            fill: Value of the entries outside of an image.
        """
        axes = self._axes(images.shape[1:3])
        margins = [(0, 0), *(axis[1] for axis in axes), (0, 0)]
        if any(map(any, margins)):
            images = np.pad(images, margins, constant_values=fill)
        starts = []
        for (count, _), place in zip(axes, range(2)):
            stride, dilation = self.strides[place], self.dilations[place]
            length = (count - 1) * stride + 1
            starts.append(
                [
                    slice(i * dilation, i * dilation + length, stride)
                    for i in range(self.size[place])
                ]
            )
        for rows in starts[0]:
            for columns in starts[1]:
                yield images[:, rows, columns]

    def patches(self, images):
        """Returns the patches, with all their entries on the last axis."""
        return np.concatenate(list(self.slices(images, 0)), axis=-1)

    def _axes(self, shape):
        """Returns the number of positions and the margins of each axis."""
        found = []
        for length, size, stride, dilation in zip(
            shape, self.size, self.strides, self.dilations
        ):
            reach = (size - 1) * dilation + 1
            if self.padding == "same":
                count = -(-length // stride)
                missing = max((count - 1) * stride + reach - length, 0)
            else:
                count = max((length - reach) // stride + 1, 0)
                missing = 0
            found.append((count, (missing // 2, missing - missing // 2)))
        return found


class Step:
    """Base class of the steps. `arrays` contains the weights of a step."""

    arrays: list[np.ndarray] = []

    def __call__(self, value, workers):
        raise NotImplementedError

    def __str__(self):
        return type(self).__name__


class Dense(Step):
    """A product along the last axis.

    Args:
        product: Product of `binary_products.py`.
        is_exact: Boolean. Whether to return integers, for a `Threshold`.
    """

    def __init__(self, product, is_exact):
        self.product, self.is_exact = product, is_exact
        self.arrays = product.arrays

    def __call__(self, value, workers):
        if not self.product.takes_signs:
            value = bits.to_floats(value)
        return _finished(self.product(value, workers), self.is_exact)

    def __str__(self):
        size = f"{self.product.inputs} x {self.product.outputs}"
        return f"{type(self).__name__} {size}: {self.product.name}"


class Convolution(Dense):
    """A product with all patches of images.

    Args:
        product: Product of `binary_products.py`.
        is_exact: Boolean. Whether to return integers, for a `Threshold`.
        windows: `Windows`.
        sums: Array of shape `(places, outputs)` (optional). For `Signs`, the
            sums of the kernel over the channels, for each place in the window.
    """

    def __init__(self, product, is_exact, windows, sums=None):
        super().__init__(product, is_exact)
        self.windows, self.sums = windows, sums
        if sums is not None:
            self.arrays = [*product.arrays, sums]

    def __call__(self, value, workers):
        if not self.product.takes_signs:
            value = bits.to_floats(value)
        shape = value.shape
        positions = math.prod(self.windows.count(shape[1:3]))
        size = max(positions * self.product.inputs, 1)
        step = max(1, MAX_PATCHES // size)
        border = None
        if self.sums is not None and self.windows.padding == "same":
            border = self._border(shape[1:3])
        parts = []
        for start in range(0, shape[0], step):
            rows = slice(start, start + step)
            if isinstance(value, Signs):
                patches = self.windows.patches(value.words[rows])
                patches = Signs(patches, self.product.inputs)
            else:
                patches = self.windows.patches(value[rows])
            part = self.product(patches, workers)
            if border is not None:
                part += border
            parts.append(part)
        return _finished(np.concatenate(parts), self.is_exact)

    def _border(self, shape):
        """Returns the correction for zeros around an image, counted as -1."""
        ones = np.ones((1, *shape, 1), np.int32)
        outside = 1 - self.windows.patches(ones)
        return outside @ self.sums


def _finished(products, is_exact):
    if is_exact or products.dtype == np.float32:
        return products
    return products.astype(np.float32)


class Threshold(Step):
    """Signs of `signs * value - limits`, as `Signs`.

    Args:
        limits: Array, one number per output. For int32 values, int32.
        signs: Array of +1 and -1 (optional), or `None` if all are +1.
    """

    def __init__(self, limits, signs=None):
        self.limits, self.signs = limits, signs
        self.arrays = [v for v in (limits, signs) if v is not None]

    def __call__(self, value, workers):
        value = bits.to_floats(value)
        if self.signs is not None:
            value = value * self.signs
        return bits.pack_signs(value >= self.limits)


class Affine(Step):
    """`scale * value + shift`."""

    def __init__(self, scale, shift):
        self.scale, self.shift = scale, shift
        self.arrays = [scale, shift]

    def __call__(self, value, workers):
        value = bits.to_floats(value) * self.scale
        value += self.shift
        return value


class Activation(Step):
    """An activation function by its name."""

    def __init__(self, name):
        self.name = name
        self._function = ACTIVATIONS[name]

    def __call__(self, value, workers):
        return self._function(bits.to_floats(value))

    def __str__(self):
        return self.name


def _softmax(x):
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "hard_tanh": lambda x: np.clip(x, np.float32(-1), np.float32(1)),
    "tanh": np.tanh,
    # The usual formula overflows.
    "sigmoid": lambda x: (
        np.float32(0.5) * np.tanh(np.float32(0.5) * x) + np.float32(0.5)
    ),
    "softmax": _softmax,
}


class Reshape(Step):
    """Reshapes samples. `shape` is `None` to flatten them.

    One size in `shape` may be -1, because a batch is never empty here.
    """

    def __init__(self, shape=None):
        self.shape = shape

    def __call__(self, value, workers):
        shape = value.shape
        target = (math.prod(shape[1:]),) if self.shape is None else self.shape
        if isinstance(value, Signs):
            mask = bits.unpack_signs(value).reshape(shape[0], *target)
            return bits.pack_signs(mask)
        return value.reshape(shape[0], *target)


class MaxPooling(Step):
    """Largest entry of each window. `windows` is `None` for whole images."""

    def __init__(self, windows=None, keepdims=False):
        self.windows, self.keepdims = windows, keepdims

    def __call__(self, value, workers):
        if isinstance(value, Signs):
            words = self._pooled(value.words, np.bitwise_or, 0)
            return Signs(words, value.size)
        return self._pooled(value, np.maximum, -np.inf)

    def _pooled(self, images, larger, smallest):
        if self.windows is None:
            found = larger.reduce(
                images.reshape(len(images), -1, images.shape[-1]), axis=1
            )
            return found[:, None, None] if self.keepdims else found
        slices = self.windows.slices(images, smallest)
        found = next(slices).copy()
        for other in slices:
            larger(found, other, out=found)
        return found


class AveragePooling(Step):
    """Mean of each window. `windows` is `None` for whole images."""

    def __init__(self, windows=None, keepdims=False):
        self.windows, self.keepdims = windows, keepdims

    def __call__(self, value, workers):
        images = bits.to_floats(value)
        if self.windows is None:
            return images.mean(axis=(1, 2), keepdims=self.keepdims)
        ones = np.ones((1, *images.shape[1:3], 1), np.float32)
        # Like Keras, ignore the margin.
        return self._sum(images) / self._sum(ones)

    def _sum(self, images):
        slices = self.windows.slices(images, 0)
        found = next(slices).copy()
        for other in slices:
            found += other
        return found
