"""Figures of the experiments: curves, bars, ablations and an overview."""

import itertools
import math

import numpy as np

from research.engine import figures
from research.engine import statistics
from research.engine import tables
from research.engine.statistics import mean_and_error
from research.experiments.tables import axes_of
from research.experiments.tables import cell_of
from research.experiments.tables import median_seconds


def draw(runs, task, reference, path, times=()):
    """Draws the figure of a task.

    Args:
        runs: records of the experiment.
        task: a `Task`.
        reference: the method that is drawn on top.
        path: file to write.
        times: CPU times of the runs. If there are any, curves are also drawn
            against time.

    Raises:
        ImportError: Matplotlib is not installed.
    """
    if task.kind == "curves":
        seconds = median_seconds(times, task)
        figure = figures.figure_of(runs, task, reference, seconds)
    else:
        fresh = tables.select(runs, task=task.name, stage="fresh")
        styles = figures.styles_of(runs, reference)
        if task.kind == "cells":
            figure = _cells(fresh, task, reference)
        else:
            figure = _bars(fresh, task, reference, styles)
    figures.save(figure, path)


# Bars


def _bars(runs, task, reference, styles):
    """Draws a bar with its error for each method, and the paper's values."""
    measure = task.measures[0]
    factor = figures.factor(measure)
    methods = tables.methods_of(runs, reference)
    figure, (panel,) = figures.new(6.4, 1.4 + 0.42 * len(methods))
    for place, method in enumerate(methods):
        values = statistics.by_seed(tables.select(runs, method=method), measure)
        mean, error = mean_and_error(list(values.values()))
        panel.barh(
            place,
            factor * mean,
            xerr=None if math.isnan(error) else factor * error,
            height=0.6,
            color=styles[method]["color"],
            alpha=1.0 if method == reference else 0.7,
            error_kw={"capsize": 3},
        )
        paper = task.paper.get(method)
        ends = paper if isinstance(paper, tuple) else (paper, paper)
        if not any(isinstance(end, str) or end is None for end in ends):
            ends = [factor * end for end in ends]
            panel.plot(
                ends,
                [place + 0.38] * 2,
                color="black",
                marker="|",
                markersize=9,
                linewidth=2.5,
                solid_capstyle="butt",
                label="paper" if "paper" not in _labels(panel) else None,
            )
    panel.set_yticks(range(len(methods)), methods)
    panel.invert_yaxis()
    panel.set_xlabel(figures.label(measure))
    panel.grid(axis="x", color="#dddddd", linewidth=0.8)
    if _labels(panel):
        figure.legend(loc="outside lower right", frameon=False, fontsize=9)
    figures.add_title(figure, task, runs)
    return figure


def _labels(panel):
    return panel.get_legend_handles_labels()[1]


# Cells


def _cells(runs, task, reference):
    """Draws a map of means over two settings for each method."""
    measure = task.measures[0]
    row, column, row_values, column_values = axes_of(runs, task)
    methods = tables.methods_of(runs, reference)
    figure, axes = figures.new(
        (1.3 * len(column_values) + 1.0) * len(methods) + 1.2,
        0.7 * len(row_values) + 1.6,
        len(methods),
    )
    maps = {}
    for method in methods:
        of_method = tables.select(runs, method=method)
        maps[method] = [
            [
                list(
                    statistics.by_seed(
                        cell_of(of_method, row, column, value, other),
                        measure,
                    ).values()
                )
                for other in column_values
            ]
            for value in row_values
        ]
    means = {
        method: np.array([[_mean(cell) for cell in line] for line in cells])
        for method, cells in maps.items()
    }
    low = min(np.nanmin(values) for values in means.values())
    high = max(np.nanmax(values) for values in means.values())
    # Bright means good.
    colors = "cividis" if measure.higher_is_better else "cividis_r"
    for panel, method in zip(axes, methods):
        image = panel.imshow(
            means[method], cmap=colors, vmin=low, vmax=high, aspect="auto"
        )
        places = itertools.product(
            range(len(row_values)), range(len(column_values))
        )
        for i, j in places:
            cell = maps[method][i][j]
            red, green, blue, _ = image.cmap(image.norm(means[method][i, j]))
            bright = 0.3 * red + 0.6 * green + 0.1 * blue > 0.5
            panel.text(
                j,
                i,
                tables.mean_text(cell, measure).replace(" +- ", "\n+- ")
                if cell
                else "-",
                ha="center",
                va="center",
                fontsize=8,
                color="black" if bright else "white",
            )
        panel.set_title(method, fontsize=10)
        panel.set_xticks(range(len(column_values)), _ticks(column_values))
        panel.set_yticks(range(len(row_values)), _ticks(row_values))
        panel.set_xlabel(tables.setting_text(column, None))
        panel.spines[:].set_visible(False)
    axes[0].set_ylabel(tables.setting_text(row, None))
    figures.add_title(figure, task, runs)
    return figure


def _mean(values):
    return np.mean(values) if values else math.nan


def _ticks(values):
    return [tables.setting_text(None, value) for value in values]
