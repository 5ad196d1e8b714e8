r"""Sixteen bits of a handwritten digit, for networks that fit on an annealer.

The paper trains a 16-4-4-2 network on pairs of MNIST digits. It turns each
image into 16 bits: superpixels, key points at their centers, and half planes
that show on which side more key points lie. It gives no further details, so
these are our choices:

1. SLIC divides the image into about 75 superpixels.
2. The *key points* are the centers of the superpixels whose mean intensity is
   above one half.
3. With \(c\) the centroid of the \(K\) key points \(p_i\) and \(u_k\) the
   direction at the angle \(2 \pi k / 16\), bit \(k\) is

   $$
   b_k = \begin{cases}
   +1 & \text{if } \#\{i: u_k \cdot (p_i - c) > 0\}
                 > \#\{i: u_k \cdot (p_i - c) < 0\} \\
   -1 & \text{otherwise.}
   \end{cases}
   $$

The bits depend only on these counts. The 16 half planes are the two sides of 8
lines: bits \(k\) and \(k + 8\) are opposite, unless both sides have the same
number of key points; then both are -1. This tie carries more information than 8
additional lines would (`angle=np.pi`).

The *ceiling* of a recipe is the accuracy of least squares on the 16 bits:
fitted to 500 images, measured on 2000 others, mean of 20 splits. The images are
the first 1250 training images of each digit; MNIST's test images are not used.
(Before that, about 150 recipes were tried on a random sample of all training
images.)

    python -m research.experiments.tasks.half_planes

| recipe                       | 0/2  | 1/2  | 1/7  | mean |
|------------------------------|------|------|------|------|
| **default**                  | .824 | .811 | .840 | .825 |
| half circle, 16 lines        | .792 | .797 | .841 | .810 |
| through the frame's center   | .769 | .833 | .750 | .784 |
| threshold .2                 | .814 | .802 | .826 | .814 |
| threshold .35                | .821 | .807 | .839 | .822 |
| compactness .1               | .742 | .742 | .795 | .760 |
| compactness 1                | .786 | .799 | .825 | .803 |
| compactness 1, threshold .35 | .809 | .800 | .848 | .819 |
| compactness 3 (a grid)       | .785 | .836 | .862 | .828 |
| 40 superpixels               | .808 | .759 | .859 | .808 |
| 150 superpixels              | .845 | .823 | .863 | .844 |

Two recipes with a higher mean were not used, because their superpixels are
hardly superpixels: with a compactness of 3 they are squares of a grid that do
not follow the strokes, and with 150 of them each has about four pixels.

Reference:
    75 superpixels per image, as in the coarsest MNIST graphs of Monti et al.,
    "Geometric deep learning on graphs and manifolds using mixture model CNNs",
    CVPR 2017.
"""

import argparse
import dataclasses
import math
import sys

import numpy as np

NUM_BITS = 16
PAIRS = ((0, 2), (1, 2), (1, 7))

# A point closer to the line than this, in pixels, is on neither side, so that
# rounding does not decide.
ON_THE_LINE = 1e-6

FITTED_IMAGES = 500
MEASURED_IMAGES = 2000
FIRST_IMAGES = (FITTED_IMAGES + MEASURED_IMAGES) // 2  # of each digit
SPLITS = 20


class MissingPackage(ImportError):
    """Raised if scikit-image is not installed."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How an image becomes bits.

    Attributes:
        superpixels: Integer. Approximate number of superpixels. Defaults to
            `75`.
        compactness: Float. Compactness of the superpixels for intensities from
            0 to 1. With small values they follow the strokes; with 3 and more
            they are squares of a grid. Defaults to `0.5`.
        threshold: Float. A superpixel with a higher mean intensity is
            foreground. Defaults to `0.5`.
        angle: Float. Angle over which the directions are spread. `np.pi` gives
            one side of each of 16 lines. Defaults to `2 * np.pi`.
        about_frame: Boolean. Whether the lines go through the center of the
            image instead of the centroid of the key points. Defaults to
            `False`.
    """

    superpixels: int = 75
    compactness: float = 0.5
    threshold: float = 0.5
    angle: float = 2 * math.pi
    about_frame: bool = False


