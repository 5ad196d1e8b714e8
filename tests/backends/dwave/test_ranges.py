"""Embedded calls within the ranges of a chip."""

import functools

import dimod
import networkx as nx
import numpy as np
import offline
import pytest
import tools
from dwave.cloud.exceptions import SolverFailureError
from dwave.embedding import embed_bqm
from dwave.system.coupling_groups import coupling_groups

import keras_qpsbgd as kq
from keras_qpsbgd.backends.dwave import ranges
from keras_qpsbgd.backends.dwave.cliques import Cliques
from keras_qpsbgd.backends.dwave.embedding import EmbeddedCall
from keras_qpsbgd.backends.dwave.embedding import Layout
from keras_qpsbgd.backends.dwave.mock import MockQPU
from keras_qpsbgd.backends.dwave.packing import pack

pytestmark = pytest.mark.once

CHIPS = {
    "P4": ("pegasus", [4], ((12, 2), (8, 3), (4, 3), (1, 2))),
    "Z3": ("zephyr", [3, 4], ((12, 2), (8, 3), (4, 3), (1, 2))),
    "P16": ("pegasus", None, ((20, 3), (12, 4))),
    "Z12": ("zephyr", None, ((20, 3), (12, 4))),
}


@functools.cache
def packed(name):
    """Returns a chip, an embedded call and the sizes of its layers."""
    topology, shape, sizes = CHIPS[name]
    chip = MockQPU(topology, shape=shape)
    cliques = Cliques(chip.to_networkx_graph())
    (call,) = pack(cliques, sizes)
    return chip, EmbeddedCall(call, Layout(call.chains, chip)), sizes


def layers(sizes, scale=1.0):
    """Returns a `Qubo` for each layer."""
    return [
        kq.Qubo.from_rows(
            *(
                factor * array
                for factor, array in zip(
                    (1.0, scale), tools.rows_and_gradients(seed, 24, n, m)
                )
            )
        )
        for seed, (n, m) in enumerate(sizes)
    ]


def part(bqm, slot):
    """Returns the linear biases and couplings on the qubits of a slot."""
    qubits = {q for chain in slot.chains for q in chain}
    linear = {q: bqm.linear[q] for q in qubits}
    pairs = {
        frozenset(pair): bias
        for pair, bias in bqm.quadratic.items()
        if qubits.issuperset(pair)
    }
    return linear, pairs


def used_share(linear, pairs, chip):
    """Returns the largest ratio of a value to its limit, in plain Python."""
    properties = chip.properties
    low, high = properties["extended_j_range"]
    shares = [abs(bias) / properties["h_range"][1] for bias in linear.values()]
    shares += [max(bias / low, bias / high) for bias in pairs.values()]
    if "per_group_coupling_range" in properties:
        low, high = properties["per_group_coupling_range"]
        totals = [
            sum(pairs.get(coupler, 0) for coupler in group)
            for group in groups_of(chip)
        ]
    else:
        low, high = properties["per_qubit_coupling_range"]
        totals = [
            sum(bias for pair, bias in pairs.items() if qubit in pair)
            for qubit in linear
        ]
    return max([*shares, *(max(t / low, t / high) for t in totals)])


@functools.cache
def graph_of(chip):
    return chip.to_networkx_graph()


@functools.cache
def groups_of(chip):
    groups = coupling_groups(graph_of(chip))
    return [list(map(frozenset, group)) for group in groups]


# The embedding


@pytest.mark.parametrize("name", ["P4", "Z3"])
def test_columns_equal_the_embedding_of_ocean(name):
    chip, embedded, sizes = packed(name)
    qubos = layers(sizes)
    problem = embedded.embed(qubos, 1.7)
    graph = graph_of(chip)
    assert set(problem.bqm.variables) == set(embedded.qubits)
    total = 0
    for slot, scale in zip(embedded.call.slots, problem.scales):
        expected = embed_bqm(
            qubos[slot.layer].to_bqm(slot.column),
            dict(enumerate(slot.chains)),
            graph,
            chain_strength=1.7,
        )
        linear, pairs = part(problem.bqm, slot)
        total += len(pairs)
        assert len(pairs) == len(expected.quadratic)
        for qubit, bias in linear.items():
            assert bias == pytest.approx(scale * expected.linear[qubit])
        for pair, bias in pairs.items():
            assert bias == pytest.approx(scale * expected.quadratic[pair])
    assert total == len(problem.bqm.quadratic)  # none between columns


