"""Estimates the cost of training on a QPU, without a QPU or a token."""

from typing import NamedTuple

from keras_qpsbgd.backends.dwave.chip.search import longest_chain
from keras_qpsbgd.backends.host import blocks


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
    block_size = backend.block_size_for(num_variables)
    width = max(blocks.sizes(num_variables, block_size))
    count = -(-num_variables // width)
    rounds = 1 if count == 1 else count * backend.block_sweeps
    copies = backend.copies(width, num_columns)
    per_call = backend.columns_per_call(width, num_columns)
    whole, rest = divmod(num_columns, per_call)
    seconds = whole * backend.estimate(width, per_call)
    if rest:
        seconds += backend.estimate(width, rest)
    return LayerCost(
        num_variables,
        num_columns,
        width,
        longest_chain(copies),
        len(copies),
        rounds * (whole + bool(rest)),
        rounds * seconds,
        rounds * num_columns * backend.estimate(width, 1),
    )