DEFAULT = Recipe()
RECIPES = {
    "default": DEFAULT,
    "half circle, 16 lines": Recipe(angle=math.pi),
    "through the frame's center": Recipe(about_frame=True),
    "threshold .2": Recipe(threshold=0.2),
    "threshold .35": Recipe(threshold=0.35),
    "compactness .1": Recipe(compactness=0.1),
    "compactness 1": Recipe(compactness=1.0),
    "compactness 1, threshold .35": Recipe(compactness=1.0, threshold=0.35),
    "compactness 3 (a grid)": Recipe(compactness=3.0),
    "40 superpixels": Recipe(superpixels=40),
    "150 superpixels": Recipe(superpixels=150),
}


def superpixels(image, recipe=DEFAULT):
    """Divides an image into SLIC superpixels.

    Args:
        image: uint8 array of shape (height, width).
        recipe: A `Recipe`.

    Returns:
        Integer array of the shape of the image: the index of each pixel's
        superpixel, starting at 0.

    Raises:
        MissingPackage: scikit-image is not installed.
    """
    try:
        from skimage import segmentation
    except ImportError as error:
        raise MissingPackage(
            "Superpixels require scikit-image, which is not installed. Install "
            "it with\n\n"
            '    python -m pip install "keras_qpsbgd[research]"'
        ) from error
    return segmentation.slic(
        _intensities(image),
        n_segments=recipe.superpixels,
        compactness=recipe.compactness,
        channel_axis=None,
        start_label=0,
    )


def key_points(image, recipe=DEFAULT):
    """Returns the centers of the foreground superpixels.

    Args:
        image: uint8 array of shape (height, width), bright on dark.
        recipe: A `Recipe`.

    Returns:
        Array of shape (K, 2) of (x, y) in pixels, x to the right and y *down*
        from the center of the upper left pixel. K is 0 for an image without
        foreground.

    Example:

    >>> image = np.zeros((28, 28), "uint8")
    >>> image[4:24, 20:22] = 255  # a vertical stroke on the right
    >>> bool((key_points(image)[:, 0] > 14).all())
    True
    """
    intensities = _intensities(image).ravel()
    labels = superpixels(image, recipe).ravel()
    y, x = np.divmod(np.arange(labels.size), np.shape(image)[1])
    pixels = np.bincount(labels)
    x, y, mean = (np.bincount(labels, w) / pixels for w in (x, y, intensities))
    return np.stack([x, y], axis=1)[mean > recipe.threshold]


def half_plane_bits(points, num=NUM_BITS, center=None, angle=2 * math.pi):
    """Returns on which sides of lines through a center more points lie.

    Bit k is +1 if more points lie on the side that direction k points to than
    on the other side, else -1. Direction k has the angle `angle * k / num`,
    counterclockwise from the right as the image is viewed. By default, bit 0
    stands for right, 4 for up, 8 for left and 12 for down. Points on the line
    count for neither side. A tie is -1, and without points all bits are -1.

    Args:
        points: Array of shape (K, 2) of (x, y), y *down*.
        num: Integer. Number of bits. Defaults to `16`.
        center: Tuple (x, y) that all lines go through (optional). `None` is the
            centroid of the points.
        angle: Float. Angle over which the directions are spread, in radians.
            Defaults to `2 * math.pi`.

    Returns:
        float32 array of shape (num,) of +1 and -1.

    Example:

    One point far to the right pulls the centroid to the right. The other two
    are the majority, so the left side wins:

    >>> half_plane_bits([(0, 0), (0, 0), (9, 0)], num=4)
    array([-1., -1.,  1., -1.], dtype=float32)
    """
    points = np.asarray(points, dtype=float)
    if points.ndim != 2 or points.shape[1] != 2:
        raise ValueError(
            "`points` must have the shape (K, 2). "
            f"Received: shape {points.shape}"
        )
    if not len(points):
        return np.full(num, -1, "float32")
    if center is None:
        center = points.mean(axis=0)
    angles = angle * np.arange(num) / num
    directions = np.stack([np.cos(angles), -np.sin(angles)])
    distances = (points - center) @ directions
    inside = (distances > ON_THE_LINE).sum(axis=0)
    outside = (distances < -ON_THE_LINE).sum(axis=0)
    return np.where(inside > outside, 1, -1).astype("float32")


