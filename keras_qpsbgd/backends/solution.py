"""What backends return: solutions and estimates of their cost."""

import dataclasses
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
        seconds: Float. QPU access time of all layers.
        calls: Integer. Number of QPU calls.
        note: String. The source of the timing data, or why the estimate is
            zero.
    """

    seconds: float
    calls: int
    note: str
