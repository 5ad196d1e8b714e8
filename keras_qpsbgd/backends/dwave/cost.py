"""QPU time: published timing data, estimates, and the budget."""

import threading
from typing import Any
from typing import NamedTuple

from keras_qpsbgd.backends.dwave import step
from keras_qpsbgd.backends.dwave.cliques import PackedCall
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import BudgetExceeded
from keras_qpsbgd.backends.solution import StepCost

# Timing data

# A QPU lists its timing data in the property `problem_timing_data`. Those below
# are for estimates without a QPU. All times are in microseconds.


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

# For an Advantage2 system, D-Wave documents only these three times. For the
# readout time, it documents the range 17 to 101, so this is the upper end for
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


def access_time(sampler, num_qubits, **parameters):
    """Estimates the QPU access time of one call, in seconds.

    Args:
        sampler: A `DWaveSampler` or `MockQPU`.
        num_qubits: Integer. Number of qubits that the problem occupies.
        **parameters: Parameters of the call, such as `num_reads` and
            `annealing_time`.

    Raises:
        KeyError, ValueError: If Ocean does not support the solver's timing
            data.
    """
    solver = getattr(sampler, "solver", None)
    properties = getattr(solver, "properties", None) or {}
    if not properties.get("problem_timing_data"):
        solver = offline_solver(sampler.properties)
    return 1e-6 * solver.estimate_qpu_access_time(num_qubits, **parameters)


def timing_source(sampler):
    """Describes the timing data behind the estimates for a sampler.

    Args:
        sampler: A `DWaveSampler` or `MockQPU`.

    Returns:
        A string, such as `"Advantage_system4.1, August 2022 (...)"`.
    """
    if sampler.properties.get("problem_timing_data"):
        solver = getattr(sampler, "solver", None)
        name = getattr(solver, "name", None) or "the solver"
        return f"{name}, its current `problem_timing_data`"
    return str(_published(sampler.properties))


def offline_solver(properties):
    """Returns Ocean's cost model for a chip, given only its properties.

    Uses `problem_timing_data` of the properties, or published timing data of a
    chip of the same topology if there are none.
    """
    from dwave.cloud.solver import StructuredSolver

    known = _published(properties)
    own = properties.get("problem_timing_data")
    data = {
        "identity": {"name": known.solver, "version": {"graph_id": ""}},
        "properties": {
            "supported_problem_types": ["ising", "qubo"],
            "qubits": [],
            "couplers": [],
            "problem_timing_data": dict(own or known.data),
        },
    }
    return StructuredSolver(client=None, data=data)


def _published(properties):
    topology = properties.get("topology") or {}
    return PUBLISHED.get(topology.get("type"), PUBLISHED["pegasus"])


# Budget


class Budget:
    """Keeps the sum of charged seconds below a limit.

    Each call reserves its estimated time. A reservation is rejected if it could
    exceed the limit, together with everything else that is reserved or charged.
    The limit therefore also holds for several threads.

    Args:
        seconds: Float (optional). The limit. Defaults to `None`, which counts
            seconds without a limit.
    """

    def __init__(self, seconds=None):
        self.seconds = seconds
        self.charged = 0.0
        self._reserved = 0.0
        self._lock = threading.Lock()

    def remaining(self):
        """Returns the seconds that are not spent or reserved, or `None`."""
        if self.seconds is None:
            return None
        with self._lock:
            return self.seconds - self.charged - self._reserved

    def reserve(self, seconds):
        """Reserves seconds, or raises `BudgetExceeded`."""
        with self._lock:
            committed = self.charged + self._reserved
            if self.seconds is not None and committed + seconds > self.seconds:
                raise BudgetExceeded(
                    "The next call could exceed `qpu_budget_seconds`: "
                    f"{committed:.4g} s are spent or reserved, and the call "
                    f"would take {seconds:.4g} s. "
                    f"Received: qpu_budget_seconds={self.seconds:g}"
                )
            self._reserved += seconds
        return seconds

    def settle(self, reserved, charged):
        """Replaces a reservation with the seconds that were charged."""
        with self._lock:
            self._reserved -= reserved
            self.charged += charged


# Training steps


