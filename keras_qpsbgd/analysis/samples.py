"""Measures the quality and the diversity of the reads of an annealer."""

from __future__ import annotations

import dataclasses
from typing import Any
from typing import Union

import dimod
import numpy as np

from keras_qpsbgd.analysis import common
from keras_qpsbgd.analysis.run import Update
from keras_qpsbgd.backends import Solution

# All types that have reads.
ReadsLike = Union[Update, Solution, dimod.SampleSet]
# Energies are float32 in training. They count as equal if they differ by at
# most this factor times the largest absolute energy.
TIE = 1e-6


def reads_of(
    source: ReadsLike, column: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the reads of one column.

    Args:
        source: An `Update`, a `Solution`, or a `dimod.SampleSet`. If an update
            or a solution has only one state per column, that state is the only
            read. A sample with several occurrences in a `SampleSet` counts as
            several reads.
        column: Integer. Index of the column. A `SampleSet` has one column.
            Defaults to `0`.

    Returns:
        A tuple of the reads of +1 and -1, an array (reads, n), and their
        energies, an array (reads,).

    Raises:
        ValueError: If `source` has another type or no reads, or if there is no
            such column.
    """
    if isinstance(source, dimod.SampleSet):
        record = source.record
        spins = source.vartype is dimod.SPIN
        samples = record.sample if spins else 2 * record.sample - 1
        counts = record.num_occurrences
        samples = np.repeat(samples, counts, axis=0)[:, :, None]
        energies = np.repeat(record.energy, counts)[:, None]
    elif isinstance(source, (Update, Solution)):
        samples, energies = source.samples, source.sample_energies
        if samples is None:
            # Held weights count as +1, as in `Update.energies`.
            states = np.where(source.states == 0, 1, source.states)
            samples, energies = states[None], source.energies[None]
    else:
        raise ValueError(
            "`source` must be an `Update`, a `Solution`, or a "
            f"`dimod.SampleSet`. Received: {type(source).__name__}"
        )
    if energies is None or not len(samples):
        raise ValueError(
            "`source` must have at least one read with its energy. Received: "
            f"{source!r}"
        )
    num_columns = samples.shape[2]
    if not 0 <= column < num_columns:
        raise ValueError(
            f"`column` must be at least 0 and less than {num_columns}. "
            f"Received: column={column}"
        )
    return (
        np.asarray(samples[:, :, column], np.int8),
        np.asarray(energies[:, column], np.float64),
    )


# Energies


@dataclasses.dataclass
class EnergyHistogram:
    """The result of `energy_histogram`.

    Attributes:
        counts: Integer array (bins,). Number of reads per bin.
        edges: Array (bins + 1,). Edges of the bins, relative to `best`.
        best: Float. The energy that the others are relative to.
        hits: Float. Fraction of reads with this energy.
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

    Energies are relative to the best one, so the reads in the first bin have
    this energy or one close to it.

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
        ValueError: If `source` has no reads, if there is no such column, or if
            a read is better than `best`.

    Example:
        ```python
        backend = kq.backends.get(
            {"name": "simulated_annealing", "num_reads": 100}
        )
        histogram = kq.analysis.energy_histogram(backend.solve(qubo))
        print(histogram.hits)
        ```
    """
    _, energies = reads_of(source, column)
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


def plot_energy_histogram(histogram: EnergyHistogram, ax: Any = None) -> Any:
    """Draws an energy histogram.

    Args:
        histogram: An `EnergyHistogram`.
        ax: Matplotlib axes (optional). Defaults to `None`, which creates a
            figure.

    Returns:
        The axes.
    """
    ax = common.new_axes() if ax is None else ax
    ax.stairs(
        histogram.counts, histogram.edges, fill=True, color=common.COLORS[0]
    )
    ax.axvline(
        histogram.mean, color=common.COLORS[1], linestyle="--", label="mean"
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


# Similarity


@dataclasses.dataclass
class SampleSimilarity:
    """The result of `sample_similarity`.

    Attributes:
        matrix: Array (k, k). Jaccard similarity of each pair of reads. The best
            read comes first.
        mean: Float. Mean over all pairs of two different reads.
        energies: Array (k,). Energies of the reads.
        samples: Array (k, n). The reads, +1 or -1.
    """

    matrix: np.ndarray
    mean: float
    energies: np.ndarray
    samples: np.ndarray


def sample_similarity(
    source: ReadsLike, k: int = 10, column: int = 0
) -> SampleSimilarity:
    r"""Computes the Jaccard similarity of the `k` best reads of one column.

    A read \(g\) is treated as the set \(P(g)\) of variables that are +1. The
    similarity of two reads is

    $$J(g, h) = \frac{|P(g) \cap P(h)|}{|P(g) \cup P(h)|},$$

    which is 1 if they are equal and 0 if they have no +1 in common. Two reads
    without any +1 have similarity 1. If the best reads are similar, the solver
    keeps finding the same valley of the energy landscape.

    Args:
        source: An `Update` of a recorded run, the `Solution` of a backend, or a
            `dimod.SampleSet`.
        k: Integer. Number of reads, at least 2. If there are fewer reads, all
            of them are used. Reads of equal energy keep their order. Defaults
            to `10`.
        column: Integer. Index of the column. Defaults to `0`.

    Returns:
        A `SampleSimilarity`.

    Raises:
        ValueError: If `k` is less than 2, if `source` has fewer than two reads,
            or if there is no such column.

    Example:
        ```python
        backend = kq.backends.get(
            {"name": "simulated_annealing", "num_reads": 100}
        )
        similarity = kq.analysis.sample_similarity(backend.solve(qubo), k=10)
        print(similarity.mean)
        ```
    """
    if k < 2:
        raise ValueError(f"`k` must be at least 2. Received: k={k}")
    samples, energies = reads_of(source, column)
    if len(samples) < 2:
        raise ValueError(
            "`source` must have at least two reads. Received: "
            f"{len(samples)} read"
        )
    best = np.argsort(energies, kind="stable")[:k]
    positive = (samples[best] > 0).astype(np.int64)
    both = positive @ positive.T
    sizes = positive.sum(axis=1)
    either = sizes[:, None] + sizes[None, :] - both
    matrix = np.divide(both, either, out=np.ones(both.shape), where=either > 0)
    pairs = matrix[np.triu_indices(len(best), 1)]
    return SampleSimilarity(
        matrix, float(pairs.mean()), energies[best], samples[best]
    )


def plot_sample_similarity(similarity: SampleSimilarity, ax: Any = None) -> Any:
    """Draws a similarity matrix as a heat map.

    Args:
        similarity: A `SampleSimilarity`.
        ax: Matplotlib axes (optional). Defaults to `None`, which creates a
            figure.

    Returns:
        The axes.
    """
    ax = common.new_axes(width=4.8) if ax is None else ax
    number = len(similarity.matrix)
    image = ax.imshow(similarity.matrix, vmin=0.0, vmax=1.0, cmap="viridis")
    bar = ax.figure.colorbar(image, ax=ax, label="Jaccard similarity")
    bar.outline.set_visible(False)
    ticks = np.arange(0, number, max(1, -(-number // 10)))
    ax.set(
        xticks=ticks,
        yticks=ticks,
        xticklabels=ticks + 1,
        yticklabels=ticks + 1,
        xlabel="read, best first",
        ylabel="read, best first",
        title=f"{number} best reads, mean similarity {similarity.mean:.2f}",
    )
    return ax