def test_default_chain_strength_is_that_of_ocean():
    from dwave.embedding.chain_strength import uniform_torque_compensation

    _, embedded, sizes = packed("P4")
    qubos = layers(sizes)
    problem = embedded.embed(qubos)
    for slot, scale in zip(embedded.call.slots, problem.scales):
        strength = uniform_torque_compensation(
            qubos[slot.layer].to_bqm(slot.column)
        )
        graph = graph_of(packed("P4")[0])
        for chain in slot.chains:
            for pair in graph.subgraph(chain).edges:
                found = problem.bqm.quadratic[pair]
                assert found == pytest.approx(-scale * strength)


def test_reads_equal_the_majority_vote_of_ocean():
    from dwave.embedding import unembed_sampleset

    _, embedded, sizes = packed("P4")
    qubos = layers(sizes)
    problem = embedded.embed(qubos)
    rng = np.random.default_rng(0)
    shape = (7, len(embedded.qubits))
    order = list(rng.permutation(embedded.qubits))
    found = dimod.SampleSet.from_samples_bqm(
        (rng.choice([-1, 1], shape), order), problem.bqm
    )
    answers = embedded.unembed(found)
    assert sorted(answers) == list(range(len(sizes)))
    for layer, (n, m) in enumerate(sizes):
        samples, broken = answers[layer]
        slots = [s for s in embedded.call.slots if s.layer == layer]
        assert samples.shape == broken.shape == (7, n, m)
        for slot in slots:
            expected = unembed_sampleset(
                found,
                dict(enumerate(slot.chains)),
                qubos[layer].to_bqm(slot.column),
                chain_break_fraction=True,
            )
            np.testing.assert_array_equal(
                samples[:, :, slot.column],
                dimod.as_samples(expected, labels_type=list)[0],
            )
            np.testing.assert_allclose(
                broken[:, :, slot.column].mean(axis=1),
                expected.record.chain_break_fraction,
            )


def test_invalid_answers():
    _, embedded, sizes = packed("P4")
    bqm = embedded.embed(layers(sizes)).bqm
    ones = np.ones((2, len(embedded.qubits)))

    def answer(samples, qubits=embedded.qubits, energy=0.0):
        return dimod.SampleSet.from_samples(
            (samples, qubits), "SPIN", energy=[energy] * len(samples)
        )

    with pytest.raises(kq.backends.SolverError, match="Received: .* 1 missing"):
        embedded.unembed(answer(ones[:, 1:], embedded.qubits[1:]))
    with pytest.raises(kq.backends.SolverError, match="finite"):
        embedded.unembed(answer(ones, energy=np.nan))
    with pytest.raises(kq.backends.SolverError, match="at least one read"):
        embedded.unembed(dimod.SampleSet.from_samples_bqm([], bqm))
    # Only the layer with broken chains has no answer.
    position = {q: k for k, q in enumerate(embedded.qubits)}
    for slot in embedded.call.slots:
        for chain in slot.chains:
            if slot.layer == 0:
                ones[:, position[chain[0]]] = -1
    answers = embedded.unembed(answer(ones))
    assert isinstance(answers[0], kq.backends.SolverError)
    assert "`chain_strength`" in str(answers[0])
    assert answers[1][0].all() and not answers[1][1].any()
    # A binary answer has the same meaning.
    binary = answer(ones).change_vartype("BINARY", inplace=False)
    np.testing.assert_array_equal(embedded.unembed(binary)[1][0], answers[1][0])


# The ranges


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[pytest.mark.exhaustive] * name.endswith(("6", "12"))
        )
        for name in CHIPS
    ],
)
@pytest.mark.parametrize("gauge", [None, 3])
@pytest.mark.parametrize("strength", [None, 0.01])
def test_every_column_uses_its_ranges_fully(name, gauge, strength):
    chip, embedded, sizes = packed(name)
    rng = None if gauge is None else np.random.default_rng(gauge)
    qubos = layers(sizes, scale=100.0 if strength else 1.0)
    problem = embedded.embed(qubos, strength, rng)
    linear, pairs = dict(problem.bqm.linear), problem.bqm.quadratic
    whole = {frozenset(pair): bias for pair, bias in pairs.items()}
    assert used_share(linear, whole, chip) <= 1
    for slot in embedded.call.slots:
        share = used_share(*part(problem.bqm, slot), chip)
        assert share == pytest.approx(1.0, abs=1e-9)
    # Neither smaller nor larger with the scaling of the solver.
    excess = ranges.excess(problem.bqm, chip.properties)
    assert excess == pytest.approx(1.0, abs=1e-9)
    chip.sample(problem.bqm, num_reads=1, **ranges.PARAMETERS)


