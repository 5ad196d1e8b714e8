"""Timing data that D-Wave has published, for chips without their own.

A QPU lists its timing data in the property `problem_timing_data`. These are for
estimates without a QPU. All times are in microseconds.
"""

from typing import Any
from typing import NamedTuple


class Published(NamedTuple):
    """Timing data of one solver.

    Attributes:
        solver: String. Name of the solver.
        date: String. When the data were measured, or read from undated
            documentation.
        origin: String. Where they were published.
        data: Dictionary, in the format of `problem_timing_data`.
    """

    solver: str
    date: str
    origin: str
    data: dict[str, Any]

    def __str__(self):
        return f"{self.solver}, {self.date} ({self.origin})"


_ADVANTAGE = {
    "version": "1.0.0",
    "typical_programming_time": 14072.88,
    "reverse_annealing_with_reinit_prog_time_delta": 0.0,
    "reverse_annealing_without_reinit_prog_time_delta": 5.55,
    "default_programming_thermalization": 1000.0,
    "default_annealing_time": 20.0,
    "readout_time_model": "pwl_log_log",
    # log10 of numbers of qubits, then log10 of the readout times.
    "readout_time_model_parameters": [
        *(0.0, 0.7699665876947938, 1.7242758696010096),
        *(2.711975459489206, 3.1639057672764026, 3.750276915153992),
        *(1.539131714800995, 1.8726623164229292, 2.125631787097315),
        *(2.332672340068556, 2.371606651233025, 2.3716219271760215),
    ],
    "qpu_delay_time_per_sample": 20.54,
    "reverse_annealing_with_reinit_delay_time_delta": -4.5,
    "reverse_annealing_without_reinit_delay_time_delta": -1.5,
    "default_readout_thermalization": 0.0,
    "decorrelation_max_nominal_anneal_time": 2000.0,
    "decorrelation_time_range": [500.0, 10000.0],
}

# D-Wave documents only these three times of an Advantage2 system. Of the
# readout time it documents the range, 17 to 101, so this is the upper end for
# every problem. The other entries are those of Advantage.
_ADVANTAGE2 = {
    **_ADVANTAGE,
    "typical_programming_time": 33600.0,
    "readout_time_model": "pwl_linear",
    "readout_time_model_parameters": [1.0, 4592.0, 101.0, 101.0],
    "qpu_delay_time_per_sample": 60.6,
}

# By topology.
PUBLISHED = {
    "pegasus": Published(
        "Advantage_system4.1",
        "August 2022",
        "example data of dwave-cloud-client and of D-Wave's documentation",
        _ADVANTAGE,
    ),
    "zephyr": Published(
        "Advantage2_system1.7",
        "read in November 2026",
        "D-Wave's documentation of its physical properties, with the longest "
        "readout time",
        _ADVANTAGE2,
    ),
}


def for_topology(topology):
    """Returns the `Published` data for a topology."""
    return PUBLISHED.get(topology, PUBLISHED["pegasus"])
