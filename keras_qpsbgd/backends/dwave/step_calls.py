"""The QPU calls of one training step, and their estimated time."""

from typing import Any
from typing import NamedTuple

from keras_qpsbgd.backends.dwave.chip.packing import PackedCall
from keras_qpsbgd.backends.dwave.cost import packings


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
        layer_seconds: Tuple of floats. QPU access time of each layer, if no
            layers share a call.
    """

    calls: tuple[CallCost, ...]
    layer_seconds: tuple[float, ...]

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
        BackendUnavailable: If a layer does not fit on the chip.
    """
    wide = [
        k for k, (n, _) in enumerate(sizes) if backend.block_size_for(n) < n
    ]
    whole = [k for k in range(len(sizes)) if k not in wide]
    groups = [whole] * bool(whole) + [[k] for k in wide]
    calls = [
        call
        for layers, packed in zip(groups, packings(backend, sizes))
        for call in _calls(backend, layers, *packed)
    ]
    return StepCalls(
        tuple(calls), tuple(_alone(backend, size) for size in sizes)
    )


def _alone(backend, size):
    """Returns the seconds of a layer that shares no calls."""
    ((packing, rounds),) = packings(backend, [size])
    calls = _calls(backend, [0], packing, rounds)
    return sum(call.repeats * call.seconds for call in calls)


def _calls(backend, layers, packing, rounds):
    groups = {}
    for call in packing.calls:
        key = call.layers, tuple(slot.chains for slot in call.slots)
        groups.setdefault(key, []).append(call)
    return [
        CallCost(
            tuple(layers[k] for k in group[0].layers),
            rounds * len(group),
            backend.call_seconds(group[0].num_qubits, backend.warm_start),
            _renumbered(group[0], layers),
        )
        for group in groups.values()
    ]


def _renumbered(call, layers):
    return PackedCall(
        tuple(slot._replace(layer=layers[slot.layer]) for slot in call.slots)
    )
