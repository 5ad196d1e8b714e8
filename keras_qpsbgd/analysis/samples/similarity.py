"""How much the best reads of an annealer resemble each other."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from keras_qpsbgd.analysis import axes
from keras_qpsbgd.analysis.samples.reads import ReadsLike
from keras_qpsbgd.analysis.samples.reads import reads_of


@dataclasses.dataclass
class SampleSimilarity:
    """Result of `sample_similarity`.

    Attributes:
        matrix: Array (k, k). Jaccard similarity of each pair of reads, best
            read first.
        mean: Float. Mean over all pairs of different reads.
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

    A read \(g\) is regarded as the set \(P(g)\) of variables that are +1. The
    similarity of two reads is

    $$J(g, h) = \frac{|P(g) \cap P(h)|}{|P(g) \cup P(h)|},$$

    which is 1 if they are equal and 0 if they have no +1 in common. Two reads
    without any +1 have similarity 1. If the best reads resemble each other, the
    solver finds one valley of the problem again and again.

    Args:
        source: An `Update` of a recorded run, the `Solution` of a backend, or a
            `dimod.SampleSet`.
        k: Integer. Number of reads, at least 2. If there are fewer, all are
            taken. Reads of equal energy keep their order. Defaults to `10`.
        column: Integer. Index of the column. Defaults to `0`.

    Returns:
        A `SampleSimilarity`.

    Raises:
        ValueError: If `k` is less than 2, if `source` has less than two reads,
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


def plot_sample_similarity(
    similarity: SampleSimilarity | ReadsLike, ax: Any = None, **arguments: Any
) -> Any:
    """Draws a similarity matrix as a heat map.

    Args:
        similarity: A `SampleSimilarity`, or any source that `sample_similarity`
            accepts.
        ax: Matplotlib axis (optional). Defaults to `None`, which creates one.
        **arguments: Arguments of `sample_similarity`, if `similarity` is a
            source.

    Returns:
        The axis.
    """
    if not isinstance(similarity, SampleSimilarity):
        similarity = sample_similarity(similarity, **arguments)
    ax = axes.new_axes(width=4.8) if ax is None else ax
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
