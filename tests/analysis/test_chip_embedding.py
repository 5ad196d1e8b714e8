"""Embeddings on Pegasus and Zephyr: small graphs with known answers."""

import numpy as np
import pytest

import keras_qpsbgd as kq

networkx = pytest.importorskip("networkx")
pytest.importorskip("minorminer")
pytestmark = pytest.mark.once

UPDATE = kq.analysis.Update(
    0, "dense", kq.Qubo(np.eye(3), np.ones((3, 2))), np.ones((3, 2), np.int8)
)


@pytest.mark.parametrize("topology", ["pegasus", "zephyr"])
def test_chains(topology):
    """Chains are connected, disjoint, and coupled as the logical graph."""
    found = kq.analysis.embedding(8, topology, columns=2)
    assert found.logical.number_of_edges() == 28
    qubits = [q for c in found.chains for chain in c.values() for q in chain]
    assert found.num_qubits == len(qubits) == len(set(qubits))
    assert found.chain_lengths.sum() == found.num_qubits
    assert found.chain_lengths.max() > 1
    couplers = 0
    for chains in found.chains:
        owner = {q: i for i, chain in chains.items() for q in chain}
        part = found.chip.subgraph(owner)
        couplers += part.number_of_edges()
        for chain in chains.values():
            assert networkx.is_connected(found.chip.subgraph(chain))
        pairs = {frozenset((owner[a], owner[b])) for a, b in part.edges}
        assert sum(len(pair) == 2 for pair in pairs) == 28
    assert found.num_couplers == couplers


def test_couplings_of_a_qubo():
    couplings = np.zeros((4, 4))
    couplings[0, 1] = couplings[1, 0] = -0.5
    couplings[2, 3] = couplings[3, 2] = 2.0
    found = kq.analysis.embedding(kq.Qubo(couplings, np.ones((4, 2))))
    edges = {(i, j): c for i, j, c in found.logical.edges.data("coupling")}
    assert edges == {(0, 1): -0.5, (2, 3): 2.0}
    assert len(found.chains) == 1


def test_own_chip():
    from keras_qpsbgd.backends.dwave import cliques

    small = cliques.lattices().pegasus_graph(2)
    found = kq.analysis.embedding(4, small, columns=2)
    assert found.num_qubits == 8 and found.chip is small
    with pytest.raises(ValueError, match="`columns` must be at most.*Received"):
        kq.analysis.embedding(4, small, columns=100)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "`qubo` must be at least 1"),
        ((4, "pegasus", 0), "`columns` must be at least 1"),
        ((4, "torus"), "`topology` must be one of"),
        ((UPDATE,), "such as the `qubo` of an update"),
        (("hidden",), "`qubo` must be a `Qubo`"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        kq.analysis.embedding(*arguments)
    assert "Received: " in str(error.value)


def test_plot():
    pytest.importorskip("matplotlib")
    found = kq.analysis.embedding(5, columns=2)
    left, right = kq.analysis.plot_embedding(found)
    assert left.get_title() == "5 variables,\n10 couplings"
    assert right.get_title().startswith(f"2 columns: {found.num_qubits} qubits")
    # The qubits of the chip, then those of every column.
    sizes = [
        len(collection.get_offsets())
        for collection in right.collections
        if hasattr(collection, "get_sizes")
    ]
    assert sizes == [len(found.chip), *found.chain_lengths.sum(axis=1)]
