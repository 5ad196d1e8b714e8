"""How far the reads of an annealer are from the best energy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from keras_qpsbgd.analysis import axes
from keras_qpsbgd.analysis.samples.reads import ReadsLike
from keras_qpsbgd.analysis.samples.reads import reads_of

# Energies are float32 in training. Those this close, relative to the largest
# absolute energy, are equal.
TIE = 1e-6


@dataclasses.dataclass
class EnergyHistogram:
    """Result of `energy_histogram`.

    Attributes:
        counts: Integer array (bins,). Number of reads per bin.
        edges: Array (bins + 1,). Edges of the bins, relative to `best`.
        best: Float. The energy that the others are relative to.
        hits: Float. Share of reads with this energy.
        num_reads: Integer. Number of reads.
        mean: Float. Mean energy of the reads, relative to `best`.
    """

    counts: np.ndarray
    edges: np.ndarray
    best: float
    hits: float
    num_reads: int
    mean: float


def energy_histogram(
    source: ReadsLike,
    column: int = 0,
    bins: int = 20,
    best: float | None = None,
) -> EnergyHistogram:
    """Counts the reads of one column by their energy.

    Energies are relative to the best one. So a read in the first bin is at, or
    close to, the optimum.

    Args:
        source: An `Update` of a recorded run, the `Solution` of a backend, or a
            `dimod.SampleSet`.
        column: Integer. Index of the column. Defaults to `0`.
        bins: Integer. Number of bins of equal width. Defaults to `20`.
        best: Float (optional). The energy to compare with, such as the optimum
            that the backend `exact` found. Defaults to `None`, which uses the
            best read.

    Returns:
        An `EnergyHistogram`.

    Raises:
        ValueError: If `source` has no reads, if there is no such column, if
            `bins` is less than 1, or if a read is better than `best`.

    Example:

    ```python
    backend = kq.backends.get(
        {"name": "simulated_annealing", "num_reads": 100}
    )
    histogram = kq.analysis.energy_histogram(backend.solve(qubo))
    print(histogram.hits)
    ```
    """
    if bins < 1:
        raise ValueError(f"`bins` must be at least 1. Received: bins={bins}")
    energies = reads_of(source, column).energies
    least = float(energies.min())
    tie = TIE * max(1e-30, float(np.abs(energies).max()))
    if best is None:
        best = least
    elif least < best - tie:
        raise ValueError(
            f"`best` must be at most the energy of the best read, {least:g}. "
            f"Received: best={best}"
        )
    excess = np.maximum(energies - best, 0.0)
    # All reads may have the same energy.
    end = float(excess.max()) if excess.max() > tie else 1.0
    counts, edges = np.histogram(excess, bins=bins, range=(0.0, end))
    return EnergyHistogram(
        counts=counts,
        edges=edges,
        best=float(best),
        hits=float((excess <= tie).mean()),
        num_reads=len(energies),
        mean=float(excess.mean()),
    )


def plot_energy_histogram(
    histogram: EnergyHistogram | ReadsLike, ax: Any = None, **arguments: Any
) -> Any:
    """Draws an energy histogram.

    Args:
        histogram: An `EnergyHistogram`, or any source that `energy_histogram`
            accepts.
        ax: Matplotlib axis (optional). Defaults to `None`, which creates one.
        **arguments: Arguments of `energy_histogram`, if `histogram` is a
            source.

    Returns:
        The axis.
    """
    if not isinstance(histogram, EnergyHistogram):
        histogram = energy_histogram(histogram, **arguments)
    ax = axes.new_axes() if ax is None else ax
    ax.stairs(
        histogram.counts, histogram.edges, fill=True, color=axes.COLORS[0]
    )
    ax.axvline(
        histogram.mean, color=axes.COLORS[1], linestyle="--", label="mean"
    )
    ax.set(
        xlabel=f"energy above the best, {histogram.best:.4g}",
        ylabel="reads",
        title=(
            f"{100 * histogram.hits:.0f} % of {histogram.num_reads} reads have "
            "the best energy"
        ),
    )
    ax.legend(frameon=False)
    return ax