def features(images, progress=None, recipe=DEFAULT):
    """Returns the bits of many images, deterministically.

    An image takes about 2 ms.

    Args:
        images: uint8 array of shape (N, height, width), bright on dark.
        progress: Function (optional), called after each image with the number
            of finished images and the number of all images.
        recipe: A `Recipe`.

    Returns:
        float32 array of shape (N, 16) of +1 and -1.

    Example:

    >>> (x, y), _ = research.datasets.mnist()
    >>> features(x[np.isin(y, (0, 2))][:500]).shape
    (500, 16)
    """
    images = np.asarray(images)
    if images.ndim != 3:
        raise ValueError(
            "`images` must have the shape (N, height, width). "
            f"Received: shape {images.shape}"
        )
    center = None
    if recipe.about_frame:
        center = (np.array(images.shape[:0:-1]) - 1) / 2
    bits = np.empty((len(images), NUM_BITS), "float32")
    for index, image in enumerate(images):
        bits[index] = half_plane_bits(
            key_points(image, recipe), center=center, angle=recipe.angle
        )
        if progress is not None:
            progress(index + 1, len(images))
    return bits


def ceiling(bits, labels, fitted=FITTED_IMAGES, splits=SPLITS):
    """Returns the accuracy of least squares on held-out images.

    Args:
        bits: Array of shape (N, n).
        labels: N Booleans.
        fitted: Integer. Number of images to fit to; the accuracy is measured on
            the others. Defaults to `500`.
        splits: Integer. Number of random splits, which are always the same.
            Defaults to `20`.

    Returns:
        The mean accuracy over the splits.
    """
    inputs = np.pad(bits, ((0, 0), (0, 1)), constant_values=1.0)
    targets = np.where(labels, 1.0, -1.0)
    right = []
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(inputs))
        fit, rest = order[:fitted], order[fitted:]
        weights = np.linalg.lstsq(inputs[fit], targets[fit], rcond=None)[0]
        right.append((inputs[rest] @ weights > 0) == (targets[rest] > 0))
    return np.mean(right)


def ceilings(images, recipe=DEFAULT, progress=None):
    """Returns the ceiling of each of `PAIRS`.

    Args:
        images: Dictionary from digits to their images.
        recipe: A `Recipe`.
        progress: Function (optional), see `features`.
    """
    sizes = np.cumsum([len(some) for some in images.values()])
    bits = features(np.concatenate(list(images.values())), progress, recipe)
    bits = dict(zip(images, np.split(bits, sizes[:-1])))
    return [
        ceiling(
            np.concatenate([bits[a], bits[b]]),
            np.repeat([False, True], [len(bits[a]), len(bits[b])]),
        )
        for a, b in PAIRS
    ]


def _intensities(image):
    image = np.asarray(image)
    if image.ndim != 2 or image.dtype != np.uint8:
        raise ValueError(
            "`image` must be a uint8 array of shape (height, width). "
            f"Received: {image.dtype} of shape {image.shape}"
        )
    return image / 255


def main(argv=None):
    """Prints the ceilings of all recipes."""
    from tensorflow import keras

    from research import datasets

    parser = argparse.ArgumentParser(
        prog="python -m research.experiments.tasks.half_planes",
        description=(
            "Prints the accuracy of least squares on 16 half-plane bits of "
            "pairs of MNIST digits, for several recipes for the bits. Takes "
            "about two minutes."
        ),
    )
    parser.add_argument("--data-dir", help="folder with mnist.npz")
    (x, y), _ = datasets.mnist(parser.parse_args(argv).data_dir)
    each = FIRST_IMAGES
    used = sorted({digit for pair in PAIRS for digit in pair})
    images = {digit: x[y == digit][:each] for digit in used}
    total = each * len(images) * len(RECIPES)
    # Only the final state goes to a file.
    verbose = 1 if sys.stdout.isatty() else 2
    bar = keras.utils.Progbar(total, verbose=verbose, unit_name="image")
    rows = {}
    for row, (name, recipe) in enumerate(RECIPES.items()):
        rows[name] = ceilings(
            images,
            recipe,
            lambda done, all_, row=row: bar.update(row * all_ + done),
        )
    print("\n" + table(rows))


def table(rows):
    """Returns the ceilings as text.

    Args:
        rows: Dictionary from names of recipes to the ceilings of the pairs.
    """
    heads = [*(f"{a}/{b}" for a, b in PAIRS), "mean"]
    lines = [f"{'recipe':<30}" + "".join(f"{head:>7}" for head in heads)]
    lines.append("-" * len(lines[0]))
    for name, values in rows.items():
        cells = [f"{value:.3f}" for value in (*values, np.mean(values))]
        lines.append(f"{name:<30}" + "".join(f"{cell:>7}" for cell in cells))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
