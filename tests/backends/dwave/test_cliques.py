"""Disjoint embeddings: number, validity, and the cache on disk."""

import ast
import json
import pathlib
import random
import threading

import pytest

from keras_qpsbgd import disk
from keras_qpsbgd.backends.dwave.chip import cliques
from keras_qpsbgd.backends.dwave.chip import search
from keras_qpsbgd.backends.dwave.chip.cliques import Cliques

pytest.importorskip("dwave.system")
lattices = pytest.importorskip("dwave.graphs")

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_QPSBGD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def chip(family, size, qubits=0, couplers=0, **labels):
    """Returns a lattice without some random qubits and couplers."""
    graph = getattr(lattices, f"{family}_graph")(size, **labels)
    rng = random.Random(0)
    graph.remove_nodes_from(rng.sample(sorted(graph), qubits))
    graph.remove_edges_from(rng.sample(sorted(graph.edges), couplers))
    return graph


def check(copies, n, graph):
    """Checks copies independently of `validate`, but more slowly."""
    used = [q for copy in copies for chain in copy.values() for q in chain]
    assert len(used) == len(set(used))
    for copy in copies:
        assert list(copy) == list(range(n))
        for i, chain in copy.items():
            assert isinstance(chain, tuple)
            reached = {chain[0]}
            for _ in chain:
                reached |= {q for q in chain if reached & set(graph[q])}
            assert reached == set(chain)
            for j in range(i):
                assert any(graph.has_edge(p, q) for p in chain for q in copy[j])


@pytest.fixture
def no_search(monkeypatch):
    def forbidden(*arguments):
        raise AssertionError("searched")

    def forbid():
        monkeypatch.setattr(search, "extend", forbidden)
        monkeypatch.setattr(search, "largest_copy", forbidden)

    return forbid


@pytest.mark.parametrize(
    "family, size, qubits, couplers, n, least, longest",
    [
        pytest.param("pegasus", 16, 0, 0, 16, 80, 3, marks=pytest.mark.slow),
        ("pegasus", 16, 28, 10, 64, 6, 8),
        ("pegasus", 16, 28, 10, 4, 1350, 1),
        pytest.param("zephyr", 12, 0, 0, 16, 80, 4, marks=pytest.mark.slow),
        pytest.param("zephyr", 12, 223, 10, 16, 55, 6, marks=pytest.mark.slow),
        ("zephyr", 12, 223, 10, 32, 15, 6),
        pytest.param("zephyr", 12, 223, 10, 8, 280, 2, marks=pytest.mark.slow),
    ],
)
def test_number_of_copies(family, size, qubits, couplers, n, least, longest):
    graph = chip(family, size, qubits, couplers)
    copies = Cliques(graph).copies(n)
    check(copies, n, graph)
    assert len(copies) >= least
    assert search.longest_chain(copies) <= longest
    first = search.longest_chain(copies[:1])
    assert first == min(search.longest_chain([copy]) for copy in copies)


# busclique does not return for n from 5 to 8.
@pytest.mark.parametrize(
    "couplers, n",
    [(0, 5), (0, 8), *((60, n) for n in (2, 3, 4, 5, 6, 7, 8, 9, 12))],
)
def test_small_zephyr(couplers, n):
    graph = chip("zephyr", 4, 40, couplers)
    copies = Cliques(graph).copies(n)
    check(copies, n, graph)
    assert len(copies) * n**2 >= 0.9 * len(graph)


@pytest.mark.parametrize("coordinates", [False, True])
@pytest.mark.parametrize("family", ["chimera", "pegasus", "zephyr"])
def test_graph_for_busclique_has_no_missing_couplers(family, coordinates):
    # busclique takes minutes to work around those of a large chip.
    whole = chip(family, 3, coordinates=coordinates)
    graph = chip(family, 3, 5, 10, coordinates=coordinates)
    regular = search.without_gaps(graph)
    assert len(graph) - 10 <= len(regular) < len(graph)
    assert set(regular) < set(graph)
    couplers = {frozenset(e) for e in whole.subgraph(regular).edges}
    assert {frozenset(e) for e in regular.edges} == couplers


