"""Packs the columns of all layers of a network onto a chip.

The programming time of a call does not depend on the problem, so a few calls
with many columns are cheaper than many small calls. A column of a layer with n
inputs is a complete graph K_n. Each call takes the largest graphs first and
fills the remaining qubits with smaller ones.
"""

import collections
from typing import Any
from typing import NamedTuple

from keras_qpsbgd.backends.dwave.chip import search


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


class Packing(NamedTuple):
    """The calls of one training step.

    Calls with the same qubits share their `chains` objects.

    Attributes:
        calls: Tuple of `PackedCall`.
    """

    calls: tuple[PackedCall, ...]


def pack(cliques: Any, sizes: Any) -> Packing:
    """Packs the columns of all layers into few calls.

    If one call per layer needs no more calls, the layers stay apart, so that a
    failed call affects one layer only.

    Args:
        cliques: A `Cliques`.
        sizes: Sequence of tuples `(num_variables, num_columns)`, one per layer.

    Returns:
        A `Packing`. The same arguments always give the same result.

    Raises:
        ValueError: If a layer is too wide for the chip.
    """
    sizes = check_sizes(sizes)
    packer = _Packer(cliques)
    calls = packer.calls(range(len(sizes)), sizes)
    if len(calls) >= len(sizes) > 1:
        apart = [
            call
            for layer in range(len(sizes))
            for call in packer.calls([layer], sizes)
        ]
        calls = min(apart, calls, key=len)
    return Packing(
        tuple(PackedCall(tuple(sorted(call, key=_place))) for call in calls)
    )


def check_sizes(sizes):
    """Returns the sizes as tuples of integers, or raises a `ValueError`."""
    checked = tuple((int(n), int(m)) for n, m in sizes)
    if not checked or min(map(min, checked)) < 1:
        raise ValueError(
            "`sizes` must have at least one layer, and all layers at least one "
            f"input and one output. Received: sizes={sizes}"
        )
    return checked


class _Packer:
    def __init__(self, cliques):
        self.cliques = cliques

    def calls(self, layers, sizes):
        """Returns the lists of slots that anneal these layers."""
        waiting = collections.defaultdict(list)  # columns by their inputs
        for layer in layers:
            n, m = sizes[layer]
            waiting[n].extend((layer, column) for column in range(m))
        calls = []
        while waiting:
            layout = self._layout({n: len(c) for n, c in waiting.items()})
            # Further calls use the same qubits while they are all needed.
            repeats = min(len(waiting[n]) // len(layout[n]) for n in layout)
            for _ in range(repeats):
                slots = []
                for n, found in layout.items():
                    slots += [
                        Slot(*column, chains)
                        for column, chains in zip(waiting[n], found)
                    ]
                    del waiting[n][: len(found)]
                calls.append(slots)
            waiting = {n: c for n, c in waiting.items() if c}
        return calls

    def _layout(self, wanted):
        """Returns the chains of as many columns as fit, by their inputs."""
        largest = max(wanted)
        first = self.cliques.copies(largest, wanted[largest])
        if not first:
            raise ValueError(
                "`sizes` must fit on the chip, which holds at most "
                f"{self.cliques.largest()} inputs. Received: {largest} inputs"
            )
        layout = {largest: _chains(first)}
        free = search.FreeQubits(self.cliques.lattice, first)
        for n in sorted(wanted, reverse=True)[1:]:
            found, _ = free.place(n, wanted[n], self._bound(n))
            if found:
                layout[n] = _chains(found)
        return layout

    def _bound(self, n):
        """Returns the maximum chain length, the same as for separate calls."""
        return 2 * search.longest_chain(self.cliques.copies(n, 1))


def _place(slot):
    return slot.layer, slot.column


def _chains(copies):
    return [tuple(copy.values()) for copy in copies]
