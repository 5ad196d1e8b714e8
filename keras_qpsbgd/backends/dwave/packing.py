"""Packs the columns of all layers of a network onto a chip.

The programming time of a call does not depend on the problem, so a few calls
with many columns are cheaper than many small calls. Each call takes the columns
with the most inputs first and fills the remaining qubits with smaller ones.
"""

import collections
from typing import Any
from typing import NamedTuple

from keras_qpsbgd.backends.dwave.cliques import FreeQubits
from keras_qpsbgd.backends.dwave.cliques import longest_chain


class Slot(NamedTuple):
    """One column of one layer on the chip.

    Attributes:
        layer: Integer. Index of the layer.
        column: Integer. Index of the column in the layer.
        chains: Tuple. The tuple of qubits of each variable.
    """

    layer: int
    column: int
    chains: tuple[tuple[Any, ...], ...]


class PackedCall(NamedTuple):
    """The columns that one call anneals.

    Attributes:
        slots: Tuple of `Slot`, sorted by layer and column.
    """

    slots: tuple[Slot, ...]

    @property
    def chains(self) -> tuple[tuple[tuple[Any, ...], ...], ...]:
        """The chains of each slot. Calls with equal chains share a `Layout`."""
        return tuple(slot.chains for slot in self.slots)

    @property
    def num_qubits(self) -> int:
        """Number of qubits that the call occupies."""
        return sum(len(chain) for slot in self.slots for chain in slot.chains)

    @property
    def longest_chain(self) -> int:
        """Number of qubits of the longest chain."""
        return max(len(chain) for slot in self.slots for chain in slot.chains)

    @property
    def layers(self) -> tuple[int, ...]:
        """Indices of the layers, in order."""
        return tuple(sorted({slot.layer for slot in self.slots}))


def pack(cliques, sizes):
    """Packs the columns of all layers into few calls.

    If separate calls for each layer do not increase the number of calls, layers
    do not share calls, so that a failed call affects only one layer.

    Args:
        cliques: The `Cliques` of a chip.
        sizes: Sequence of tuples `(num_variables, num_columns)`, one per layer.
            A layer without columns is left out.

    Returns:
        A tuple of `PackedCall`. Calls with the same qubits share their `chains`
        objects.

    Raises:
        ValueError: If a layer is too wide for the chip.
    """
    layers = [layer for layer, (_, m) in enumerate(sizes) if m]
    calls = _calls(cliques, layers, sizes)
    if len(calls) >= len(layers) > 1:
        apart = [
            call for layer in layers for call in _calls(cliques, [layer], sizes)
        ]
        calls = min(apart, calls, key=len)
    return tuple(PackedCall(tuple(sorted(call))) for call in calls)


def _calls(cliques, layers, sizes):
    """Returns the lists of slots that anneal these layers."""
    waiting = collections.defaultdict(list)  # columns by number of inputs
    for layer in layers:
        n, m = sizes[layer]
        waiting[n].extend((layer, column) for column in range(m))
    calls = []
    while waiting:
        places = _places(cliques, {n: len(c) for n, c in waiting.items()})
        # Further calls use the same qubits while all of them are needed.
        repeats = min(len(waiting[n]) // len(places[n]) for n in places)
        for _ in range(repeats):
            slots = []
            for n, found in places.items():
                slots += [
                    Slot(*column, chains)
                    for column, chains in zip(waiting[n], found)
                ]
                del waiting[n][: len(found)]
            calls.append(slots)
        waiting = {n: c for n, c in waiting.items() if c}
    return calls


def _places(cliques, wanted):
    """Returns the chains of as many columns as fit, by number of inputs."""
    largest = max(wanted)
    first = cliques.copies(largest, wanted[largest])
    if not first:
        raise ValueError(
            "`sizes` must fit on the chip, which holds at most "
            f"{cliques.largest()} inputs. Received: {largest} inputs"
        )
    found = {largest: first}
    free = FreeQubits(cliques, first)
    for n in sorted(wanted, reverse=True)[1:]:
        # The same maximum chain length as for separate calls.
        bound = 2 * longest_chain(cliques.copies(n, 1))
        found[n] = free.place(n, wanted[n], bound)
    return {
        n: [tuple(copy.values()) for copy in copies]
        for n, copies in found.items()
        if copies
    }
