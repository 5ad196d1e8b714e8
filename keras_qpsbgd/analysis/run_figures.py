"""The pictures of the report page: the logs and the QUBOs of a recorded run.

They contain no text from the file, so Matplotlib never parses it.
"""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Callable
from typing import Any
from typing import NamedTuple
from typing import Optional

import numpy as np

from keras_qpsbgd.analysis import common
from keras_qpsbgd.analysis.evolution import qubo_evolution
from keras_qpsbgd.analysis.run import Run
from keras_qpsbgd.analysis.run import Update
from keras_qpsbgd.analysis.samples import plot_sample_similarity
from keras_qpsbgd.analysis.samples import reads_of
from keras_qpsbgd.analysis.samples import sample_similarity

MAX_POINTS = 200
NUM_BEST = 10
# Matplotlib cannot scale an axis to larger values.
LARGEST = 1e150
SIZE = (3.6, 2.2)  # inches
DPI = 160
# Titles of the logs of the solver, see `callbacks.SolverProgress`.
SOLVER_LOGS = {
    "solver_s": "Solver time, seconds per step",
    "solver_energy": "Energy of the solutions, mean over all columns",
    "solver_calls": "Solver calls",
    "solver_retries": "Repeated calls",
    "solver_failures": "Failed solves",
    "solver_fallbacks": "Fallbacks, solves by the on_failure backend",
    "solver_qpu_s": "QPU time, seconds per epoch",
    "solver_budget_s": "QPU budget, seconds left",
    "solver_chain_breaks": "Broken chains, mean over the updates",
}
COUNTS = [f"solver_{k}" for k in ("calls", "retries", "failures", "fallbacks")]


class Picture(NamedTuple):
    """A PNG with a transparent background, and its caption."""

    title: str
    note: str
    png: bytes


# The logs of the epochs


