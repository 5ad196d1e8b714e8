"""The reads of one column, whatever holds them."""

from __future__ import annotations

from typing import NamedTuple
from typing import Union

import dimod
import numpy as np

from keras_qpsbgd.analysis.run import Update
from keras_qpsbgd.backends import Solution

# Everything that has reads.
ReadsLike = Union[Update, Solution, dimod.SampleSet]


class Reads(NamedTuple):
    """Attributes: `samples` (reads, n) of +1 and -1, `energies` (reads,)."""

    samples: np.ndarray
    energies: np.ndarray


def reads_of(source: ReadsLike, column: int = 0) -> Reads:
    """Returns the reads of one column.

    Args:
        source: An `Update`, a `Solution`, or a `dimod.SampleSet`. If an update
            or a solution has only one state per column, this is one read. A
            sample that a `SampleSet` counts several times is as many reads.
        column: Integer. Index of the column. A `SampleSet` has one column.
            Defaults to `0`.

    Returns:
        A `Reads`.

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
        if energies is None and isinstance(source, Update):
            energies = source.qubo.varying_energies(samples)
            energies = energies + source.qubo.random_energy()
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
    return Reads(
        np.asarray(samples[:, :, column], np.int8),
        np.asarray(energies[:, column], np.float64),
    )
