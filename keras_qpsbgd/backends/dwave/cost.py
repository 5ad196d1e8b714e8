"""What training on a QPU would cost, without one and without a token."""

from typing import NamedTuple

from keras_qpsbgd.backends.dwave.embedding import longest_chain
from keras_qpsbgd.backends.host import blocks


class LayerCost(NamedTuple):
    """One step of one layer.

    Attributes:
        num_variables, num_columns: inputs and outputs of the layer.
        block_size: variables that are annealed together.
        longest_chain: qubits of the longest chain.
        copies: columns that are annealed in one call.
        calls: calls of the QPU per step; the most, where a layer is solved by
            blocks.
        seconds: their QPU access time.
        one_by_one_seconds: what a call for each column would take.
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
    """The cost of one step of a layer.

    Args:
        backend: a `DWaveBackend`; with `mock=True` nothing leaves the machine.
        num_variables: inputs of the layer.
        num_columns: outputs of the layer.

    Raises:
        BackendUnavailable: the layer does not fit.
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
