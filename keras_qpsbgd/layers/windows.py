"""Windows of a convolution in NumPy, at all positions or at random ones."""

from collections.abc import Iterator

import numpy as np

# Windows are extracted in pieces of at most this many numbers.
MAX_NUMBERS = 2**22


def windows(
    images: np.ndarray,
    size: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: str,
    count: int | None = None,
    seed: int = 0,
) -> Iterator[np.ndarray]:
    """Yields the windows of a convolution with any number of axes.

    Args:
        images: Array of shape `(batch, *axes, channels)`.
        size: Tuple of integers, the size of the window along each axis.
        strides: Tuple of integers.
        dilations: Tuple of integers.
        padding: `"valid"`, `"same"` or `"causal"`.
        count: Integer (optional). Chooses at most this many windows at random.
            Defaults to `None`, which yields all of them.
        seed: Integer or list of them. The same seed chooses the same windows.
            Defaults to `0`.

    Returns:
        An iterator over arrays of shape `(B, prod(size), channels)`, in the
        order of the images and positions.
    """
    counts, margins = [], [(0, 0)]
    for length, window, stride, dilation in zip(
        images.shape[1:-1], size, strides, dilations
    ):
        reach = (window - 1) * dilation + 1
        if padding == "same":
            positions = -(-length // stride)
            missing = max((positions - 1) * stride + reach - length, 0)
            margins.append((missing // 2, missing - missing // 2))
        else:
            before = reach - 1 if padding == "causal" else 0
            positions = max((length + before - reach) // stride + 1, 0)
            margins.append((before, 0))
        counts.append(positions)
    if np.any(margins):
        images = np.pad(images, [*margins, (0, 0)])
    shape = (len(images), *counts)
    chosen = choose(int(np.prod(shape)), count, seed)
    numbers = int(np.prod(size)) * images.shape[-1]
    step = max(1, MAX_NUMBERS // numbers)
    axes = len(size)
    for begin in range(0, len(chosen), step):
        places = np.unravel_index(chosen[begin : begin + step], shape)
        index = [places[0].reshape(-1, *[1] * axes)]
        for axis in range(axes):
            offsets = dilations[axis] * np.arange(size[axis])
            at = strides[axis] * places[axis + 1][:, None] + offsets
            broadcast = [1] * axes
            broadcast[axis] = size[axis]
            index.append(at.reshape(-1, *broadcast))
        found = images[tuple(index)]
        yield found.reshape(len(found), -1, images.shape[-1])


def choose(total: int, count: int | None, seed: int) -> np.ndarray:
    """Returns the indices of all rows, or of `count` random ones, in order."""
    if count is None or count >= total:
        return np.arange(total)
    random = np.random.default_rng(seed)
    return np.sort(random.choice(total, count, replace=False))