@pytest.mark.parametrize("n", [4, 8, 12])
@pytest.mark.parametrize("family", ["chimera", "pegasus", "zephyr"])
def test_coordinates(family, n, no_search):
    graph = chip(family, 4, 3, 3, coordinates=True)
    copies = Cliques(graph).copies(n)
    check(copies, n, graph)
    assert copies
    no_search()
    assert Cliques(graph).copies(n) == copies


def test_graph_of_a_sampler():
    from dwave.system.testing import MockDWaveSampler

    sampler = MockDWaveSampler(topology_type="zephyr", topology_shape=[2, 4])
    graph = sampler.to_networkx_graph()
    copies = Cliques(graph).copies(16)
    check(copies, 16, graph)
    assert copies


@pytest.mark.parametrize("n", [6, 9, 16])
def test_copies_are_a_prefix(n, tmp_path):
    graph = chip("zephyr", 4, 20)
    everything = Cliques(graph, tmp_path / "a").copies(n)
    assert len(everything) > 3
    for count in (0, 1, 3, len(everything) + 5):
        fresh = Cliques(graph, tmp_path / f"{count}")
        assert fresh.copies(n, count) == everything[:count]
    # In several steps, each from the files of the previous object.
    for count in (1, 3, 2, None):
        assert (
            Cliques(graph, tmp_path / "b").copies(n, count)
            == (everything[:count])
        )


def test_order_of_the_graph_does_not_matter(tmp_path):
    graph = chip("pegasus", 3)
    other = type(graph)(**graph.graph)
    other.add_edges_from(sorted(graph.edges, reverse=True))
    assert Cliques(other, tmp_path / "a").copies(12) == (
        Cliques(graph, tmp_path / "b").copies(12)
    )


def test_caller_may_change_the_result():
    known = Cliques(chip("zephyr", 2))
    copies = known.copies(4)
    first = dict(copies[0])
    copies[0].clear()
    copies.clear()
    assert known.copies(4)[0] == first


def test_embeddings_are_cached_on_disk(directory, no_search):
    graph = chip("pegasus", 3)
    first = Cliques(graph)
    copies, largest = first.copies(12), first.largest()
    part = first.copies(16, 1)
    no_search()
    assert first.copies(12) == copies
    second = Cliques(graph)
    assert second.copies(12) == copies
    assert second.copies(12, 1) == copies[:1]
    assert second.copies(16, 1) == part
    assert second.largest() == largest
    with pytest.raises(AssertionError, match="searched"):
        second.copies(16)
    # Another chip does not use them.
    with pytest.raises(AssertionError, match="searched"):
        Cliques(chip("pegasus", 3, couplers=1)).copies(12)
    # No temporary file is left.
    assert sorted(path.suffix for path in directory.iterdir()) == [".json"] * 3


