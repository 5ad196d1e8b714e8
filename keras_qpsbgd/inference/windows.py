"""Windows that move over images, for convolutions and pooling."""

import dataclasses
import math
from typing import NamedTuple

import numpy as np


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

    def margins(self, shape):
        """Returns the margins above and to the left of an image."""
        return tuple(axis[1][0] for axis in self._axes(shape))

    def slices(self, images, fill):
        """Yields the images at each place of the window.

        Args:
            images: Array.
            fill: Value of the entries outside an image.
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


class Geometry(NamedTuple):
    """The sizes of a product or a pooling.

    Attributes:
        numbers: Array of int64, the struct `Geometry` of the C kernels.
        shape: Tuple. The shape of the result without the last axis.
        rows: Integer. The number of rows of positions.
    """

    numbers: np.ndarray
    shape: tuple
    rows: int


class Sizes:
    """Computes a `Geometry` and caches the last one.

    Args:
        windows: `Windows`, or `None` for rows.
    """

    def __init__(self, windows):
        self._windows = windows
        self._last = None

    def __call__(self, shape, outputs):
        """Returns the `Geometry` for inputs of a shape."""
        last = self._last  # another thread may replace it
        if last is None or last[0] != shape:
            last = self._last = shape, self._geometry(shape, outputs)
        return last[1]

    def _geometry(self, shape, outputs):
        windows = self._windows
        if windows is None:
            rows = math.prod(shape[:-1])
            numbers = [rows, 1, 1, shape[-1], outputs, *[1] * 6, 0, 0, 1, 1]
            return Geometry(np.array(numbers, np.int64), shape[:-1], rows)
        counts = windows.count(shape[1:3])
        numbers = [*shape, outputs, *windows.size, *windows.strides]
        numbers += [*windows.dilations, *windows.margins(shape[1:3]), *counts]
        rows = shape[0] * counts[0]
        return Geometry(np.array(numbers, np.int64), (shape[0], *counts), rows)
