"""The figures of `python -m research appendix`, drawn from its numbers."""

import pathlib

import numpy as np

from keras_qpsbgd import analysis
from keras_qpsbgd.comparison import figures
from keras_qpsbgd.comparison.statistics import mean_and_error
from research.analysis.appendix import restored
from research.experiments.tasks.direction import PAPER

DPI = 90  # for small files


def draw(study, folder):
    """Draws all figures.

    Args:
        study: result of `appendix.study`.
        folder: folder to write to.

    Returns:
        List of paths.
    """
    paths = []
    for name, function in FIGURES.items():
        paths.append(pathlib.Path(folder, f"{name}.png"))
        figures.save(function(study), paths[-1], DPI)
    return paths


def evolution(study):
    figure = figures.blank(7.0, 3.6)
    found = restored(analysis.QuboEvolution, study["evolution"])
    analysis.plot_qubo_evolution(found, ax=figure.subplots())
    return figure


def histogram(study):
    figure = figures.blank(9.0, 3.4)
    updates = study["reads"]["updates"]
    for axis, update in zip(figure.subplots(1, len(updates)), updates):
        found = restored(analysis.EnergyHistogram, update["histogram"])
        analysis.plot_energy_histogram(found, axis)
        axis.set_title(f"update {update['step']}: {axis.get_title()}", size=9)
    return figure


def similarity(study):
    figure = figures.blank(9.0, 3.8)
    updates = study["reads"]["updates"]
    for axis, update in zip(figure.subplots(1, len(updates)), updates):
        found = restored(analysis.SampleSimilarity, update["similarity"])
        analysis.plot_sample_similarity(found, axis)
        axis.set_title(f"update {update['step']}: {axis.get_title()}", size=9)
    return figure


def embedding(study):
    figure = figures.blank(7.2, 3.7)
    found = analysis.embedding(study["embedding"]["variables"])
    analysis.plot_embedding(found, figure.subplots(1, 2))
    return figure


def spectra(study):
    rows = study["spectra"]
    figure = figures.blank(4.2 * len(rows), 3.6)
    axes = np.atleast_1d(figure.subplots(1, len(rows)))
    for axis, row in zip(axes, rows):
        found = restored(analysis.SpectralGap, row["spectrum"])
        analysis.plot_spectral_gap(found, axis)
        axis.set_title(f"k = {row['width']}: {axis.get_title()}", size=9)
    return figure


def direction(study):
    """All runs of a row are one test."""
    tests, ranges = {}, []
    for row in study["direction"]:
        counts = np.array(row["comparisons"])
        agreed = np.round(np.array(row["agreement"]) * counts).sum()
        tests[label(row)] = analysis.DirectionTest(
            int(agreed), int(counts.sum())
        )
        ranges.append(PAPER[row["method"]])
    figure = figures.blank(7.0, 3.2)
    axis = figure.subplots()
    analysis.plot_direction_test(tests, axis)
    places = np.arange(len(ranges)) + 0.2
    low, high = np.transpose(ranges)
    axis.hlines(places, low, high, color="0.6", linewidth=5, label="the paper")
    axis.set_xlim(0.4, 0.75)
    axis.legend(frameon=False, loc="lower right")
    return figure


def label(row):
    """Name of a row of `appendix.directions`."""
    if row["scale"] is None:
        return row["method"]
    return f'{row["method"]}, "{row["scale"]}"'


def fixed_points(study):
    figure = figures.blank(9.0, 3.2)
    titles = {
        "shares": "share of columns at a fixed point",
        "flips": "share of signs changed per step",
    }
    for axis, (key, title) in zip(figure.subplots(1, 2), titles.items()):
        for row, style in zip(study["fixed_points"], ("o-", "s--")):
            mean, error = mean_and_error(row[key])
            axis.errorbar(
                row["steps"],
                mean,
                error,
                fmt=style,
                capsize=3,
                label=step_label(study, row),
            )
        axis.set(xlabel="steps", ylabel=title)
        axis.set_ylim(bottom=0.0)
        axis.legend(frameon=False)
    return figure


def step_label(study, row):
    """Name of a row of `appendix.fixed_points`."""
    if row["batch"] == study["images"]:
        return "all images"
    return f"batches of {row['batch']}"


FIGURES = {
    "evolution": evolution,
    "histogram": histogram,
    "similarity": similarity,
    "embedding": embedding,
    "spectra": spectra,
    "direction": direction,
    "fixed_points": fixed_points,
}
