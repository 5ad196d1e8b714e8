"""Small problems for each feature of the backend `dwave`, on a mock or a QPU.

A read that is no better than a random state has a gap of about 1.
"""

import numpy as np
import pytest

import keras_qpsbgd as kq

pytestmark = pytest.mark.once

NETWORK = ((16, 4), (4, 4), (4, 2))  # the layers of 16-4-4-2
MAX_GAP = 0.2


def problem(n, m, seed=0, scales=1.0):
    rng = np.random.default_rng([seed, n, m])
    rows, v = rng.normal(size=(32, n)), rng.normal(size=(32, m))
    return kq.Qubo.from_rows(rows, v * scales)


@pytest.fixture
def solve(chip, request):
    """Solves the layers of a step and checks the time that is charged.

    Returns a list of solutions and the calls that were made.
    """

    def solve(qubos, seed=0, **options):
        sizes = [(q.num_variables, q.num_columns) for q in qubos]
        backend = chip.backend(**options)
        estimated = backend.step_cost(sizes).seconds
        before, first = chip.budget.charged, len(chip.calls)
        found = backend.solve_layers(qubos, [seed] * len(qubos), True)
        for solution in found:
            if isinstance(solution, Exception):
                raise solution
        charged = chip.budget.charged - before
        gaps = np.concatenate([*map(gap, qubos, found)])
        breaks = np.mean(broken(found))
        ids = {i for s in found for i in s.info.get("problem_id", ())}
        chip.rows.append(
            (
                request.node.name,
                f"mean gap {gaps.mean():.4f}",
                f"largest {gaps.max():.4f}",
                f"broken chains {100 * breaks:.2f} %",
                f"{1000 * charged:.1f} ms, estimated {1000 * estimated:.1f}",
                ", ".join(sorted(ids)),
            )
        )
        assert charged == pytest.approx(estimated, rel=0.3)
        return found, chip.calls[first:]

    return solve


def gap(qubo, solution):
    name = "exact" if qubo.num_variables <= 16 else "native"
    best = kq.backends.get(name).solve(qubo).energies
    return (solution.energies - best) / (qubo.random_energy() - best)


def broken(solutions):
    return np.concatenate([s.info["chain_break_fraction"] for s in solutions])


def assert_solved(qubos, solutions):
    assert np.concatenate([*map(gap, qubos, solutions)]).mean() <= MAX_GAP


def test_small_columns_are_solved_exactly(solve):
    qubo = problem(8, 4)
    (solution,), calls = solve([qubo])
    assert gap(qubo, solution).max() < 1e-5 and len(calls) == 1
    for bqm, _ in calls:
        assert bqm.vartype.name == "SPIN"


@pytest.mark.parametrize("seed", range(3))
def test_layers_share_a_call(solve, seed):
    qubos = [problem(n, m, seed) for n, m in NETWORK]
    solutions, calls = solve(qubos, seed)
    assert_solved(qubos, solutions)
    assert len(calls) == 1
    assert len({tuple(s.info.get("problem_id", ())) for s in solutions}) == 1


@pytest.mark.slow
def test_more_columns_than_fit(solve):
    qubo = problem(64, 10)
    solutions, calls = solve([qubo], num_reads=20)
    assert_solved([qubo], solutions)
    assert len(calls) > 1


def test_small_column_beside_a_large_one(solve):
    qubo = problem(8, 2, scales=[1.0, 100.0])
    solutions, _ = solve([qubo])
    assert_solved([qubo], solutions)


def test_gauge_flips_signs(solve):
    """The sizes change by one factor per column.

    The factor is not 1, because the range of couplings is not symmetric.
    """
    qubo = problem(12, 4)
    fields = []
    for seed in range(2):
        solutions, ((bqm, _),) = solve([qubo], seed)
        assert_solved([qubo], solutions)
        fields.append(np.array([bqm.linear[q] for q in sorted(bqm.variables)]))
    first, second = fields
    assert 0.1 < (np.sign(first) != np.sign(second)).mean() < 0.9
    assert len(np.unique(np.round(np.abs(second / first), 5))) <= 4


def test_weak_chains_break(solve):
    solutions, _ = solve([problem(16, 4)], chain_strength=0.01)
    assert broken(solutions).mean() > 0.01


def test_hybrid_solver(hybrid):
    qubo = problem(8, 4)
    solution = hybrid.solve(qubo)
    assert gap(qubo, solution).max() < 1e-5
    assert solution.info["calls"] == 1
    assert solution.info["qpu_access_time"] > 0
