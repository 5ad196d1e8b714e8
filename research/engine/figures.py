"""Learning curves.

A method looks the same in all figures of an experiment. Methods differ in color
(Okabe and Ito's palette, safe for color-blind readers) and, for grayscale
prints, in marker and line style.
"""

import math
import pathlib

import numpy as np

from keras_qpsbgd.analysis import common
from research.engine import tables
from research.engine.statistics import mean_and_error

REFERENCE_COLOR, *COLORS = *common.COLORS, common.GRAY
MARKERS = "os^Dv*XP<>hp"
LINES = ("-", "--", "-.", ":")
MARKS_PER_CURVE = 8
# Losses get a logarithmic axis if the highest exceeds this multiple of the
# lowest.
LOGARITHMIC = 4


def blank(width, height):
    """Returns an empty figure. Sizes are in inches.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(found)
    return found


def save(figure, path, dpi=150):
    """Saves a figure. A PNG does not contain the version of Matplotlib."""
    metadata = None
    if pathlib.Path(path).suffix == ".png":
        metadata = {"Software": None}
    figure.savefig(path, dpi=dpi, metadata=metadata)


def styles_of(runs, reference):
    """Returns a dict that maps each method to keyword arguments of `plot`."""
    return {
        method: {
            "color": REFERENCE_COLOR
            if method == reference
            else COLORS[index % len(COLORS)],
            "marker": MARKERS[index % len(MARKERS)],
            "linestyle": LINES[index % len(LINES)],
            "linewidth": 2.4 if method == reference else 1.4,
            # The reference is drawn on top of the others.
            "zorder": 4 if method == reference else 3,
        }
        for index, method in enumerate(tables.methods_of(runs, reference))
    }


def figure_of(runs, task, reference, seconds=None):
    """Returns a figure of the means over epochs.

    Args:
        runs: records of the experiment.
        task: a `TaskReport`.
        reference: the method that is drawn on top.
        seconds: dict that maps methods to the CPU seconds of a run. If given,
            one more panel shows the first measure over time.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    styles = styles_of(runs, reference)
    fresh = tables.select(runs, task=task.name, stage="fresh")
    panels = len(task.curves) + bool(seconds)
    columns = panels + 1
    num_methods = len(tables.methods_of(fresh, reference))
    legend_height = 0.22 * math.ceil(num_methods / columns)
    figure, axes = new(4.2 * panels + 1.4, 4.0 + legend_height, panels)
    for panel, measure in zip(axes, task.curves):
        _draw_curves(panel, fresh, measure, reference, styles)
    if seconds:
        measure = task.curves[0]
        _draw_curves(axes[-1], fresh, measure, reference, styles, seconds)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
        handlelength=3.6,
    )
    add_title(figure, task, fresh)
    return figure


def new(width, height, panels=1):
    figure = blank(width, height)
    axes = figure.subplots(1, panels, squeeze=False).ravel()
    for panel in axes:
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def factor(measure):
    return 100 if measure.percent else 1


def label(measure):
    return f"{measure.label} [%]" if measure.percent else measure.label


def add_title(figure, task, runs):
    """Sets the title: the task and the number of seeds."""
    counts = {
        len({run["seed"] for run in tables.select(runs, method=method)})
        for method in {run["method"] for run in runs}
    }
    ends = sorted({min(counts), max(counts)})
    seeds = " to ".join(map(str, ends))
    note = f"mean and standard error of {seeds} seeds"
    figure.suptitle(f"{task.title}: {note}", fontsize=11)


def _draw_curves(panel, runs, measure, reference, styles, seconds=None):
    from matplotlib.ticker import MaxNLocator

    methods = tables.methods_of(runs, reference)
    bands, ends = [], []
    for index, method in enumerate(methods):
        found = _curve(tables.select(runs, method=method), measure)
        if found is None:
            continue
        epochs, mean, error = found
        if seconds:
            epochs = epochs * seconds[method] / epochs[-1]
        # Markers of different methods are at different epochs.
        every = max(len(epochs) // MARKS_PER_CURVE, 1)
        start = index * every // len(methods)
        style = styles[method]
        panel.plot(
            epochs,
            mean,
            label=method,
            markersize=5,
            markevery=(start, every),
            **style,
        )
        # Without the steep start, which would dominate the axis.
        rest = slice(len(mean) // 10, None)
        error = np.nan_to_num(error[rest])  # not known for one seed
        band = mean[rest] - error, mean[rest] + error
        panel.fill_between(
            epochs[rest], *band, color=style["color"], alpha=0.15, lw=0
        )
        bands += band
        ends += [epochs[0], epochs[-1]]
    _limit(panel, measure, np.concatenate(bands or [[]]))
    if ends and min(ends) < max(ends):
        margin = 0.02 * (max(ends) - min(ends))
        # The axis does not reach epoch 0.
        left = max(min(ends) - margin, min(ends) / 2)
        panel.set_xlim(left, max(ends) + margin)
    panel.set_xlabel("CPU seconds" if seconds else "epoch")
    panel.set_title(label(measure), fontsize=10)
    panel.xaxis.set_major_locator(
        MaxNLocator(integer=True, steps=[1, 2, 5, 10])
    )
    panel.grid(axis="y", color="#dddddd", linewidth=0.8)


def _curve(runs, measure):
    """Returns epochs, means and errors up to the end of the shortest run.

    Epoch 0, before training, is left out. Returns `None` if the runs do not
    have the measure.
    """
    curves = [run["curves"] for run in runs if measure.key in run["curves"]]
    if not curves:
        return None
    length = min(len(curve["epoch"]) for curve in curves)
    epochs = np.array(curves[0]["epoch"][:length])
    values = np.array([curve[measure.key][:length] for curve in curves], float)
    trained = epochs > 0
    if not trained.any():
        return None
    mean, error = mean_and_error(factor(measure) * values[:, trained])
    return epochs[trained], mean, error


def _limit(panel, measure, shown):
    """Sets the limits so that all of the given values are visible."""
    shown = shown[np.isfinite(shown)]
    if not len(shown):
        return
    low, high = shown.min(), shown.max()
    if not measure.higher_is_better and low > 0 and high > LOGARITHMIC * low:
        from matplotlib import ticker

        panel.set_yscale("log")
        panel.set_ylim(low / 1.1, high * 1.1)
        panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter(ticker.NullFormatter())
        return
    margin = 0.06 * (high - low) or 0.01 * abs(high) or 1.0
    panel.set_ylim(low - margin, high + margin)
