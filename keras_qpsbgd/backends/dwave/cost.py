"""Estimates the cost of training on a QPU, without a QPU or a token."""

from typing import NamedTuple

from keras_qpsbgd.backends.dwave.leap import timing
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.host import blocks
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
    ((packing, rounds),) = packings(backend, [(num_variables, num_columns)])
    first = packing.calls[0]
    width = len(first.slots[0].chains)
    seconds = sum(backend.call_seconds(c.num_qubits) for c in packing.calls)
    return LayerCost(
        num_variables,
        num_columns,
        width,
        max(call.longest_chain for call in packing.calls),
        sum(slot.copy == 0 for slot in first.slots),
        rounds * len(packing.calls),
        rounds * seconds,
        rounds * num_columns * backend.estimate(width, 1),
    )


def step_cost(backend, sizes):
    """Estimates the cost of one training step of a network.

    Layers that are solved in blocks count with the maximum number of sweeps.

    Args:
        backend: A `DWaveBackend`.
        sizes: List of tuples `(num_inputs, num_outputs)`, one per layer.

    Returns:
        A `StepCost`.
    """
    seconds, calls = 0.0, 0
    try:
        for packing, rounds in packings(backend, sizes):
            calls += rounds * len(packing.calls)
            seconds += rounds * sum(
                backend.call_seconds(call.num_qubits, backend.warm_start)
                for call in packing.calls
            )
    except BackendUnavailable as error:  # the solver has no cost model
        return StepCost(0.0, calls, str(error))
    note = f"Timing data: {timing.source(backend.open().sampler)}"
    return StepCost(seconds, calls, note)


def packings(backend, sizes):
    """Returns how the layers of a network are packed into calls.

    Args:
        backend: A `DWaveBackend`.
        sizes: List of tuples `(num_inputs, num_outputs)`, one per layer.

    Returns:
        A list of tuples `(packing, rounds)`. The calls of a `Packing` are made
        at most `rounds` times per step.
    """
    whole, wide = [], []
    for n, m in sizes:
        block_size = backend.block_size_for(n)
        if block_size == n:
            whole.append((n, m))
        else:
            width = max(blocks.sizes(n, block_size))
            rounds = -(-n // width) * backend.block_sweeps
            wide.append((backend.pack([(width, m)]), rounds))
    return ([(backend.pack(whole), 1)] if whole else []) + wide
