"""Pictures of half-plane bits and of digits classified by them."""

import math

import numpy as np

from keras_qpsbgd.comparison import figures
from research.experiments.tasks import half_planes

# Distinct for any color vision (Okabe and Ito). Dashes and signs also show the
# meaning.
YES = "#0072b2"
NO = "#d55e00"


def draw(images, labels, path):
    """Draws how images become bits, one column per image.

    From top to bottom: the image with the borders of its superpixels and the
    key points; the key points, their centroid and the 16 directions; the bits.

    Args:
        images: uint8 array of shape (N, height, width); N of about 4 fits.
        labels: N titles, such as the digits.
        path: File to write.

    Raises:
        ImportError: matplotlib or scikit-image is not installed.
    """
    figure = figures.blank(max(2.4 * len(images), 4.8), 6.2)
    axes = figure.subplots(
        3,
        len(images),
        squeeze=False,
        gridspec_kw={"height_ratios": [1, 1, 0.3]},
    )
    for column, (image, label) in enumerate(zip(images, labels)):
        bits = half_planes.features(image[None])[0]
        points = half_planes.key_points(image)
        upper, middle, lower = axes[:, column]
        upper.set_title(str(label))
        _draw_superpixels(upper, image)
        _draw_directions(middle, image, points, bits)
        for axis in (upper, middle):
            _draw_points(axis, points)
        _draw_bits(lower, bits)
    _legend(figure)
    figures.save(figure, path)


def draw_classified(images, true, predicted, path, columns=10):
    """Draws digits with their predicted classes.

    Correct ones have a blue frame and a check mark. Wrong ones have an orange,
    dashed frame, a cross and the true class.

    Args:
        images: uint8 array of shape (N, height, width).
        true: N classes.
        predicted: N classes.
        path: File to write.
        columns: Integer. Number of images in a row. Defaults to `10`.

    Raises:
        ImportError: matplotlib is not installed.
    """
    columns = min(columns, len(images))
    rows = math.ceil(len(images) / columns)
    figure = figures.blank(max(0.95 * columns, 3.0), 1.2 * rows + 0.4)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[len(images) :]:
        axis.axis("off")
    for axis, image, truth, guess in zip(axes, images, true, predicted):
        right = truth == guess
        color = YES if right else NO
        text = f"\N{CHECK MARK} {guess}"
        if not right:
            text = f"\N{BALLOT X} {guess}, is {truth}"
        axis.imshow(image, cmap="gray_r", vmin=0, vmax=255)
        axis.set_title(text, color=color, fontsize=9, pad=3)
        axis.set(xticks=[], yticks=[])
        for spine in axis.spines.values():
            spine.set(color=color, linewidth=2)
            spine.set_linestyle("-" if right else (0, (3, 2)))
    hits = int(np.sum(np.asarray(true) == np.asarray(predicted)))
    figure.suptitle(f"{hits} of {len(images)} correct", fontsize=10)
    figures.save(figure, path)


def _draw_superpixels(axis, image):
    from matplotlib.collections import LineCollection

    axis.imshow(image, cmap="gray_r", vmin=0, vmax=255)
    borders = _borders(half_planes.superpixels(image))
    axis.add_collection(LineCollection(borders, colors="#999999", lw=0.6))
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set(color="#999999", linewidth=0.6)


def _borders(labels):
    """Lines between adjacent pixels of different superpixels."""
    lines = [
        [(x + 0.5, y - 0.5), (x + 0.5, y + 0.5)]
        for y, x in np.argwhere(labels[:, 1:] != labels[:, :-1])
    ]
    lines += [
        [(x - 0.5, y + 0.5), (x + 0.5, y + 0.5)]
        for y, x in np.argwhere(labels[1:] != labels[:-1])
    ]
    return lines


def _draw_directions(axis, image, points, bits):
    height, width = image.shape
    center = np.array([width - 1, height - 1]) / 2
    if len(points):
        center = points.mean(axis=0)
    # Beyond all points, so that no point covers a number.
    distances = np.linalg.norm(points - center, axis=1)
    length = 1 + max(distances, default=width / 2)
    for bit, value in enumerate(bits):
        angle = 2 * math.pi * bit / len(bits)
        ray = length * np.array([math.cos(angle), -math.sin(angle)])
        color = YES if value > 0 else NO
        axis.plot(
            *zip(center, center + ray),
            color=color,
            linestyle="-" if value > 0 else (0, (2, 2)),
            linewidth=1.4,
            zorder=1,
        )
        axis.text(
            *(center + 1.15 * ray),
            str(bit),
            color=color,
            fontsize=7,
            ha="center",
            va="center",
        )
    axis.plot(*center, "P", color="black", markersize=7, zorder=4)
    axis.set_aspect("equal")
    reach = 1.25 * length
    axis.set_xlim(center[0] - reach, center[0] + reach)
    axis.set_ylim(center[1] + reach, center[1] - reach)
    axis.axis("off")


def _draw_points(axis, points):
    axis.plot(
        *points.T,
        "o",
        color="#f0e442",
        markeredgecolor="black",
        markersize=4.5,
        markeredgewidth=0.8,
        zorder=3,
    )


def _draw_bits(axis, bits):
    """Two rows of squares, with opposite bits above each other."""
    half = len(bits) // 2
    for bit, value in enumerate(bits):
        row, column = divmod(bit, half)
        color = YES if value > 0 else NO
        axis.add_patch(_square(column, 1.9 * row, color))
        axis.text(
            column,
            1.9 * row,
            "+" if value > 0 else "\N{MINUS SIGN}",
            color="white",
            fontsize=9,
            fontweight="bold",
            ha="center",
            va="center_baseline",
        )
        axis.text(
            column,
            1.9 * row - 0.75,
            str(bit),
            fontsize=6,
            ha="center",
            va="center",
        )
    axis.set(xlim=(-0.6, half - 0.4), ylim=(2.5, -1.1))
    axis.set_aspect("equal")
    axis.axis("off")


def _square(x, y, color):
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.45, y - 0.45), 0.9, 0.9, color=color, linewidth=0)


def _legend(figure):
    from matplotlib.lines import Line2D

    point = {"marker": "o", "color": "#f0e442", "markeredgecolor": "black"}
    figure.legend(
        [
            Line2D([], [], linestyle="", **point),
            Line2D([], [], linestyle="", marker="P", color="black"),
            Line2D([], [], color=YES),
            Line2D([], [], color=NO, linestyle=(0, (2, 2))),
        ],
        [
            "key point",
            "center",
            "+1: more key points on this side",
            "\N{MINUS SIGN}1: the same number or fewer",
        ],
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=8,
    )
