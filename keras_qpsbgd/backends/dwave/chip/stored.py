"""Packings as JSON values, checked when they are loaded."""

import collections

from keras_qpsbgd.backends.dwave.chip import search
from keras_qpsbgd.backends.dwave.chip.packing import PackedCall
from keras_qpsbgd.backends.dwave.chip.packing import Packing
from keras_qpsbgd.backends.dwave.chip.packing import Slot


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
    packed = Packing(calls)
    validate(packed, sizes, graph)
    return packed


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
        tuple(slot.chains for slot in call.slots) for call in packing.calls
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
