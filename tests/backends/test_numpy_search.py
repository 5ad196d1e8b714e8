"""Searches in NumPy, and the preset for problems that are solved once."""

import itertools

import numpy as np
import pytest

from keras_qpsbgd import Qubo
from keras_qpsbgd import backends
from keras_qpsbgd.backends.graph import numpy_search

pytestmark = pytest.mark.once

ONCE = {"name": "native", "preset": "once"}


def problem(rows, n, m, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, n)) @ rng.normal(size=(n, n))
    return Qubo.from_rows(x, 0.1 * rng.normal(size=(rows, m)))


def lowest_energies(qubo):
    states = itertools.product([-1, 1], repeat=qubo.num_variables)
    return np.min([qubo.energy(np.array(state)) for state in states], axis=0)


@pytest.mark.parametrize("rows", [5, 40])  # without and with full rank
def test_a_beam_of_all_states_is_exact(rows):
    qubo = problem(rows, 9, 4)
    states = numpy_search.beam_search(
        qubo
    )  # 2^9 partial states fit into the beam
    assert states.dtype == np.int8 and set(np.unique(states)) == {-1, 1}
    np.testing.assert_allclose(qubo.energy(states), lowest_energies(qubo))


def test_a_narrow_beam_is_worse(monkeypatch):
    qubo = problem(100, 40, 30)
    wide = qubo.energy(numpy_search.beam_search(qubo))
    monkeypatch.setattr(numpy_search, "MIN_WIDTH", 1)
    monkeypatch.setattr(numpy_search, "MAX_WIDTH", 1)
    narrow = qubo.energy(numpy_search.beam_search(qubo))
    assert wide.mean() < narrow.mean()


@pytest.mark.parametrize("block", [1, 7, 64])
def test_blocks_do_not_matter(monkeypatch, block):
    qubo = problem(60, 33, 5)
    expected = numpy_search.beam_search(qubo)
    monkeypatch.setattr(numpy_search, "BEAM_BLOCK", block)
    np.testing.assert_array_equal(numpy_search.beam_search(qubo), expected)


def test_couplings_that_are_not_positive_semidefinite():
    rng = np.random.default_rng(0)
    couplings = rng.normal(size=(20, 20))
    qubo = Qubo(couplings + couplings.T, rng.normal(size=(20, 3)))
    assert numpy_search.beam_search(qubo) is None
    solution = backends.get(ONCE).solve(qubo, seed=0)
    np.testing.assert_allclose(solution.energies, qubo.energy(solution.states))
    assert (solution.energies < qubo.random_energy()).all()


def test_annealing_ends_in_a_local_optimum():
    qubo = problem(100, 50, 6)
    start = np.where(np.random.default_rng(1).random((50, 6)) < 0.5, -1, 1)
    states = numpy_search.anneal(qubo, start, seed=1)
    energies = qubo.energy(states)
    assert (energies < qubo.energy(start)).all()
    for i in range(50):
        flipped = states.copy()
        flipped[i] *= -1
        assert (qubo.energy(flipped) >= energies * (1 - 1e-5)).all()


def test_optima_that_gurobi_proves():
    qubo = problem(200, 24, 5)
    gurobi = backends.get({"name": "gurobi", "work_limit": None})
    best = gurobi.solve(qubo)
    assert best.info["proven_optimal"].all()
    found = backends.get(ONCE).solve(qubo)
    excess = found.energies / best.energies - 1
    assert (excess < 0.005).all() and (excess < 1e-9).sum() >= 4