class LayerCost(NamedTuple):
    """Cost of one training step of one layer.

    Attributes:
        num_variables: Integer. Number of inputs of the layer.
        num_columns: Integer. Number of outputs of the layer.
        block_size: Integer. Number of variables that are annealed together.
        longest_chain: Integer. Number of qubits of the longest chain.
        copies: Integer. Number of columns that are annealed in one call.
        calls: Integer. Number of QPU calls per step. For a layer that is solved
            in blocks, the maximum number.
        seconds: Float. QPU access time of these calls.
        one_by_one_seconds: Float. QPU access time with one call per column.
    """

    num_variables: int
    num_columns: int
    block_size: int
    longest_chain: int
    copies: int
    calls: int
    seconds: float
    one_by_one_seconds: float


def layer_cost(backend, num_variables, num_columns):
    """Estimates the cost of one training step of a layer.

    Args:
        backend: A `DWaveBackend`. With `mock=True`, nothing is sent to D-Wave.
        num_variables: Integer. Number of inputs of the layer.
        num_columns: Integer. Number of outputs of the layer.

    Returns:
        A `LayerCost`.

    Raises:
        BackendUnavailable: If the layer does not fit on the chip.
    """
    backend.check(num_variables, num_columns)
    packed = step.pack_groups(backend, [(num_variables, num_columns)])
    total = _step_calls(backend, packed)
    ((calls, rounds),) = packed
    width = len(calls[0].slots[0].chains)
    return LayerCost(
        num_variables,
        num_columns,
        width,
        max(call.longest_chain for call in calls),
        len(calls[0].slots),
        total.num_calls,
        total.seconds,
        rounds * num_columns * backend.estimate(width, 1),
    )


class CallCost(NamedTuple):
    """Calls with the same layers and the same qubits.

    Attributes:
        layers: Tuple of integers. Indices of the layers in these calls.
        repeats: Integer. Number of these calls per step. For a layer that is
            solved in blocks, the maximum number.
        seconds: Float. QPU access time of one of them.
        example: `PackedCall`. The first of them.
    """

    layers: tuple[int, ...]
    repeats: int
    seconds: float
    example: PackedCall


class StepCalls(NamedTuple):
    """The calls of one training step.

    Attributes:
        calls: Tuple of `CallCost`.
    """

    calls: tuple[CallCost, ...]

    @property
    def num_calls(self) -> int:
        """Number of calls per step."""
        return sum(call.repeats for call in self.calls)

    @property
    def seconds(self) -> float:
        """QPU access time of a step."""
        return sum(call.repeats * call.seconds for call in self.calls)


def step_calls(backend: Any, sizes: Any) -> StepCalls:
    """Estimates the calls of one training step of a network.

    Args:
        backend: A `DWaveBackend`. With `mock=True`, nothing is sent to D-Wave.
        sizes: Sequence of tuples `(num_inputs, num_outputs)`, one per layer.

    Returns:
        A `StepCalls`.

    Raises:
        BackendUnavailable: If a layer does not fit on the chip, or if there is
            no cost model for the solver.
    """
    return _step_calls(backend, step.pack_groups(backend, sizes))


def step_cost(backend: Any, sizes: Any) -> StepCost:
    """Estimates the cost of one training step of a network.

    For layers that are solved in blocks, the estimate uses the maximum number
    of sweeps.

    Args:
        backend: A `DWaveBackend`.
        sizes: List of tuples `(num_inputs, num_outputs)`, one per layer.

    Returns:
        A `StepCost`. Without a cost model for the solver, its time is zero and
        its note says why.

    Raises:
        BackendUnavailable: If no solver can be reached, or if a layer does not
            fit on the chip.
    """
    packed = step.pack_groups(backend, sizes)
    try:
        total = _step_calls(backend, packed)
    except BackendUnavailable as error:  # the solver has no cost model
        calls = sum(rounds * len(calls) for calls, rounds in packed)
        return StepCost(0.0, calls, str(error))
    note = f"Timing data: {timing_source(backend.open().sampler)}"
    return StepCost(total.seconds, total.num_calls, note)


def _step_calls(backend, packed):
    """Returns the `StepCalls` of packed groups of layers."""
    found = []
    for calls, rounds in packed:
        alike = {}
        for call in calls:
            alike.setdefault((call.layers, call.chains), []).append(call)
        found += [
            CallCost(
                same[0].layers,
                rounds * len(same),
                backend.call_seconds(same[0].num_qubits),
                same[0],
            )
            for same in alike.values()
        ]
    return StepCalls(tuple(found))