def logs(epochs: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Returns the numeric logs by name. A missing value is NaN."""
    found = {}
    for name in dict.fromkeys(name for epoch in epochs for name in epoch):
        values = np.array([_number(epoch.get(name)) for epoch in epochs])
        if np.isfinite(values).any():
            found[name] = values
    return found


def title_of(name: str) -> str:
    """Returns the name of a log in words, such as "Validation accuracy"."""
    if name in SOLVER_LOGS:
        return SOLVER_LOGS[name]
    rest = name.removeprefix("val_")
    start = "validation " if rest != name else ""
    text = start + rest.replace("_", " ").strip()
    return text[:1].upper() + text[1:]


def is_share(name: str, value: float) -> bool:
    """Returns whether a log is an accuracy or another share from 0 to 1."""
    is_named = "acc" in name.lower() or name == "solver_chain_breaks"
    return is_named and 0 <= value <= 1


def of_epochs(epochs: list[dict[str, Any]], limit: int) -> list[Picture]:
    """Draws each log, with training and validation in one picture.

    Counts of the solver that do not change are left out. The headline shows
    their sums.

    Args:
        epochs: List of dictionaries, the logs of each epoch.
        limit: Integer. The maximum number of pictures.
    """
    found = logs(epochs)
    names = [
        name
        for name in found
        if not (name.startswith("val_") and name[4:] in found)
        and not (name in COUNTS and len(set(found[name])) == 1)
        and name != "epoch"
    ]
    # The loss, the metrics, and then what the solver reports.
    names.sort(key=lambda n: (n.startswith("solver"), "loss" not in (n, n[4:])))
    drawn = thin(len(epochs))
    pictures = []
    for name in names[:limit]:
        series = {"training": found[name]}
        if f"val_{name}" in found:
            series["validation"] = found[f"val_{name}"]
        elif name.startswith("val_"):
            series = {"validation": found[name]}
        series = {label: values[drawn] for label, values in series.items()}
        values = np.concatenate(list(series.values()))
        # The axes of all solver logs start at zero, except for energies.
        is_size = name in SOLVER_LOGS and name != "solver_energy"
        pictures.append(
            curves(
                title_of(name),
                "",
                drawn + 1,
                series,
                "epoch",
                all(is_share(name, v) for v in values[np.isfinite(values)]),
                0.0 if is_size else None,
            )
        )
    return pictures


def _number(value):
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < LARGEST else math.nan


# The updates of a layer


def of_layer(name: str, updates: list[Update]) -> list[Picture]:
    """Draws the QUBOs, the energies and the reads of one layer."""
    evolution = qubo_evolution(Run(updates=updates), name)
    drawn = thin(len(updates))
    shown = [updates[index] for index in drawn]
    # A diverged run has values that are not finite.
    with np.errstate(invalid="ignore", over="ignore"):
        energies = [update.energies for update in shown]
        randoms = [update.qubo.random_energy().mean() for update in shown]
    held = np.array([(update.states == 0).mean() for update in shown])

    def chart(title, note, series, **options):
        steps = evolution.steps[drawn]
        return curves(title, note, steps, series, "step", **options)

    pictures = [
        chart(
            "Energy of the applied states",
            "Mean over the columns. The band spans the lowest to the highest "
            "column.",
            {
                "applied": [each.mean() for each in energies],
                "random states": randoms,
            },
            band=(
                [each.min() for each in energies],
                [each.max() for each in energies],
            ),
        ),
        chart(
            "Changed and held entries",
            "Changed: the sign differs from the previous recorded update.",
            {"changed": evolution.changed_states[drawn], "held": held},
            share=True,
            bottom=0.0,
        ),
        chart(
            "Size of the couplings",
            "Frobenius norm of Q without its diagonal, which is constant for "
            "spins.",
            {"couplings": evolution.coupling_norms[drawn]},
            bottom=0.0,
        ),
        chart(
            "Size of the fields",
            "Frobenius norm of s.",
            {"fields": evolution.field_norms[drawn]},
            bottom=0.0,
        ),
    ]
    for update in reversed(updates):
        if update.samples is not None and len(update.samples) > 1:
            return [*pictures, *_reads(update)]
    return pictures


def _reads(update):
    """Draws the energies of all reads of an update, and the best reads."""
    columns = range(update.qubo.num_columns)
    energies = [_finite(reads_of(update, j)[1]) for j in columns]
    energies = [values[np.isfinite(values)] for values in energies]
    excess = np.concatenate(
        [values - values.min(initial=LARGEST) for values in energies]
    )

    def histogram(axes):
        axes.hist(excess, 24, color=common.COLORS[0])
        axes.set(xlabel="energy above the best read", ylabel="reads")

    yield Picture(
        "Energies of the reads",
        f"{len(update.samples):,} reads of each column at step "
        f"{update.step:,}, compared with the best read of the same column.",
        draw(histogram),
    )
    found = [sample_similarity(update, NUM_BEST, column) for column in columns]
    matrix = np.mean([each.matrix for each in found], axis=0)
    mean = float(np.mean([each.mean for each in found]))

    def heat_map(axes):
        shown = dataclasses.replace(found[0], matrix=matrix, mean=mean)
        plot_sample_similarity(shown, axes).set_title("")
        # This colormap stays monotonic in lightness when the page inverts it.
        axes.images[0].set_cmap("Blues")

    yield Picture(
        "Similarity of the best reads",
        f"Jaccard similarity of the {len(matrix)} best reads at step "
        f"{update.step:,}, mean over the columns. Mean over all pairs: "
        f"{100 * mean:.0f} %.",
        draw(heat_map),
    )


# Matplotlib


def thin(count: int) -> np.ndarray:
    """Returns at most `MAX_POINTS` indices, including both ends."""
    drawn = min(count, MAX_POINTS)
    return np.unique(np.linspace(0, count - 1, drawn).round().astype(int))


def curves(
    title: str,
    note: str,
    x: np.ndarray,
    series: dict[str, Any],
    x_label: str,
    share: bool = False,
    bottom: Optional[float] = None,
    band: Any = None,
) -> Picture:
    """Draws at most two curves over a common axis.

    Values that are not finite interrupt a curve. `share` shows them in percent,
    `bottom` is the lower end of the axis unless a value is below it, and `band`
    has the lower and upper ends of a band around the first curve.
    """
    series = {name: _finite(values) for name, values in series.items()}

    def paint(axes):
        styles = zip(series.items(), common.COLORS, ("-", "--"))
        for (name, values), color, line in styles:
            axes.plot(x, values, line, color=color, label=name, marker=".")
        if band is not None:
            ends = map(_finite, band)
            axes.fill_between(x, *ends, color=common.COLORS[0], alpha=0.2, lw=0)
        if bottom is not None:
            finite = [values[np.isfinite(values)] for values in series.values()]
            axes.set_ylim(np.concatenate(finite).min(initial=bottom))
        axes.set_xlabel(x_label)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if share:
            ticker = common.require("matplotlib.ticker", "plots")
            axes.yaxis.set_major_formatter(ticker.PercentFormatter(1.0))
        axes.grid(axis="y", color="0.5", alpha=0.25, linewidth=0.6)
        if len(series) > 1:
            axes.legend(frameon=False, fontsize=7)

    return Picture(title, note, draw(paint))


def draw(paint: Callable[[Any], Any]) -> bytes:
    """Returns a PNG of the axes that a function draws into.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    style = common.require("matplotlib.style", "plots")
    figures = common.require("matplotlib.figure", "plots")
    # Use dark lines, whatever the user's Matplotlib style is.
    with style.context(["default", {"font.size": 8, "lines.markersize": 4}]):
        figure = figures.Figure(figsize=SIZE, dpi=DPI, layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        paint(axes)
        file = io.BytesIO()
        # Omit the version of Matplotlib, which is not part of the run.
        figure.savefig(file, transparent=True, metadata={"Software": None})
    return file.getvalue()


def _finite(values):
    values = np.array(values, float)
    values[~(np.abs(values) < LARGEST)] = np.nan
    return values
