"""Packs the columns of all layers of a network onto a chip.

The programming time of a call does not depend on the problem, so few calls with
many columns are cheaper than many small calls. A column of a layer with n
inputs is a complete graph K_n. Each call takes the largest graphs first and fills the
remaining qubits with smaller ones.
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
            call while qubits are left. Defaults to `1`.

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
        calls = min(calls, apart, key=lambda c: (len(c), c is not apart))
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


class _Packer:
    def __init__(self, cliques):
        self.cliques = cliques
        self._empty = search.FreeQubits(cliques.graph)
        self._layouts = {}
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
            # The same qubits serve all further calls that they suffice for.
            for _ in range(
                min(len(waiting[n]) // len(c) for n, c in layout.items())
            ):
                slots = []
                for n, found in layout.items():
                    columns, waiting[n] = (
                        waiting[n][: len(found)],
                        waiting[n][len(found) :],
                    )
                    slots += [
                        Slot(*column, 0, chains)
                        for column, chains in zip(columns, found)
                    ]
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
        free = self._empty.copy()
        free.occupy(first)
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
        free = self._empty.copy()
        free.occupy([dict(enumerate(slot.chains)) for slot in slots])
        further = [[] for _ in layers]
        active = list(range(len(layers)))
        used = sum(len(chain) for slot in slots for chain in slot.chains)
        while active:
            # Half of the qubits at a time, so that all layers get a share and
            # large cliques stay together.
            rounds = max(1, len(free) // used // 2)
            for k in list(active):
                n, m = layers[k]
                trial = free.copy()
                found, _ = trial.place(n, rounds * m, self._bound(n))
                whole = len(found) // m
                free.occupy(found[: whole * m])
                further[k] += _chains(found[: whole * m])
                if whole < rounds:
                    active.remove(k)
        return further


def _place(slot):
    return slot.layer, slot.copy, slot.column


def _chains(copies):
    return [tuple(copy.values()) for copy in copies]


def to_stored(packing, qubits):
    """Returns a packing as lists of integers.

    Args:
        packing: A `Packing`.
        qubits: List of all qubits. Positions in it replace the labels, which
            JSON may not support.
    """
    position = {qubit: k for k, qubit in enumerate(qubits)}
    index = {}  # many calls use the same qubits
    calls = [
        [
            [*slot[:3], index.setdefault(slot.chains, len(index))]
            for slot in call.slots
        ]
        for call in packing.calls
    ]
    embeddings = [
        [[position[qubit] for qubit in chain] for chain in chains]
        for chains in index
    ]
    return {"embeddings": embeddings, "calls": calls}


def from_stored(stored, qubits, sizes, graph):
    """Returns the packing of `to_stored`.

    Raises:
        ValueError, LookupError or TypeError: If this is no packing of the sizes
            on the graph.
    """
    embeddings = [
        tuple(tuple(qubits[k] for k in chain) for chain in chains)
        for chains in stored["embeddings"]
    ]
    calls = tuple(
        PackedCall(tuple(Slot(*place, embeddings[k]) for *place, k in slots))
        for slots in stored["calls"]
    )
    packing = Packing(calls)
    validate(packing, sizes, graph)
    return packing


def validate(packing, sizes, graph):
    """Raises a `ValueError` unless a packing is one of these sizes.

    Args:
        packing: A `Packing`.
        sizes: Sequence of tuples `(num_variables, num_columns)`.
        graph: Graph. The working graph of the chip.
    """
    chains = {slot.chains for call in packing.calls for slot in call.slots}
    for embedding in chains:
        search.validate([dict(enumerate(embedding))], graph)
    for used in {
        frozenset(slot.chains for slot in call.slots) for call in packing.calls
    }:
        if not search.is_disjoint([dict(enumerate(e)) for e in used]):
            raise ValueError(
                "`packing` must not use a qubit twice in a call. Received: "
                f"{len(used)} embeddings that do"
            )
    found = collections.Counter()
    for call in packing.calls:
        places = [slot[:3] for slot in call.slots]
        fits = all(
            len(slot.chains) == sizes[slot.layer][0] for slot in call.slots
        )
        if places != _whole_rounds(places) or not fits:
            raise ValueError(
                "`packing` must have whole rounds of the columns of a layer. "
                f"Received: {places[:5]}"
            )
        found.update(place[:2] for place in places if place[2] == 0)
    wanted = [
        (layer, column)
        for layer, (_, m) in enumerate(sizes)
        for column in range(m)
    ]
    if found != collections.Counter(wanted):
        raise ValueError(
            f"`packing` must have each of {len(wanted)} columns in one call. "
            f"Received: {len(found)} columns"
        )


def _whole_rounds(places):
    """Returns the sorted places of whole rounds of the same columns."""
    columns = collections.defaultdict(set)
    copies = collections.defaultdict(set)
    for layer, column, copy in places:
        columns[layer].add(column)
        copies[layer].add(copy)
    return [
        (layer, column, copy)
        for layer in sorted(columns)
        for copy in range(len(copies[layer]))
        for column in sorted(columns[layer])
    ]
