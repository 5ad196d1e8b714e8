"""The QPU calls of one training step, and their estimated time."""

from typing import Any
from typing import NamedTuple

from keras_qpsbgd.backends.dwave.chip.packing import PackedCall
from keras_qpsbgd.backends.host import blocks


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
    whole = [k for k, (n, _) in enumerate(sizes) if _is_whole(backend, n)]
    calls = []
    if whole:
        calls += _calls(backend, [sizes[k] for k in whole], whole, 1)
    for k, (n, m) in enumerate(sizes):
        if k not in whole:
            calls += _wide(backend, n, m, k)
    return StepCalls(
        tuple(calls), tuple(_alone(backend, *size) for size in sizes)
    )


def _is_whole(backend, n):
    return backend.block_size_for(n) >= n


def _wide(backend, n, m, layer):
    """Returns the calls of a layer that is solved in blocks."""
    width = max(blocks.sizes(n, backend.block_size_for(n)))
    rounds = -(-n // width) * backend.block_sweeps
    return _calls(backend, [(width, m)], [layer], rounds)


def _alone(backend, n, m):
    """Returns the seconds of a layer that shares no calls."""
    if _is_whole(backend, n):
        calls = _calls(backend, [(n, m)], [0], 1)
    else:
        calls = _wide(backend, n, m, 0)
    return sum(call.repeats * call.seconds for call in calls)


def _calls(backend, sizes, layers, rounds):
    groups = {}
    for call in backend.pack(sizes).calls:
        key = call.layers, frozenset(slot.chains for slot in call.slots)
        groups.setdefault(key, []).append(call)
    return [
        CallCost(
            tuple(layers[k] for k in group[0].layers),
            rounds * len(group),
            backend.call_seconds(group[0].num_qubits),
            _renumbered(group[0], layers),
        )
        for group in groups.values()
    ]


def _renumbered(call, layers):
    return PackedCall(
        tuple(slot._replace(layer=layers[slot.layer]) for slot in call.slots)
    )
