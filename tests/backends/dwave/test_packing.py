"""Packings of several layers: validity and number of calls."""

import collections
import itertools

import hypothesis
import offline
import pytest
from hypothesis import strategies as st

from keras_qpsbgd.backends.dwave import cost
from keras_qpsbgd.backends.dwave.cliques import Cliques
from keras_qpsbgd.backends.dwave.packing import pack

pytest.importorskip("dwave.system")

pytestmark = pytest.mark.once

SMALL = ((16, 4), (4, 4), (4, 2))


def check(packed, sizes, graph):
    """Checks that a packing is valid."""
    columns = collections.Counter()
    seen = set()
    for call in packed:
        used = [q for s in call.slots for chain in s.chains for q in chain]
        assert len(used) == len(set(used)) == call.num_qubits
        for slot in call.slots:
            assert len(slot.chains) == sizes[slot.layer][0]
            columns[slot.layer, slot.column] += 1
            if slot.chains not in seen:
                offline.assert_clique(slot.chains, graph)
                seen.add(slot.chains)
        order = [(s.layer, s.column) for s in call.slots]
        assert order == sorted(order)
        assert call.layers == tuple(sorted({s.layer for s in call.slots}))
    assert columns == collections.Counter(
        (layer, column)
        for layer, (_, m) in enumerate(sizes)
        for column in range(m)
    )


def number_of_calls_per_layer(known, sizes):
    return sum(-(-m // len(known.copies(n, m))) for n, m in sizes)


CHIPS = {
    "P16": ("pegasus", 16, 0, 0),
    "P16 with defects": ("pegasus", 16, 28, 60),
    "Z12": ("zephyr", 12, 0, 0),
    "Z12 with defects": ("zephyr", 12, 223, 60),
}
NETWORKS = {
    "16-4-4-2": SMALL,
    "64-64-10": ((64, 64), (64, 10)),
    "mixed": ((32, 12), (12, 5), (2, 30), (100, 2), (7, 9), (1, 3)),
}


DEFAULT = {("P16 with defects", "16-4-4-2"), ("Z12 with defects", "64-64-10")}


@pytest.mark.parametrize(
    "name, network",
    [
        pytest.param(
            *case, marks=[pytest.mark.exhaustive] * (case not in DEFAULT)
        )
        for case in itertools.product(CHIPS, NETWORKS)
    ],
)
def test_full_chips(name, network):
    graph = offline.lattice(*CHIPS[name])
    known = Cliques(graph)
    sizes = NETWORKS[network]
    packed = pack(known, sizes)
    check(packed, sizes, graph)
    if network == "16-4-4-2":
        (call,) = packed
        assert call.num_qubits <= 200 and call.longest_chain == 3
        assert call.layers == (0, 1, 2)
    elif network == "mixed":
        assert len(packed) <= 2  # at least six with a call per layer
    else:
        assert len(packed) <= number_of_calls_per_layer(known, sizes)


# A Chimera cell has 2 x 4 qubits, each coupled to the 4 of the other side. A
# K_n with k chains of two qubits occupies n + k qubits, and two of its chains
# have one qubit, so n + k = 2 n - 2.
@pytest.mark.parametrize(
    "sizes, calls",
    [
        ([(5, 1)], 1),
        ([(4, 1), (2, 1)], 1),  # 6 + 2 qubits
        ([(4, 1), (3, 1)], 2),  # 6 + 4
        ([(3, 1), (3, 1)], 1),  # 4 + 4
        ([(3, 2), (2, 1)], 2),  # 4 + 4 + 2
        ([(2, 4)], 1),
        ([(2, 5)], 2),
        ([(2, 3), (2, 1)], 1),
        ([(2, 2), (2, 2), (2, 4)], 2),
        ([(1, 8)], 1),
        ([(1, 5), (1, 4)], 2),
        ([(3, 1), (2, 1), (1, 2)], 1),
        ([(5, 2), (2, 4)], 3),
    ],
)
def test_number_of_calls_is_minimal(sizes, calls):
    graph = offline.lattice("chimera", 1)
    packed = pack(Cliques(graph), sizes)
    check(packed, sizes, graph)
    assert len(packed) == calls


def test_more_columns_than_fit():
    graph = offline.lattice("pegasus", 3, 5, 5)
    known = Cliques(graph)
    sizes = ((12, 7), (3, 200), (12, 2))
    packed = pack(known, sizes)
    check(packed, sizes, graph)
    # Every call but the last is full: no K_3 fits beside the others.
    assert 1 < len(packed) < number_of_calls_per_layer(known, sizes)
    waiting = [s for call in packed[1:] for s in call.slots]
    assert any(len(s.chains) == 3 for s in waiting)
    used = {q for s in packed[0].slots for chain in s.chains for q in chain}
    left = graph.subgraph(set(graph) - used)
    triangles = [
        (p, q, r) for p, q in left.edges for r in set(left[p]) & set(left[q])
    ]
    assert not triangles


def test_layers_stay_apart_if_sharing_saves_no_call():
    graph = offline.lattice("chimera", 1)
    packed = pack(Cliques(graph), [(2, 4), (5, 1)])
    assert [call.layers for call in packed] == [(0,), (1,)]


def test_layers_without_columns_are_left_out():
    known = Cliques(offline.lattice("chimera", 1))
    assert pack(known, [(2, 0), (3, 0)]) == ()
    (alone,) = pack(known, [(2, 3)])
    (call,) = pack(known, [(9, 0), (2, 3)])
    assert call.chains == alone.chains and call.layers == (1,)


def test_calls_of_a_step():
    """A layer that is wider than the chip is between two that share a call."""
    sizes = [(4, 3), (60, 2), (8, 2)]
    backend = offline.qpu(offline.small_chip(), block_size=20, block_sweeps=2)
    step = cost.step_calls(backend, sizes)
    shared, *wide = step.calls
    assert shared.layers == (0, 2) and shared.repeats == 1
    assert {slot.layer for slot in shared.example.slots} == {0, 2}
    assert {call.layers for call in wide} == {(1,)}
    # Two sweeps over three blocks, with at least one call each.
    assert step.num_calls >= 7 and (step.num_calls - 1) % 6 == 0
    total = cost.step_cost(backend, sizes)
    assert step.num_calls == total.calls
    assert step.seconds == pytest.approx(total.seconds)
    alone = [cost.layer_cost(backend, *size).seconds for size in sizes]
    assert step.seconds < sum(alone)


@hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
@hypothesis.given(
    st.sampled_from([("chimera", 2), ("pegasus", 2), ("zephyr", 1)]),
    st.integers(0, 4),
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), max_size=4),
    st.integers(0, 100),
)
def test_every_packing_is_valid(lattice, qubits, couplers, sizes, seed):
    graph = offline.lattice(*lattice, qubits, couplers, seed)
    known = Cliques(graph)
    sizes = [size for size in sizes if size[0] <= known.largest()]
    hypothesis.assume(sizes)
    packed = pack(known, sizes)
    check(packed, sizes, graph)
    assert len(packed) <= number_of_calls_per_layer(known, sizes)


def test_layers_that_do_not_fit():
    known = Cliques(offline.lattice("chimera", 1))
    message = "`sizes`.*at most 5 inputs.*Received: 6 inputs"
    with pytest.raises(ValueError, match=message):
        pack(known, [(2, 1), (6, 1)])
