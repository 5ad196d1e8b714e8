"""One picture of a task: a dot with its standard error for each method."""

import math

from keras_qpsbgd.compare.report import canvas
from keras_qpsbgd.compare.report import figures
from keras_qpsbgd.compare.report import protocol
from keras_qpsbgd.compare.report import tables
from keras_qpsbgd.compare.report.statistics import mean_and_error

FILE = "overview.png"
WIDTH, HEIGHT = 8.0, 4.0  # inches, 150 pixels each
OTHER = "#5f6b76"
REAL = "#b0620a"
LINE = "#9aa3ab"
INK = "#1f2429"


def draw(runs, report, path):
    """Draws the methods of the first task, the best on top.

    Args:
        runs: records of the experiment.
        report: its `ExperimentReport`.
        path: file to write.

    Raises:
        ImportError: matplotlib is not installed.
    """
    task, reference = report.tasks[0], report.reference_method
    measure = task.measures[0]
    rows = _sorted_rows(runs, task, reference)
    figure = canvas.figure(WIDTH, HEIGHT)
    figure.set_facecolor("white")
    panel = figure.subplots()
    factor = 100 if measure.percent else 1
    for place, (row, mean, error) in enumerate(rows):
        color = _color(row.method, reference)
        ours = row.method == reference
        if ours:
            panel.axhspan(place - 0.5, place + 0.5, color=color, alpha=0.09)
        panel.errorbar(
            factor * mean,
            place,
            xerr=None if math.isnan(error) else factor * error,
            fmt="o" if row.method != protocol.REAL_WEIGHTS else "D",
            color=color,
            markersize=9 if ours else 7,
            linewidth=2.4 if ours else 1.8,
            capsize=4,
            zorder=3,
        )
        panel.text(
            1.01,
            place,
            tables.row_text(row, measure).replace("+-", "\N{PLUS-MINUS SIGN}"),
            transform=panel.get_yaxis_transform(),
            color=color if ours else INK,
            fontweight="bold" if ours else "normal",
            fontsize=10,
            va="center",
        )
    _label_methods(panel, [row.method for row, *_ in rows], reference)
    _reference_lines(panel, task, factor)
    _decorate(panel, task, measure, rows, reference)
    canvas.save(figure, path)


def _sorted_rows(runs, task, reference):
    """Rows with mean and error, the best first.

    Methods with fewer seeds than the reference are left out: their means are
    not comparable.
    """
    measure = task.measures[0]
    rows = tables.rows_of(runs, task, reference)
    counts = {row.method: len(row.values[measure.key]) for row in rows}
    rows = [
        (row, *mean_and_error(list(row.values[measure.key].values())))
        for row in rows
        if counts[row.method] >= counts.get(reference, 0)
    ]
    rows = [row for row in rows if not math.isnan(row[1])]
    return sorted(rows, key=lambda row: -measure.sign * row[1])


def _color(method, reference):
    if method.startswith(reference) and method != reference:
        return "#56a0d3"
    colors = {reference: figures.REFERENCE_COLOR, protocol.REAL_WEIGHTS: REAL}
    return colors.get(method, OTHER)


def _label_methods(panel, methods, reference):
    panel.set_yticks(range(len(methods)), methods, fontsize=10.5)
    for label, method in zip(panel.get_yticklabels(), methods):
        ours = method == reference
        label.set_color(_color(method, reference) if ours else INK)
        label.set_fontweight("bold" if ours else "normal")
    panel.set_ylim(len(methods) - 0.4, -0.6)


def _reference_lines(panel, task, factor):
    """Values published elsewhere."""
    for label, value in task.literature.items():
        panel.axvline(
            factor * value, color=LINE, linestyle=(0, (4, 3)), linewidth=1.3
        )
        panel.text(
            factor * value,
            1.01,
            f"{label}\n(published)",
            transform=panel.get_xaxis_transform(),
            color="#5f6b76",
            fontsize=8.5,
            ha="center",
            va="bottom",
        )


def _decorate(panel, task, measure, rows, reference):
    from matplotlib.ticker import MaxNLocator

    unit = " [%]" if measure.percent else ""
    seeds = {
        len(row.values[measure.key])
        for row, *_ in rows
        if row.method == reference
    }
    panel.set_xlabel(
        f"{measure.label}{unit}, mean and standard error of {max(seeds)} seeds",
        fontsize=10,
        color=INK,
    )
    panel.set_title(
        task.title, loc="left", fontsize=12, fontweight="bold", pad=32
    )
    panel.xaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
    panel.grid(axis="x", color="#e6e9ec", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.spines["bottom"].set_color(LINE)
    panel.tick_params(axis="y", length=0)
    panel.tick_params(axis="x", color=LINE, labelcolor=INK)
