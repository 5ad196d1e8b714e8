"""Disjoint embeddings: number and validity."""

import concurrent.futures
from functools import partial

import offline
import pytest

from keras_qpsbgd.backends.dwave import cliques
from keras_qpsbgd.backends.dwave.cliques import Cliques

pytest.importorskip("dwave.system")

pytestmark = pytest.mark.once


def check(copies, n, graph):
    """Checks that copies are disjoint complete graphs."""
    used = [q for copy in copies for chain in copy.values() for q in chain]
    assert len(used) == len(set(used))
    for copy in copies:
        assert list(copy) == list(range(n))
        offline.assert_clique(list(copy.values()), graph)


@pytest.mark.parametrize(
    "family, size, qubits, couplers, n, least, longest",
    [
        pytest.param(
            "pegasus", 16, 0, 0, 16, 80, 3, marks=pytest.mark.exhaustive
        ),
        pytest.param(
            "pegasus", 16, 28, 10, 64, 6, 8, marks=pytest.mark.exhaustive
        ),
        pytest.param(
            "pegasus", 16, 28, 10, 4, 1350, 1, marks=pytest.mark.exhaustive
        ),
        pytest.param(
            "zephyr", 12, 0, 0, 16, 80, 4, marks=pytest.mark.exhaustive
        ),
        pytest.param(
            "zephyr", 12, 223, 10, 16, 55, 6, marks=pytest.mark.exhaustive
        ),
        ("zephyr", 12, 223, 10, 32, 15, 6),
        pytest.param(
            "zephyr", 12, 223, 10, 8, 280, 2, marks=pytest.mark.exhaustive
        ),
    ],
)
def test_number_of_copies(family, size, qubits, couplers, n, least, longest):
    graph = offline.lattice(family, size, qubits, couplers)
    copies = Cliques(graph).copies(n)
    check(copies, n, graph)
    assert len(copies) >= least
    assert cliques.longest_chain(copies) <= longest
    first = cliques.longest_chain(copies[:1])
    assert first == min(cliques.longest_chain([copy]) for copy in copies)


# busclique does not return for n from 5 to 8.
@pytest.mark.parametrize(
    "couplers, n",
    [(0, 8), *((60, n) for n in (2, 4, 5, 8, 9, 12))],
)
def test_small_zephyr(couplers, n):
    graph = offline.lattice("zephyr", 4, 40, couplers)
    copies = Cliques(graph).copies(n)
    check(copies, n, graph)
    assert len(copies) * n**2 >= 0.9 * len(graph)


@pytest.mark.parametrize("coordinates", [False, True])
@pytest.mark.parametrize("family", ["chimera", "pegasus", "zephyr"])
def test_graph_for_busclique_has_no_missing_couplers(family, coordinates):
    # busclique takes minutes to work around those of a large chip.
    whole = offline.lattice(family, 3, coordinates=coordinates)
    graph = offline.lattice(family, 3, 5, 10, coordinates=coordinates)
    regular = cliques.without_gaps(graph)
    assert len(graph) - 10 <= len(regular) < len(graph)
    assert set(regular) < set(graph)
    couplers = {frozenset(e) for e in whole.subgraph(regular).edges}
    assert {frozenset(e) for e in regular.edges} == couplers


@pytest.mark.parametrize("n", [6, 9, 16])
def test_copies_are_a_prefix(n):
    graph = offline.lattice("zephyr", 3, 10)
    everything = Cliques(graph).copies(n)
    assert len(everything) > 2
    for count in (0, 1, 3, len(everything) + 5):
        assert Cliques(graph).copies(n, count) == everything[:count]
    # In several steps, each from the result of the previous one.
    known = Cliques(graph)
    for count in (1, 3, 2, None):
        assert known.copies(n, count) == everything[:count]


@pytest.mark.parametrize(
    "family, size, largest",
    [
        pytest.param("pegasus", 16, 180, marks=pytest.mark.exhaustive),
        pytest.param("zephyr", 12, 184, marks=pytest.mark.exhaustive),
        ("pegasus", 3, 24),
        ("zephyr", 4, 56),
        ("zephyr", 1, 10),
        ("chimera", 1, 5),
    ],
)
def test_largest(family, size, largest):
    graph = offline.lattice(family, size)
    known = Cliques(graph)
    assert known.largest() == largest
    check(known.copies(largest, 1), largest, graph)
    assert len(known.copies(largest, 1)) == 1
    assert known.copies(largest + 1) == []
    assert known.copies(10 * len(graph)) == []


def test_threads_get_the_same_copies():
    graph = offline.lattice("zephyr", 4, 20)
    expected = Cliques(graph).copies(12)
    shared = Cliques(graph)
    wanted = [None, 2, None, 4, 1, None]
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        for count, found in zip(
            wanted, threads.map(partial(shared.copies, 12), wanted)
        ):
            assert found == expected[:count]


def test_other_graphs_are_rejected():
    graph = offline.lattice("zephyr", 1)
    graph.graph["family"] = "ring"
    with pytest.raises(ValueError, match="`graph`.*Received: .*'ring'"):
        Cliques(graph)
