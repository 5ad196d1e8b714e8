"""Charts as SVG elements, without a drawing package and without JavaScript.

Colors are CSS variables of the page, so a chart follows light and dark mode.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Optional

import numpy as np

from keras_qpsbgd.report import text

WIDTH, HEIGHT = 360, 210
TOP, RIGHT, BOTTOM = 10, 12, 36
# Up to this number of points, each point has a marker and a tooltip.
MAX_MARKERS = 40
# Larger values would overflow in the computation of the axis.
LARGEST = 1e300


@dataclasses.dataclass
class Series:
    """One curve.

    Attributes:
        name: Name in the legend and in tooltips.
        y: Values. Values that are not finite interrupt the curve.
        low: Lower end of a band around the curve (optional).
        high: Upper end of the band (optional).
        dashed: Boolean. Whether the line is dashed.
    """

    name: str
    y: np.ndarray
    low: Optional[np.ndarray] = None
    high: Optional[np.ndarray] = None
    dashed: bool = False


@dataclasses.dataclass
class Axes:
    """Maps values to positions in the drawing."""

    x: tuple[float, float]
    y: tuple[float, float]
    left: float

    def place_x(self, value):
        share = (value - self.x[0]) / (self.x[1] - self.x[0])
        return self.left + share * (WIDTH - RIGHT - self.left)

    def place_y(self, value):
        share = (value - self.y[0]) / (self.y[1] - self.y[0])
        return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


def lines(
    title: str,
    x: np.ndarray,
    series: Sequence[Series],
    x_label: str,
    share: bool = False,
    y_range: tuple[Optional[float], Optional[float]] = (None, None),
) -> str:
    """Draws curves over a common axis.

    Args:
        title: String. Title, for the description of the chart.
        x: Array of the positions of the points.
        series: List of `Series`, at most two.
        x_label: String. Label of the horizontal axis.
        share: Boolean. Whether the values are shares, which are shown in
            percent. Defaults to `False`.
        y_range: Pair of the ends of the vertical axis. `None` adapts an end to
            the data. Defaults to `(None, None)`.

    Returns:
        A string, the `svg` element.
    """
    values = np.concatenate(
        [
            _finite(v)
            for s in series
            for v in (s.y, s.low, s.high)
            if v is not None
        ]
    )
    low, high = _ends(values, y_range)
    y_ticks = _ticks(low, high, 4)
    x_ticks = [
        t for t in _ticks(x.min(), x.max(), 5) if x.min() <= t <= x.max()
    ]
    if all(float(value).is_integer() for value in x):
        x_ticks = [tick for tick in x_ticks if tick.is_integer()]
    x_ticks = x_ticks or [float(x[0])]
    ends = (x.min(), x.max()) if len(x) > 1 else (x[0] - 1, x[0] + 1)
    show = text.percent if share else text.number
    labels = text.ticks(y_ticks, share)
    axes = Axes(ends, (y_ticks[0], y_ticks[-1]), _left(labels))
    parts = _frame(axes, y_ticks, labels, x_ticks, x_label)
    for index, curve in enumerate(series):
        parts += _curve(axes, x, curve, f"s{index + 1}", show, x_label)
    return _svg(f"{title}. {_describe(x, series, x_label, show)}", parts)


def histogram(title: str, values: np.ndarray, x_label: str) -> str:
    """Draws how often values occur, in at most 24 bins."""
    values = _finite(values)
    high = float(values.max()) if len(values) else 0.0
    high = high if high > 0 else 1.0
    bins = min(24, max(6, math.isqrt(len(values))))
    counts, edges = np.histogram(values, bins=bins, range=(0, high))
    y_ticks = _ticks(0.0, float(max(counts.max(), 1)), 4)
    labels = text.ticks(y_ticks)
    axes = Axes((0.0, high), (0.0, y_ticks[-1]), _left(labels))
    x_ticks = [tick for tick in _ticks(0.0, high, 4) if tick <= high]
    parts = _frame(axes, y_ticks, labels, x_ticks, x_label)
    for count, start, stop in zip(counts, edges, edges[1:]):
        if count:
            left, right = axes.place_x(start), axes.place_x(stop)
            top = axes.place_y(count)
            parts.append(
                f'<rect class="bar" x="{left + 0.5:.1f}" y="{top:.1f}" '
                f'width="{right - left - 1:.1f}" '
                f'height="{HEIGHT - BOTTOM - top:.1f}">'
                f"<title>{text.number(start)} to {text.number(stop)}: "
                f"{text.number(float(count))}</title></rect>"
            )
    share = np.mean(values <= edges[1]) if len(values) else 0.0
    note = (
        f"{len(values):,} values from 0 to {text.number(high)}, "
        f"{text.percent(float(share))} of them in the first bin."
    )
    return _svg(f"{title}. {note}", parts)


def _svg(description, parts):
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{text.escape(description, 1000)}">{"".join(parts)}</svg>'
    )


def _frame(axes, y_ticks, y_labels, x_ticks, x_label):
    """Draws grid lines and the labels of both axes."""
    parts = []
    for tick, label in zip(y_ticks, y_labels):
        y = axes.place_y(tick)
        parts.append(
            f'<path class="grid" d="M{axes.left:.1f} {y:.1f}H{WIDTH - RIGHT}"/>'
            f'<text class="end" x="{axes.left - 6:.1f}" y="{y + 4:.1f}">'
            f"{label}</text>"
        )
    for tick, label in zip(x_ticks, text.ticks(x_ticks)):
        parts.append(
            f'<text class="middle" x="{axes.place_x(tick):.1f}" '
            f'y="{HEIGHT - 20}">{label}</text>'
        )
    middle = (axes.left + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="label" x="{middle:.1f}" y="{HEIGHT - 4}">'
        f"{text.escape(x_label)}</text>"
    )
    return parts


def _curve(axes, x, curve, color, show, x_label):
    parts = []
    if curve.low is not None and curve.high is not None:
        for part in _segments(curve.low, curve.high):
            there = _points(axes, x[part], curve.high[part])
            back = _points(axes, x[part][::-1], curve.low[part][::-1])
            parts.append(
                f'<path class="band {color}" d="M{"L".join(there + back)}Z"/>'
            )
    dashed = " dashed" if curve.dashed else ""
    for part in _segments(curve.y):
        points = _points(axes, x[part], curve.y[part])
        parts.append(
            f'<path class="line {color}{dashed}" d="M{"L".join(points)}"/>'
        )
        if len(x) > MAX_MARKERS and len(points) > 1:
            continue
        for place, at, value in zip(points, x[part], curve.y[part]):
            cx, cy = place.split()
            parts.append(
                f'<circle class="{color}" cx="{cx}" cy="{cy}" r="2.5"><title>'
                f"{text.escape(curve.name)}, {text.escape(x_label)} "
                f"{text.number(at)}: {show(value)}</title></circle>"
            )
    return parts


def _points(axes, x, y):
    return [
        f"{axes.place_x(a):.1f} {axes.place_y(b):.1f}" for a, b in zip(x, y)
    ]


def _segments(*arrays):
    """Returns slices in which all arrays are finite."""
    good = np.all([np.abs(array) < LARGEST for array in arrays], axis=0)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], good, [0]])))
    return [slice(a, b) for a, b in zip(edges[::2], edges[1::2])]


def _finite(values):
    values = np.asarray(values, dtype=float)
    return values[np.abs(values) < LARGEST]


def _ends(values, limits):
    low = float(values.min()) if len(values) else 0.0
    high = float(values.max()) if len(values) else 1.0
    low = low if limits[0] is None else limits[0]
    high = high if limits[1] is None else limits[1]
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        # A constant is drawn in the middle, unless the axis starts there.
        margin = 0.5 * abs(low) or 1.0
        low = low - margin if limits[0] is None else low
        high = high + margin
    return low, high


def _ticks(low, high, count):
    """Returns round numbers that enclose an interval, about `count` steps."""
    if not high > low:
        return [float(low)]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(
        power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * (1 - 1e-9)
    )
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(k * step, digits) for k in range(first, last + 1)]


def _left(labels):
    return max(30.0, 12 + 6.4 * max(map(len, labels)))


def _describe(x, series, x_label, show):
    """Describes curves in words, for those who cannot see them."""
    sentences = []
    for curve in series:
        good = np.flatnonzero(np.abs(curve.y) < LARGEST)
        if not len(good):
            sentences.append(f"{curve.name}: no finite value.")
            continue
        first, last = good[0], good[-1]
        y = curve.y[good]
        sentences.append(
            f"{curve.name}: {show(curve.y[first])} at {x_label} "
            f"{text.number(x[first])}, {show(curve.y[last])} at "
            f"{text.number(x[last])}, lowest {show(y.min())}, highest "
            f"{show(y.max())}."
        )
    return " ".join(sentences)