@pytest.mark.parametrize("name", ["P4", "Z3"])
def test_limits_of_the_sum_of_couplings(name):
    """Where they decide the scale, unlike with most problems."""
    topology, shape, sizes = CHIPS[name]
    chip = MockQPU(topology, shape=shape)
    kind = "qubit" if topology == "pegasus" else "group"
    chip.properties[f"per_{kind}_coupling_range"] = [-2.5, 1.5]
    call = packed(name)[1].call
    embedded = EmbeddedCall(call, Layout(call.chains, chip))
    for strength in (None, 0.01):
        problem = embedded.embed(layers(sizes), strength)
        loose = packed(name)[1].embed(layers(sizes), strength)
        assert (problem.scales < 0.9 * loose.scales).any()
        for slot in embedded.call.slots:
            share = used_share(*part(problem.bqm, slot), chip)
            assert share == pytest.approx(1.0, abs=1e-9)
        chip.sample(problem.bqm, **ranges.PARAMETERS)
        with pytest.raises(SolverFailureError, match="ranges"):
            chip.sample(loose.bqm, **ranges.PARAMETERS)


def test_columns_without_values():
    chip, embedded, sizes = packed("P4")
    qubos = [kq.Qubo(np.zeros((n, n)), np.zeros((n, m))) for n, m in sizes]
    problem = embedded.embed(qubos)
    np.testing.assert_array_equal(problem.scales, 1.0)
    assert not problem.bqm.to_numpy_vectors().linear_biases.any()
    chip.sample(problem.bqm, auto_scale=False)


def test_groups_by_hand():
    """On Zephyr, a qubit crosses two lines of eight qubits each."""
    chip = MockQPU("zephyr", shape=[3, 4])
    coordinates = nx.get_node_attributes(
        offline.lattice("zephyr", 3, data=True), "zephyr_index"
    )
    graph = graph_of(chip)
    qubit = next(
        q for q in graph if coordinates[q][1] == 3 and graph.degree(q) == 20
    )
    across = {}
    for other in graph[qubit]:
        if coordinates[other][0] != coordinates[qubit][0]:
            across.setdefault(coordinates[other][1], []).append(other)
    left, right = across.values()
    assert len(left) == len(right) == 8

    def excess(pairs):
        bqm = dimod.BinaryQuadraticModel({}, pairs, "SPIN")
        return ranges.excess(bqm, chip.properties)

    one = {(qubit, other): -2.0 for other in left}
    assert excess(one) == pytest.approx(16 / 13)
    both = {(qubit, other): -2.0 for other in left[:4] + right[:4]}
    assert excess(both) == pytest.approx(1.0)  # -8 in each group
    signs = {(qubit, other): 1.0 for other in left}
    assert excess(signs) == pytest.approx(1.0)  # 8 of 10
    lines = [o for o in graph[qubit] if o not in left + right]
    assert len(lines) == 4
    straight = {(qubit, other): 1.0 for other in left + lines}
    assert excess(straight) == pytest.approx(1.0)  # 8 + 2 and 2


@pytest.mark.parametrize("topology", ["pegasus", "zephyr"])
def test_mock_enforces_all_ranges(topology):
    chip = MockQPU(topology, shape=[4] if topology == "pegasus" else [3, 4])
    graph = graph_of(chip)
    qubit = max(graph, key=graph.degree)
    star = [(qubit, other) for other in graph[qubit]]
    within = [
        ({qubit: 4.0}, {}),
        ({}, {star[0]: -2.0}),
        ({}, {star[0]: 1.0}),
        ({}, dict.fromkeys(star, -0.9)),
    ]
    outside = [
        ({qubit: 4.1}, {}),
        ({}, {star[0]: -2.1}),
        ({}, {star[0]: 1.1}),
        ({}, dict.fromkeys(star, -1.99)),
    ]
    for linear, pairs in within:
        chip.sample_ising(linear, pairs, auto_scale=False)
    for linear, pairs in outside:
        with pytest.raises(SolverFailureError, match="ranges"):
            chip.sample_ising(linear, pairs, auto_scale=False)
        chip.sample_ising(linear, pairs)  # scaled by the solver
