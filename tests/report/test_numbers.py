"""The numbers of the report page, against loops and sets."""

import dataclasses
import itertools

import numpy as np
import pytest

from keras_qpsbgd.report import numbers

pytestmark = pytest.mark.once


def energy(qubo, state, column):
    total = qubo.offset[column]
    for i, g in enumerate(state):
        total += qubo.fields[i, column] * g
        for k, other in enumerate(state):
            total += qubo.couplings[i, k] * g * other
    return total


def test_applied_states(run):
    updates = run.of_layer("hidden")
    updates[4].states[:2] = 0  # held
    found = numbers.applied_states(updates)
    for k, update in enumerate(updates):
        qubo, states = update.qubo, update.states
        energies = [
            energy(qubo, np.where(states[:, j] == 0, 1, states[:, j]), j)
            for j in range(3)
        ]
        assert found["energy"][k] == pytest.approx(np.mean(energies))
        assert found["lowest"][k] == pytest.approx(min(energies))
        assert found["highest"][k] == pytest.approx(max(energies))
        assert found["held"][k] == pytest.approx(6 / 18 if k == 4 else 0)
        every = itertools.product((-1, 1), repeat=6)
        mean = np.mean([energy(qubo, state, 0) for state in every])
        assert qubo.random_energy()[0] == pytest.approx(mean)
        assert found["random"][k] == pytest.approx(qubo.random_energy().mean())


@pytest.mark.parametrize("count", [1, 2, 199, 200, 201, 5000])
def test_thin(count):
    found = numbers.thin(count)
    assert len(found) == min(count, 200)
    assert found[0] == 0 and found[-1] == count - 1
    assert np.ptp(np.diff(found)) <= 1 if count > 1 else True


def test_read_energies(run):
    update = run.updates[0]
    found = np.sort(numbers.read_energies(update))
    expected = []
    for j in range(3):
        column = [energy(update.qubo, s[:, j], j) for s in update.samples]
        expected += [value - min(column) for value in column]
    np.testing.assert_allclose(found, np.sort(expected), atol=1e-9)


def test_similarity(run):
    update = run.updates[0]
    found = numbers.similarity(update, 4)
    expected = np.zeros((4, 4))
    for j in range(3):
        order = np.argsort(update.sample_energies[:, j])[:4]
        ups = [set(np.flatnonzero(update.samples[k, :, j] > 0)) for k in order]
        for a, b in itertools.product(range(4), repeat=2):
            either = ups[a] | ups[b]
            share = len(ups[a] & ups[b]) / len(either) if either else 1
            expected[a, b] += share / 3
    np.testing.assert_allclose(found, expected)


def test_last_with_reads(run):
    assert numbers.last_with_reads(run.updates) is run.updates[-1]
    run.updates[-1].samples = None
    run.updates[-2].samples = run.updates[-2].samples[:1]
    assert numbers.last_with_reads(run.updates) is run.updates[-3]
    assert numbers.last_with_reads(run.updates[-2:]) is None


def test_solver_means(run):
    updates = run.of_layer("hidden")
    fallback = dataclasses.replace(
        updates[0], info={"reads": 1, "fallback": "native"}
    )
    held = dataclasses.replace(
        updates[0], info={"calls": 0, "error": "BudgetExceeded"}
    )
    assert numbers.solver_means([*updates, fallback, held]) == pytest.approx(
        {
            "calls": 2,
            "reads": 12,
            "retries": 0.1,
            "qpu_seconds": 0.0015,
            "chain_breaks": 0.25,
        }
    )


def test_totals():
    logs = {
        "loss": [3.0, 2.0, 1.0],
        "solver_calls": [2.0, 3.0, np.nan],
        "solver_qpu_s": [0.5, np.inf, 0.25],
        "solver_chain_breaks": [0.1, np.nan, 0.3],
    }
    found = numbers.totals({k: np.array(v) for k, v in logs.items()})
    expected = {
        "solver_calls": 5,
        "solver_qpu_s": 0.75,
        "solver_chain_breaks": 0.2,
    }
    assert found == pytest.approx(expected)


def test_solver_means_of_a_backend_that_reports_nothing(run):
    updates = run.of_layer("hidden")
    for update in updates:
        update.info = {"calls": "many", "retries": None, "reads": np.nan}
        update.samples = None
    assert set(numbers.solver_means(updates).values()) == {None}
