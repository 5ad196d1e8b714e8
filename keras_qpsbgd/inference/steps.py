"""The steps of a prediction.

A step receives a value and the `Workers`, and returns a value. Values are
float32 arrays or `Signs`, with the batch on the first axis. Images have the
shape `(batch, height, width, channels)`.
"""

import math

import numpy as np

from keras_qpsbgd import bits
from keras_qpsbgd.bits import Signs
from keras_qpsbgd.inference import products
from keras_qpsbgd.inference.windows import Sizes


class Step:
    """Base class of the steps. `arrays` contains the weights of a step."""

    arrays: list[np.ndarray] = []

    def __call__(self, value, workers):
        raise NotImplementedError

    def __str__(self):
        return type(self).__name__


class Product(Step):
    """A product along the last axis, or with all patches of images.

    Args:
        product: Product of `products.py`.
    """

    def __init__(self, product):
        self.product = product
        self.arrays = [*product.arrays, *product.output.arrays]

    def __call__(self, value, workers):
        return self.product(value, workers)

    def __str__(self):
        product = self.product
        name = "Dense" if product.windows is None else "Convolution"
        return f"{name} {product.inputs} x {product.outputs}: {product.name}"


class Threshold(Step):
    """Signs of `signs * value - limits`, as `Signs`.

    Args:
        limits: Array, one number per output or for all of them.
        signs: Array of +1 and -1 (optional), or `None` if all are +1.
    """

    def __init__(self, limits, signs=None):
        self.limits = limits
        self.signs = np.float32(1) if signs is None else signs
        self.arrays = [v for v in (limits, signs) if v is not None]
        self._masks = {}

    def masks(self, size):
        """Returns the words `keep` and `flip` for `Signs`.

        The signs become `signs & keep ^ flip`.
        """
        if size not in self._masks:
            high, low = (
                bits.pack_signs(
                    np.broadcast_to(sign >= self.limits, size)
                ).words
                for sign in (self.signs, -self.signs)
            )
            self._masks[size] = high ^ low, low
        return self._masks[size]

    def __call__(self, value, workers):
        if isinstance(value, Signs):
            keep, flip = self.masks(value.size)
            return Signs(value.words & keep ^ flip, value.size)
        return bits.pack_signs(value * self.signs >= self.limits)


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
            if shape[-1] % 64 == 0 and target[-1] % 64 == 0:
                words = value.words.reshape(
                    shape[0], *target[:-1], target[-1] // 64
                )
                return Signs(words, target[-1])
            mask = bits.unpack_signs(value).reshape(shape[0], *target)
            return bits.pack_signs(mask)
        return value.reshape(shape[0], *target)


class MaxPooling(Step):
    """Largest entry of each window.

    Args:
        windows: `Windows`, or `None` for whole images.
        keepdims: Boolean. Whether whole images keep their axes. Defaults to
            `False`.
        is_compiled: Boolean. Whether to use the C kernel for `Signs`. Defaults
            to `False`.
    """

    threshold = None  # of the `Signs`, or `None`

    def __init__(self, windows=None, keepdims=False, is_compiled=False):
        self.windows, self.keepdims = windows, keepdims
        self._is_compiled = is_compiled and windows is not None
        self._sizes = Sizes(windows)

    def include(self, threshold):
        """Applies a `Threshold` to the results, which are `Signs`."""
        self.threshold, self.arrays = threshold, threshold.arrays

    def __call__(self, value, workers):
        if not isinstance(value, Signs):
            return self._pooled(value, np.maximum, -np.inf)
        if self._is_compiled:
            masks = None, None
            if self.threshold is not None:
                masks = self.threshold.masks(value.size)
            return products.pool_signs(value, self._sizes, masks)
        words = self._pooled(value.words, np.bitwise_or, 0)
        found = Signs(words, value.size)
        if self.threshold is not None:
            found = self.threshold(found, workers)
        return found

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
        if self.windows is None and isinstance(value, Signs):
            return self._mean_signs(value)
        images = bits.to_floats(value)
        if self.windows is None:
            return images.mean(axis=(1, 2), keepdims=self.keepdims)
        ones = np.ones((1, *images.shape[1:3], 1), np.float32)
        # Like Keras, ignore the margin.
        return self._sum(images) / self._sum(ones)

    def _mean_signs(self, value):
        mask = bits.unpack_signs(value)
        count = np.float32(mask.shape[1] * mask.shape[2])
        ones = mask.sum(axis=(1, 2), keepdims=self.keepdims, dtype=np.int32)
        return (2 * ones.astype(np.float32) - count) / count

    def _sum(self, images):
        slices = self.windows.slices(images, 0)
        found = next(slices).copy()
        for other in slices:
            found += other
        return found