def halve(text):
    return text[: len(text) // 2]


def too_deep(text):
    return "[" * 10**5


def overlap(text):
    stored = json.loads(text)
    stored["copies"].append(stored["copies"][0])
    return json.dumps(stored)


def cut_chains(text):
    stored = json.loads(text)
    stored["copies"][0] = [chain[:1] for chain in stored["copies"][0]]
    return json.dumps(stored)


def fewer_variables(text):
    stored = json.loads(text)
    stored["copies"] = [chains[:-1] for chains in stored["copies"]]
    return json.dumps(stored)


def unknown_qubit(text):
    stored = json.loads(text)
    stored["copies"][0][0] = [10**6]
    return json.dumps(stored)


@pytest.mark.parametrize(
    "damage",
    [
        halve,
        too_deep,
        overlap,
        cut_chains,
        fewer_variables,
        unknown_qubit,
        lambda text: "",
        lambda text: "[]",
        lambda text: '{"copies": [], "complete": true}',
        lambda text: '{"copies": [[[]]], "complete": true}',
    ],
)
def test_damaged_files_are_replaced(damage, directory):
    graph = chip("pegasus", 3)
    copies = Cliques(graph).copies(12)
    (path,) = directory.iterdir()
    content = path.read_bytes()
    text = disk.read_with_checksum(path).decode()
    # With a valid checksum, so that the content is checked, and without one.
    disk.write_with_checksum(path, damage(text).encode())
    assert Cliques(graph).copies(12) == copies
    assert path.read_bytes() == content
    path.write_text(damage(text))
    assert Cliques(graph).copies(12) == copies
    assert path.read_bytes() == content


@pytest.mark.parametrize("complete", [True, False])
def test_embeddings_with_a_wrong_checksum_are_replaced(directory, complete):
    """They fit the chip, but are not the result of a search."""
    graph = chip("pegasus", 3)
    copies = Cliques(graph).copies(12)
    (path,) = directory.iterdir()
    stored = json.loads(disk.read_with_checksum(path))
    del stored["copies"][-1]
    stored["complete"] = complete
    content = path.read_bytes()
    checksum = content[: content.index(b"\n") + 1]
    path.write_bytes(checksum + json.dumps(stored).encode())
    assert Cliques(graph).copies(12) == copies
    assert path.read_bytes() == content


def test_unwritable_directory(tmp_path):
    graph = chip("zephyr", 2)
    (tmp_path / "file").write_text("")
    blocked = Cliques(graph, tmp_path / "file")
    assert blocked.copies(4) == Cliques(graph).copies(4)
    assert blocked.largest() == Cliques(graph).largest()


def test_default_directory(tmp_path, monkeypatch):
    monkeypatch.delenv("KERAS_QPSBGD_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    graph = chip("zephyr", 1)
    Cliques(graph).copies(2)
    (path,) = (tmp_path / "home").rglob("*.json")
    assert "keras_qpsbgd" in str(path.parent)


@pytest.mark.parametrize(
    "family, size, largest",
    [
        *(
            pytest.param(
                name.split()[0].lower(),
                int(name.split()[1][1:]),
                largest,
                marks=pytest.mark.slow,
            )
            for name, largest in cliques.LARGEST.items()
        ),
        ("pegasus", 3, 24),
        ("zephyr", 4, 56),
        ("zephyr", 1, 10),
        ("chimera", 1, 5),
    ],
)
def test_largest(family, size, largest):
    graph = chip(family, size)
    known = Cliques(graph)
    assert known.largest() == largest
    check(known.copies(largest, 1), largest, graph)
    assert len(known.copies(largest, 1)) == 1
    assert known.copies(largest + 1) == []
    assert known.copies(10 * len(graph)) == []


def test_one_variable():
    graph = chip("pegasus", 3, 5)
    copies = Cliques(graph).copies(1)
    assert sorted(copy[0] for copy in copies) == [(q,) for q in sorted(graph)]


def test_threads(monkeypatch):
    graph = chip("zephyr", 4, 20)
    expected = Cliques(graph).copies(12)
    shared = Cliques(graph, "/dev/null/nowhere")
    searches = []
    results = {}
    extend = search.extend

    def count(*arguments):
        searches.append(arguments[1])
        return extend(*arguments)

    def work(k):
        results[k] = shared.copies(12, None if k % 2 else k)

    monkeypatch.setattr(search, "extend", count)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, copies in results.items():
        assert copies == (expected if k % 2 else expected[:k])
    assert len(results) == 8
    # After a search for all copies, no other search is needed.
    assert len(searches) <= 5


def test_validate():
    graph = chip("chimera", 1)  # 0..3 are coupled to 4..7
    good = [{0: (0,), 1: (4,)}, {0: (1, 5), 1: (2, 6), 2: (3, 7)}]
    search.validate(good, graph)
    assert search.is_disjoint(good)
    assert search.longest_chain(good) == 2
    assert search.longest_chain([]) == 0
    assert not search.is_disjoint([{0: (0,)}, {0: (1, 0)}])
    for bad in (
        [{0: (0,)}, {0: (0,)}],  # shared qubit
        [{0: (0,), 1: (1,)}],  # chains that are not coupled
        [{0: (0, 1), 1: (4,)}],  # disconnected chain
        [{0: ()}],
    ):
        with pytest.raises(ValueError, match="`embeddings`.*Received"):
            search.validate(bad, graph)


def test_invalid_arguments():
    graph = chip("zephyr", 1)
    with pytest.raises(ValueError, match="`n`.*Received: n=0"):
        Cliques(graph).copies(0)
    graph.graph["family"] = "ring"
    with pytest.raises(ValueError, match="`graph`.*Received: .*'ring'"):
        Cliques(graph)


def test_module_does_not_import_dwave():
    heavy = {"minorminer", "dwave", "networkx", "platformdirs"}
    source = pathlib.Path(cliques.__file__).read_text()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = getattr(node, "module", None) or node.names[0].name
            assert module.split(".")[0] not in heavy
