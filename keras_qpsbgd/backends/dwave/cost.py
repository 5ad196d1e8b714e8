"""Estimates the cost of training on a QPU, without a QPU or a token."""

from typing import Any
from typing import NamedTuple

from keras_qpsbgd.backends.dwave import groups
from keras_qpsbgd.backends.dwave.chip.packing import PackedCall
from keras_qpsbgd.backends.dwave.leap import timing
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.solution import StepCost


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
    (group,) = groups.pack(backend, [(num_variables, num_columns)])
    step = _step_calls(backend, [group])
    calls = group.packing.calls
    width = len(calls[0].slots[0].chains)
    return LayerCost(
        num_variables,
        num_columns,
        width,
        max(call.longest_chain for call in calls),
        len(calls[0].slots),
        step.num_calls,
        step.seconds,
        group.rounds * num_columns * backend.estimate(width, 1),
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
    return _step_calls(backend, groups.pack(backend, sizes))


def step_cost(backend: Any, sizes: Any) -> StepCost:
    """Estimates the cost of one training step of a network.

    Layers that are solved in blocks count with the maximum number of sweeps.

    Args:
        backend: A `DWaveBackend`.
        sizes: List of tuples `(num_inputs, num_outputs)`, one per layer.

    Returns:
        A `StepCost`. Without a cost model for the solver, its time is zero and
        its note has the reason.

    Raises:
        BackendUnavailable: If no solver can be reached, or if a layer does not
            fit on the chip.
    """
    packed = groups.pack(backend, sizes)
    try:
        step = _step_calls(backend, packed)
    except BackendUnavailable as error:  # the solver has no cost model
        calls = sum(g.rounds * len(g.packing.calls) for g in packed)
        return StepCost(0.0, calls, str(error))
    note = f"Timing data: {timing.source(backend.open().sampler)}"
    return StepCost(step.seconds, step.num_calls, note)


def _step_calls(backend, packed):
    """Returns the `StepCalls` of packed groups of layers."""
    calls = []
    for group in packed:
        alike = {}
        for call in group.packing.calls:
            alike.setdefault((call.layers, call.chains), []).append(call)
        calls += [
            CallCost(
                tuple(group.layers[k] for k in same[0].layers),
                group.rounds * len(same),
                backend.call_seconds(same[0].num_qubits),
                _renumbered(same[0], group.layers),
            )
            for same in alike.values()
        ]
    return StepCalls(tuple(calls))


def _renumbered(call, layers):
    return PackedCall(
        tuple(slot._replace(layer=layers[slot.layer]) for slot in call.slots)
    )
