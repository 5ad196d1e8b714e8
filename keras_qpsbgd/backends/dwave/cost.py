"""Estimates QPU time without a QPU, and keeps the budget.

A QPU lists its timing data in the property `problem_timing_data`. Without a
QPU, estimates use published data of a chip of the same topology.
"""

import threading
from typing import Any
from typing import NamedTuple

from keras_qpsbgd.backends.dwave import shared_calls
from keras_qpsbgd.backends.dwave.packing import PackedCall
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import BudgetExceeded
from keras_qpsbgd.backends.solution import StepCost

# By topology: the solver, and when and where the data were published.
SOURCES = {
    "pegasus": "Advantage_system4.1, August 2022 (example data of "
    "dwave-cloud-client and of D-Wave's documentation)",
    "zephyr": "Advantage2_system1.7, read in November 2026 (D-Wave's "
    "documentation of its physical properties, with the longest readout time)",
}
# For an Advantage2 system, D-Wave documents only these three times, in
# microseconds. It documents a range of 17 to 101 for the readout time, so all
# problems use the upper end. All other entries are those of Advantage.
ADVANTAGE2 = {
    "typical_programming_time": 33600.0,
    "readout_time_model": "pwl_linear",
    "readout_time_model_parameters": [1.0, 4592.0, 101.0, 101.0],
    "qpu_delay_time_per_sample": 60.6,
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
    return SOURCES[_topology(sampler.properties)]


def offline_solver(properties):
    """Returns Ocean's cost model for a chip, given only its properties.

    Uses `problem_timing_data` of the properties, or published timing data of a
    chip of the same topology if there are none.
    """
    from dwave.cloud.solver import StructuredSolver
    from dwave.cloud.testing.mocks import qpu_problem_timing_data

    timing = properties.get("problem_timing_data")
    if not timing:
        timing = qpu_problem_timing_data("advantage")
        if _topology(properties) == "zephyr":
            timing.update(ADVANTAGE2)
    data = {
        "identity": {"name": "offline", "version": {"graph_id": ""}},
        "properties": {
            "supported_problem_types": ["ising", "qubo"],
            "qubits": [],
            "couplers": [],
            "problem_timing_data": dict(timing),
        },
    }
    return StructuredSolver(client=None, data=data)


def _topology(properties):
    name = (properties.get("topology") or {}).get("type")
    return name if name in SOURCES else "pegasus"


# Budget


class Budget:
    """Keeps the sum of charged seconds below a limit.

    Each call reserves its estimated time. A reservation is rejected if it could
    exceed the limit together with all time that is reserved or charged. The
    limit therefore also holds if several threads make calls.

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


class CallCost(NamedTuple):
    """Calls with the same layers and the same qubits.

    Attributes:
        layers: Tuple of integers. Indices of the layers in these calls.
        repeats: Integer. Number of these calls per step. For a layer that is
            solved in blocks, the maximum number.
        seconds: Float. QPU access time of one of these calls.
        example: `PackedCall`. The first of these calls.
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
        """QPU access time per step, in seconds."""
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
    alike: dict[Any, list[Any]] = {}
    for call, repeats in shared_calls.plan(backend, sizes):
        alike.setdefault((call.layers, call.chains), []).append((call, repeats))
    return StepCalls(
        tuple(
            CallCost(
                layers,
                sum(repeats for _, repeats in same),
                backend.call_seconds(same[0][0].num_qubits),
                same[0][0],
            )
            for (layers, _), same in alike.items()
        )
    )


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
    planned = shared_calls.plan(backend, sizes)
    try:
        total = step_calls(backend, sizes)
    except BackendUnavailable as error:  # the solver has no cost model
        return StepCost(0.0, sum(repeats for _, repeats in planned), str(error))
    note = f"Timing data: {timing_source(backend.open().sampler)}"
    return StepCost(total.seconds, total.num_calls, note)


class LayerCost(NamedTuple):
    """Cost of one training step of one layer.

    Attributes:
        num_variables: Integer. Number of inputs of the layer.
        num_columns: Integer. Number of outputs of the layer.
        block_size: Integer. Number of variables that are annealed together.
        longest_chain: Integer. Number of qubits of the longest chain.
        calls: Integer. Number of QPU calls per step. For a layer that is solved
            in blocks, the maximum number.
        seconds: Float. QPU access time of these calls.
        one_by_one_seconds: Float. QPU access time with one call per column.
    """

    num_variables: int
    num_columns: int
    block_size: int
    longest_chain: int
    calls: int
    seconds: float
    one_by_one_seconds: float


def layer_cost(backend: Any, num_variables: int, num_columns: int) -> LayerCost:
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
    step = step_calls(backend, [(num_variables, num_columns)])
    column = step_calls(backend, [(num_variables, 1)])
    return LayerCost(
        num_variables,
        num_columns,
        len(step.calls[0].example.slots[0].chains),
        max(call.example.longest_chain for call in step.calls),
        step.num_calls,
        step.seconds,
        num_columns * column.seconds,
    )
