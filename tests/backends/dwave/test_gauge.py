"""Spin reversals of whole chains."""

import dimod
import numpy as np
import offline
import pytest
import tools

import keras_qpsbgd as kq
from keras_qpsbgd.backends.dwave import ranges
from keras_qpsbgd.backends.dwave.cliques import Cliques
from keras_qpsbgd.backends.dwave.embedding import EmbeddedCall
from keras_qpsbgd.backends.dwave.embedding import Layout
from keras_qpsbgd.backends.dwave.packing import pack

pytestmark = pytest.mark.once

SIZES = ((6, 2), (5, 3), (4, 3), (1, 2))


@pytest.fixture(scope="module", params=["pegasus", "zephyr"])
def chip(request):
    shape = [3] if request.param == "pegasus" else [2, 4]
    return offline.exact_chip(request.param, shape)


@pytest.fixture(scope="module")
def embedded(chip):
    (call,) = pack(Cliques(chip.to_networkx_graph()), SIZES)
    return EmbeddedCall(call, Layout(call.chains, chip))


@pytest.fixture(scope="module")
def qubos():
    return [
        kq.Qubo.from_rows(*tools.rows_and_gradients(seed, 24, n, m))
        for seed, (n, m) in enumerate(SIZES)
    ]


def generator(seed=0):
    return np.random.default_rng(seed)


def test_answers_are_those_without_a_gauge(chip, embedded, qubos):
    """On a chip that finds the ground state, energies and states are equal."""
    plain = embedded.embed(qubos)
    expected = embedded.unembed(chip.sample(plain.bqm, **ranges.PARAMETERS))
    for seed in range(3):
        problem = embedded.embed(qubos, gauge=generator(seed))
        found = chip.sample(problem.bqm, **ranges.PARAMETERS)
        answers = embedded.unembed(found, problem.gauge)
        for layer, qubo in enumerate(qubos):
            np.testing.assert_array_equal(answers[layer][0], expected[layer][0])
            np.testing.assert_array_equal(answers[layer][1], expected[layer][1])
            exact = kq.backends.get("exact").solve(qubo)
            for read in answers[layer][0]:
                np.testing.assert_array_equal(read, exact.states)
        # Without its inverse, the answer is another one.
        wrong = embedded.unembed(found)
        assert any(
            (wrong[layer][0] != expected[layer][0]).any()
            for layer in range(len(qubos))
        )


def test_reads_are_undone_exactly(embedded, qubos):
    """Also where chains are broken and the vote is a tie."""
    problem = embedded.embed(qubos, gauge=generator())
    chains = [chain for slot in embedded.call.slots for chain in slot.chains]
    signs = np.repeat(problem.gauge, [len(chain) for chain in chains])
    reads = generator(1).choice([-1, 1], (50, len(embedded.qubits)))

    def answer(samples):
        return dimod.SampleSet.from_samples(
            (samples, embedded.qubits), "SPIN", energy=0.0
        )

    expected = embedded.unembed(answer(reads))
    found = embedded.unembed(answer(reads * signs), problem.gauge)
    for layer in range(len(qubos)):
        for one, other in zip(found[layer], expected[layer]):
            np.testing.assert_array_equal(one, other)
    assert found[0][1].any() and not found[3][1].any()


def test_gauges_are_random_and_seeded(embedded, qubos):
    rng = generator(5)
    first, second = (embedded.embed(qubos, gauge=rng) for _ in range(2))
    again = embedded.embed(qubos, gauge=generator(5))
    np.testing.assert_array_equal(first.gauge, again.gauge)
    assert first.bqm == again.bqm
    assert 0.3 < (first.gauge != second.gauge).mean() < 0.7
    assert 0.3 < (first.gauge == 1).mean() < 0.7
    assert set(first.gauge) == {-1, 1}
    assert embedded.embed(qubos).gauge is None
