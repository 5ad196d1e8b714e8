"""Layers that are too wide for their solver."""

import numpy as np
import pytest
import tools

import keras_qpsbgd as kq
from keras_qpsbgd.backends import block_descent

pytestmark = pytest.mark.once


def qubo(n, m=4, batch=64, scale=1.0, kind="normal"):
    rows, v = tools.rows_and_gradients(0, batch, n, m, kind)
    return kq.Qubo.from_rows(rows, scale * v)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "pm1", "sparse"])
def test_gap_with_300_inputs_and_blocks_of_64(kind):
    problem = qubo(300, scale=0.1, kind=kind)
    best = kq.backends.get({"name": "native", "preset": "once"}).solve(problem)
    backend = kq.backends.get(
        {"name": "simulated_annealing", "num_sweeps": 200, "block_size": 64}
    )
    found = backend.solve(problem)
    gap = (found.energies - best.energies) / (
        problem.random_energy() - best.energies
    )
    assert gap.mean() <= 0.02
    assert gap.max() <= 0.03


def test_energy_never_increases():
    """Not even with a solver that returns random states."""
    problem = qubo(30, scale=0.1)
    rng = np.random.default_rng(0)

    class Random(kq.backends.Backend):
        def sample(self, part, seed):
            shape = (1, part.num_variables, part.num_columns)
            return rng.choice([-1, 1], shape), {}

    backend = Random(block_size=4)
    start = np.where(problem.fields > 0, -1, 1)
    previous = problem.energy(start)
    for sweeps in range(1, 6):
        rng = np.random.default_rng(0)
        states, _ = block_descent.solve(
            problem, 1, 4, backend._solve_whole, sweeps
        )
        energies = problem.energy(states)
        assert (energies <= previous + 1e-9).all()
        previous = energies
    assert (previous < problem.energy(start)).any()


def test_qubo_of_a_block():
    """A block has the couplings Q_AA and the fields s_A + 2 Q_AB g_B."""
    problem = qubo(11, m=2)
    parts = []

    def solve_block(part, seed):
        parts.append(part)
        return kq.backends.get("exact").solve(part, seed)

    states, _ = block_descent.solve(problem, 0, 4, solve_block, 1)
    assert sorted(part.num_variables for part in parts) == [3, 4, 4]
    part = parts[-1]  # no other block has changed since
    diagonal = np.diag(problem.couplings)
    block = np.flatnonzero(np.isin(diagonal, np.diag(part.couplings)))
    rest = np.setdiff1d(np.arange(11), block)
    np.testing.assert_array_equal(
        part.couplings, problem.couplings[np.ix_(block, block)]
    )
    outside = problem.couplings[np.ix_(block, rest)] @ states[rest]
    np.testing.assert_allclose(part.fields, problem.fields[block] + 2 * outside)
    best = kq.backends.get("exact").solve(part).energies
    np.testing.assert_allclose(part.energy(states[block]), best)


def test_failing_block_fails_the_solve():
    calls = []

    class Third(kq.backends.Backend):
        name = "third"

        def sample(self, part, seed):
            calls.append(part)
            if len(calls) == 3:
                raise kq.backends.SolverError("third")
            shape = (1, part.num_variables, part.num_columns)
            return np.ones(shape), {"qpu_access_time": 5.0}

    with pytest.raises(kq.backends.SolverError, match="third") as raised:
        Third(block_size=3).solve(qubo(12))
    assert raised.value.info["calls"] == 3
    assert raised.value.info["qpu_access_time"] == 10.0
