"""The figures and the table of `python -m research appendix`.

They are made from the stored numbers. The text of the page
`results/appendix/README.md` is written by hand.
"""

import json
import pathlib

import numpy as np

from keras_qpsbgd import analysis
from research import pages
from research.analysis import direction_test
from research.analysis import spectrum
from research.analysis.appendix import NUMBERS
from research.analysis.appendix import restored
from research.engine import figures
from research.engine.methods import METHODS
from research.engine.statistics import mean_and_error
from research.engine.tables import markdown_table
from research.experiments.tasks import direction as directions

DPI = 90  # for small files
# The paper's numbers by our labels. Its QP-SBGD has the paper's rule.
PAPER = dict(
    zip(
        (METHODS["paper"].label, METHODS["signsgd"].label),
        directions.PAPER.values(),
    )
)
UNKNOWN = "a plot; its numbers are not known to us"


def write(folder):
    """Draws the figures and writes the table from the numbers in a folder.

    Returns:
        The path of the page.
    """
    folder = pathlib.Path(folder)
    study = json.loads((folder / NUMBERS).read_text())
    for name, function in FIGURES.items():
        figures.save(function(study), folder / f"{name}.png", DPI)
    title = "The figures of the paper's appendix"
    return pages.write(folder / pages.NAME, title, {"table": table(study)})


# Figures


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
        found = restored(spectrum.SpectralGap, row["spectrum"])
        spectrum.plot_spectral_gap(found, axis)
        axis.set_title(f"k = {row['width']}: {axis.get_title()}", size=9)
    return figure


def direction(study):
    """All runs of a row are one test."""
    tests, ranges = {}, {}
    for place, row in enumerate(study["direction"]):
        counts = np.array(row["comparisons"])
        agreed = np.round(np.array(row["agreement"]) * counts).sum()
        tests[row["method"]] = direction_test.DirectionTest(
            int(agreed), int(counts.sum())
        )
        if row["method"] in PAPER:
            ranges[place + 0.2] = PAPER[row["method"]]
    figure = figures.blank(7.0, 3.2)
    axis = figure.subplots()
    direction_test.plot(tests, axis)
    low, high = np.transpose(list(ranges.values()))
    axis.hlines(
        list(ranges), low, high, color="0.6", linewidth=5, label="the paper"
    )
    axis.set_xlim(0.4, 0.75)
    axis.legend(frameon=False, loc="lower right")
    return figure


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


# The table


def table(study):
    """What was found beside what the paper reports."""
    lines = []
    for title, here, paper in _rows(study):
        anchor = title.lower().replace(" ", "-")
        lines.append([f"[{title}](#{anchor})", here, paper])
    return markdown_table(["figure", "here", "paper"], lines)


def _rows(study):
    reads, embedding = study["reads"], study["embedding"]
    found = {
        name: np.mean([v for v in study["evolution"][name] if v is not None])
        for name in ("coupling_changes", "field_cosines", "changed_states")
    }
    least = [
        f"{row['least']:.3f} (k = {row['width']})" for row in study["gaps"]
    ]
    return [
        (
            "Evolution of the QUBO",
            f"couplings change by {100 * found['coupling_changes']:.0f} % of "
            "their norm; mean cosine of consecutive fields "
            f"{found['field_cosines']:.2f}; "
            f"{100 * found['changed_states']:.0f} % of the states change",
            UNKNOWN,
        ),
        (
            "Energy histogram",
            f"{100 * reads['hits']:.0f} % of the reads of "
            f"{reads['columns']} columns are optimal",
            UNKNOWN,
        ),
        (
            "Similarity of the best samples",
            f"mean {reads['similarity']:.2f}",
            UNKNOWN,
        ),
        (
            "Minor embedding",
            f"{embedding['qubits']} qubits and {embedding['couplers']} "
            f"couplers, chains of up to {embedding['longest']}, found once per "
            "layer",
            "a plot; embedding stretched one minute of QPU time to six hours",
        ),
        ("Spectral gap", pages.joined(least), "0.03 and 0.01"),
        ("Direction test", *_directions(study["direction"])),
        (
            "Fixed points",
            _fixed_points(study),
            "a theorem; its numbers are not known to us",
        ),
    ]


def _directions(rows):
    """Returns what was found and what the paper reports."""
    found, reported = [], []
    for row in rows:
        mean, error = mean_and_error(row["agreement"])
        z = f"Z = {min(row['z']):.1f} to {max(row['z']):.1f}"
        name = row["method"]
        found.append(f"{name}: {mean:.3f} +- {error:.3f} ({z})")
    z = " (Z = {} to {})".format(*directions.PAPER_Z)
    for method, (low, high) in PAPER.items():
        reported.append(f"{method}: {low} to {high}{z}")
        z = ""  # known for QP-SBGD only, which is the first
    return "; ".join(found), "; ".join(reported)


def _fixed_points(study):
    found = []
    for row in study["fixed_points"]:
        last = [shares[-1] for shares in row["shares"]]
        mean, error = mean_and_error([100 * share for share in last])
        flips = 100 * np.mean([one[-1] for one in row["flips"]])
        found.append(
            f"{step_label(study, row)}: {mean:.0f} +- "
            f"{error:.0f} % of the columns, {flips:.1f} % of the signs change "
            f"per step, {last.count(1.0)} of {len(last)} runs converged"
        )
    return "; ".join(found)
