"""Which layers of a network share QPU calls, and how they are packed."""

from typing import NamedTuple

from keras_qpsbgd.backends.dwave.chip.packing import Packing
from keras_qpsbgd.backends.host import block_descent


class Group(NamedTuple):
    """Layers that share calls.

    Attributes:
        layers: List of integers. Indices of the layers.
        packing: `Packing`. Its layers are positions in `layers`. For a layer
            that is solved in blocks, the calls of its widest block.
        rounds: Integer. Maximum number of times per step that the calls of the
            packing are made.
    """

    layers: list[int]
    packing: Packing
    rounds: int


def split(backend, widths):
    """Returns lists of the indices of layers that share calls.

    Layers that fit on the chip whole share calls. A wider layer is solved in
    blocks, with its own calls.

    Args:
        backend: A `DWaveBackend`.
        widths: List of integers. Number of inputs of each layer.
    """
    whole, wide = [], []
    for index, width in enumerate(widths):
        if backend.block_size_for(width) < width:
            wide.append([index])
        else:
            whole.append(index)
    return [whole] * bool(whole) + wide


def pack(backend, sizes):
    """Returns the `Group`s of a network.

    Args:
        backend: A `DWaveBackend`.
        sizes: List of tuples `(num_inputs, num_outputs)`, one per layer.
    """
    found = []
    for layers in split(backend, [n for n, _ in sizes]):
        parts, rounds = [tuple(sizes[k]) for k in layers], 1
        n, m = parts[0]
        size = backend.block_size_for(n)
        if size < n:
            width = max(block_descent.block_sizes(n, size))
            parts = [(width, m)]
            rounds = -(-n // width) * backend.block_sweeps
        found.append(Group(layers, backend.pack(parts), rounds))
    return found
