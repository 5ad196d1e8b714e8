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

REPLICAS = (1, "fill")


class Slot(NamedTuple):
    """One column of one layer on the chip.

    Attributes:
        layer: Integer. Index of the layer.
        column: Integer. Index of the column in the layer.
        copy: Integer. 0, or 1, 2, ... for further copies of the column.
        chains: Tuple. The tuple of qubits of each variable.
    """

    layer: int
    column: int
    copy: int
    chains: tuple[tuple[Any, ...], ...]


class PackedCall(NamedTuple):
    """The columns that one call anneals.

    Attributes:
        slots: Tuple of `Slot`, sorted by layer, copy and column. All columns of
            a layer have the same number of copies.
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


def pack(cliques: Any, sizes: Any, replicas: Any = 1) -> Packing:
    """Packs the columns of all layers into few calls.

    If one call per layer needs no more calls, the layers stay apart, so that a
    failed call affects one layer only.

    Args:
        cliques: A `Cliques`.
        sizes: Sequence of tuples `(num_variables, num_columns)`, one per layer.
        replicas: `1`, or `"fill"` to add copies of all columns of a layer to a
            call while qubits are left, up to `max_copies`. Defaults to `1`.

    Returns:
        A `Packing`. The same arguments always give the same result.

    Raises:
        ValueError: If a layer is too wide for the chip.
    """
    sizes = check_sizes(sizes)
    check_replicas(replicas)
    packer = _Packer(cliques)
    calls = packer.calls(range(len(sizes)), sizes)
    if len(calls) >= len(sizes) > 1:
        apart = [
            call
            for layer in range(len(sizes))
            for call in packer.calls([layer], sizes)
        ]
        calls = min(apart, calls, key=len)
    if replicas == "fill":
        calls = [packer.fill(call) for call in calls]
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


def check_replicas(replicas):
    """Raises a `ValueError` unless replicas are 1 or "fill"."""
    if isinstance(replicas, bool) or replicas not in REPLICAS:
        raise ValueError(
            f'`replicas` must be 1 or "fill". Received: replicas={replicas!r}'
        )


def max_copies(n):
    """Returns the maximum number of copies of a column with n inputs.

    It has 2^n states, so more copies than that find nothing new. They would
    only cost time for the readout of their qubits, and for their votes.
    """
    return 2**n


class _Packer:
    def __init__(self, cliques):
        self.cliques = cliques
        self._filled = {}

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
                        Slot(*column, 0, chains)
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

    def fill(self, slots):
        """Adds whole rounds of further copies to a call."""
        columns = collections.Counter(slot.layer for slot in slots)
        inputs = {slot.layer: len(slot.chains) for slot in slots}
        layers = sorted(columns, key=lambda layer: (-inputs[layer], layer))
        key = (
            tuple((inputs[layer], columns[layer]) for layer in layers),
            frozenset(slot.chains for slot in slots),
        )
        if key not in self._filled:
            self._filled[key] = self._further(slots, key[0])
        filled = list(slots)
        for layer, further in zip(layers, self._filled[key]):
            first = [slot for slot in slots if slot.layer == layer]
            for k, chains in enumerate(further):
                copy, index = divmod(k, len(first))
                filled.append(
                    first[index]._replace(copy=copy + 1, chains=chains)
                )
        return filled

    def _further(self, slots, layers):
        """Returns the chains of further copies, for each layer."""
        free = search.FreeQubits(
            self.cliques.lattice,
            [dict(enumerate(slot.chains)) for slot in slots],
        )
        further = [[] for _ in layers]
        bounds = [self._bound(n) for n, _ in layers]
        # A layer stays active until it has enough copies, or a round of it does
        # not fit any more.
        active = list(range(len(layers)))
        while active:
            # Half of the qubits at a time, so that all layers get a share and
            # large cliques stay together.
            per_round = sum(_num_qubits(*layers[k], slots) for k in active)
            share = max(1, len(free) // (2 * per_round))
            for k in list(active):
                n, m = layers[k]
                missing = max_copies(n) - 1 - len(further[k]) // m
                rounds = min(share, missing)
                found, _ = free.place(n, rounds * m, bounds[k])
                whole = len(found) // m
                free.release(found[whole * m :])
                further[k] += _chains(found[: whole * m])
                if whole < rounds or rounds == missing:
                    active.remove(k)
        return further


def _num_qubits(n, m, slots):
    """Returns the number of qubits of m columns with n inputs."""
    chains = next(slot.chains for slot in slots if len(slot.chains) == n)
    return m * sum(map(len, chains))


def _place(slot):
    return slot.layer, slot.copy, slot.column


def _chains(copies):
    return [tuple(copy.values()) for copy in copies]
