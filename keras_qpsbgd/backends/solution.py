"""What backends return: solutions, their `info`, and estimates of cost."""

import dataclasses
import functools
import operator
from typing import NamedTuple
from typing import Optional

import numpy as np


@dataclasses.dataclass
class Solution:
    """The best states that a backend found for the columns of one `Qubo`.

    Attributes:
        states: int8 array of shape (n, m). The best states, +1 or -1.
        energies: Array of shape (m,). Equal to `Qubo.energy(states)`.
        info: Dictionary. The number of `calls` to the solver, of `retries` and
            of `reads`, the `energies` of all reads (reads, m), and entries
            that only some backends have, such as `qpu_access_time`
            (microseconds, as in Ocean), `problem_id` (a list, one per answered
            call), `chain_break_fraction` and `proven_optimal` (per column).
        samples: Array of shape (reads, n, m) with all reads, or `None` if there
            is only one read.
        sample_energies: Array of shape (reads, m) with the energies of
            `samples`, or `None`.
    """

    states: np.ndarray
    energies: np.ndarray
    info: dict = dataclasses.field(default_factory=dict)
    samples: Optional[np.ndarray] = None
    sample_energies: Optional[np.ndarray] = None


class StepCost(NamedTuple):
    """The estimated QPU time of one training step.

    Attributes:
        seconds: Float. QPU access time of all layers. NaN if it is unknown.
        calls: Integer. Number of QPU calls. 0 if it is unknown.
        note: String. The source of the timing data, or why the estimate is
            zero or unknown.
    """

    seconds: float
    calls: int
    note: str


# Entries of `info` that are summed over calls. Arrays are merged, and for all
# other entries, the first value is used.
_SUMMED = (
    "calls",
    "retries",
    "shared_calls",
    "shared_retries",
    "problem_id",  # lists of strings
    "qpu_access_time",
    "work",
    "run_time",
    "charge_time",
)


def merge_column_info(parts):
    """Merges calls for different columns; arrays are concatenated."""
    return _merge(parts, lambda arrays: np.concatenate(arrays, axis=-1))


def merge_block_info(parts):
    """Merges calls for different blocks of the same columns.

    Arrays are averaged. `energies` and `proven_optimal` are dropped, because
    the values of a block do not apply to the whole column.
    """
    parts = [
        {
            name: value
            for name, value in part.items()
            if name not in ("energies", "proven_optimal")
        }
        for part in parts
    ]
    return _merge(parts, lambda arrays: np.mean(arrays, axis=0))


def _merge(parts, merge_arrays):
    merged = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part[name] for part in parts if name in part]
        if name == "problem_id":  # a backend may return a single string
            values = [[v] if isinstance(v, str) else list(v) for v in values]
        if isinstance(values[0], np.ndarray) and values[0].ndim:
            merged[name] = merge_arrays(values)
        elif name in _SUMMED:
            merged[name] = functools.reduce(operator.add, values)
        else:
            merged[name] = values[0]
    return merged
