"""Packs the columns of all layers of a network onto a chip.

The programming time of a call does not depend on the problem, so a few calls
with many columns are cheaper than many small calls. A column of a layer with n
inputs is a complete graph K_n. Each call takes the largest graphs first and
fills the remaining qubits with smaller ones.
"""

import collections
import hashlib
import threading
from typing import Any
from typing import NamedTuple

from keras_qpsbgd.backends.dwave import cliques

# Variables of the largest K_n on chips without defects (`Cliques.largest`).
LARGEST = {"Pegasus P16": 180, "Zephyr Z12": 184, "Zephyr Z15": 232}


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


class Cliques:
    """Disjoint complete graphs on one chip, and packings of layers.

    Results are kept in memory. The same chip always gives the same results,
    independent of the number and order of the requests. Threads may share one
    object.

    Args:
        graph: Graph. The working graph of a Chimera, Pegasus or Zephyr chip, as
            returned by `DWaveSampler.to_networkx_graph`.

    Attributes:
        chip: String. Equal for chips with equal working graphs.
        qubits: List of the qubits, sorted.
    """

    def __init__(self, graph):
        family = graph.graph.get("family")
        if family not in cliques.FAMILIES:
            raise ValueError(
                "`graph` must be a Chimera, Pegasus or Zephyr graph of "
                f"dwave-graphs. Received: graph with family={family!r}"
            )
        # The results depend on the order of qubits and couplers.
        self.qubits = sorted(graph)
        couplers = sorted(tuple(sorted(edge)) for edge in graph.edges)
        self.graph = type(graph)(**graph.graph)
        self.graph.add_nodes_from(self.qubits)
        self.graph.add_edges_from(couplers)
        self.lattice = cliques.Lattice(self.graph)
        text = repr((family, self.qubits, couplers))
        self.chip = hashlib.sha256(text.encode()).hexdigest()
        self._largest = None
        self._copies = {}
        self._packings = {}
        self._lock = threading.RLock()

    def largest(self):
        """Returns the number of variables of the largest K_n found."""
        with self._lock:
            if self._largest is None:
                self._largest = len(cliques.largest_copy(self.lattice))
            return self._largest

    def copies(self, n, at_most=None):
        """Returns embeddings of K_n that share no qubit, shortest chains first.

        Args:
            n: Integer. Number of variables.
            at_most: Integer (optional). Maximum number of embeddings. A larger
                number extends the list. Defaults to `None`, which returns all
                that are found on the whole chip.

        Returns:
            A list of dictionaries from 0..n-1 to tuples of qubits. Empty if the
            chip holds no K_n.
        """
        if n < 1:
            raise ValueError(f"`n` must be at least 1. Received: n={n}")
        with self._lock:
            copies, complete = self._copies.get(n, ([], False))
            if not complete and (at_most is None or len(copies) < at_most):
                copies, complete = cliques.more_copies(
                    self.lattice, n, copies, at_most
                )
                cliques.validate(copies, self.graph)
                self._copies[n] = copies, complete
            return [dict(copy) for copy in copies[:at_most]]

    def pack(self, sizes):
        """Packs the columns of all layers into few calls.

        If one call per layer needs no more calls, the layers stay apart, so
        that a failed call affects one layer only.

        Args:
            sizes: Sequence of tuples `(num_variables, num_columns)`, one per
                layer. No layer may be wider than `largest()`.

        Returns:
            A `Packing`.

        Raises:
            ValueError: If a layer is too wide for the chip.
        """
        sizes = _check_sizes(sizes)
        with self._lock:
            if sizes not in self._packings:
                self._packings[sizes] = self._pack(sizes)
            return self._packings[sizes]

    def _pack(self, sizes):
        calls = self._calls(range(len(sizes)), sizes)
        if len(calls) >= len(sizes) > 1:
            apart = [
                call
                for layer in range(len(sizes))
                for call in self._calls([layer], sizes)
            ]
            calls = min(apart, calls, key=len)
        return Packing(tuple(PackedCall(tuple(sorted(call))) for call in calls))

    def _calls(self, layers, sizes):
        """Returns the lists of slots that anneal these layers."""
        waiting = collections.defaultdict(list)  # columns by their inputs
        for layer in layers:
            n, m = sizes[layer]
            waiting[n].extend((layer, column) for column in range(m))
        calls = []
        while waiting:
            places = self._places({n: len(c) for n, c in waiting.items()})
            # Further calls use the same qubits while they are all needed.
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

    def _places(self, wanted):
        """Returns the chains of as many columns as fit, by their inputs."""
        largest = max(wanted)
        first = self.copies(largest, wanted[largest])
        if not first:
            raise ValueError(
                "`sizes` must fit on the chip, which holds at most "
                f"{self.largest()} inputs. Received: {largest} inputs"
            )
        places = {largest: _chains(first)}
        free = cliques.FreeQubits(self.lattice, first)
        for n in sorted(wanted, reverse=True)[1:]:
            found, _ = free.place(n, wanted[n], self._bound(n))
            if found:
                places[n] = _chains(found)
        return places

    def _bound(self, n):
        """Returns the maximum chain length, the same as for separate calls."""
        return 2 * cliques.longest_chain(self.copies(n, 1))


def _check_sizes(sizes):
    """Returns the sizes as tuples of integers, or raises a `ValueError`."""
    checked = tuple((int(n), int(m)) for n, m in sizes)
    if not checked or min(map(min, checked)) < 1:
        raise ValueError(
            "`sizes` must have at least one layer, and all layers at least one "
            f"input and one output. Received: sizes={sizes}"
        )
    return checked


def _chains(copies):
    return [tuple(copy.values()) for copy in copies]
