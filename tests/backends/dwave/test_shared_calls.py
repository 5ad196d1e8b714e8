"""The layers of a training step share QPU calls. The chip is a mock."""

import concurrent.futures

import numpy as np
import offline
import pytest
import tools

import keras_qpsbgd as kq
from keras_qpsbgd.backends import calls
from keras_qpsbgd.backends.calls import Stopped
from keras_qpsbgd.backends.dwave import mock

pytestmark = pytest.mark.once

SIZES = [(5, 3), (4, 4), (3, 2)]


def qubos(sizes=SIZES):
    return [
        kq.Qubo.from_rows(*tools.rows_and_gradients(seed, 12, n, m))
        for seed, (n, m) in enumerate(sizes)
    ]


class ExactChip(mock.MockQPU):
    """A chip that always finds the optimum of every column.

    Attributes:
        calls: List of tuples `(bqm, parameters)`.
        plan: Dictionary from the number of a call to the exception it raises.
    """

    def __init__(self, plan=None):
        super().__init__("pegasus", shape=[3])
        self.substitute_sampler = offline.GroundStates()
        self.calls = []
        self.plan = plan or {}

    def sample(self, bqm, **parameters):
        number = len(self.calls)
        self.calls.append((bqm, parameters))
        if number in self.plan:
            raise self.plan[number]
        found = super().sample(bqm, **parameters)
        found.info["problem_id"] = f"id-{number}"
        return found


@pytest.fixture
def chip():
    return ExactChip()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(calls, "FIRST_WAIT", 0.0)


def qpu(chip, **arguments):
    return offline.qpu(chip, **{"num_reads": 2, **arguments})


def exact(problems):
    return [kq.backends.get("exact").solve(problem) for problem in problems]


def assert_solved(found, problems):
    for solution, best in zip(found, exact(problems)):
        assert not isinstance(solution, Exception), solution
        np.testing.assert_array_equal(solution.states, best.states)
        np.testing.assert_allclose(solution.energies, best.energies)


# Answers


@pytest.mark.parametrize("gauge", [True, False])
def test_one_call_equals_separate_calls(chip, gauge):
    problems = qubos()
    backend = qpu(chip, gauge=gauge)
    found = backend.solve_layers(problems, [1, 2, 3], True)
    assert len(chip.calls) == 1
    assert_solved(found, problems)
    apart = [backend.solve(p, seed) for seed, p in enumerate(problems)]
    assert len(chip.calls) == 4
    assert_solved(apart, problems)
    for solution, problem in zip(found, problems):
        assert solution.info["reads"] == 2
        assert solution.samples.shape == (2, *problem.fields.shape)


def test_more_columns_than_fit(chip, monkeypatch):
    """The columns of one layer are in several calls, in any order."""
    backend = qpu(chip)
    offline.split_calls(monkeypatch, backend, 2)
    problems = qubos()
    found = backend.solve_layers(problems, [1, 2, 3], True)
    assert_solved(found, problems)
    assert len(chip.calls) == 5
    calls = [f.info["calls"] for f in found]
    shared = [f.info.get("shared_calls", 0) for f in found]
    assert calls == [2, 3, 2]
    assert sum(calls) - sum(shared) == 5
    for solution, (_, m) in zip(found, SIZES):
        assert solution.info["chain_break_fraction"].shape == (m,)
        assert len(solution.info["problem_id"]) == solution.info["calls"]


def test_wide_layer_beside_narrow_ones(chip):
    backend = qpu(chip, block_size=5, block_sweeps=2)
    problems = qubos([(4, 2), (9, 2), (3, 3)])
    found = backend.solve_layers(problems, [1, 2, 3], True)
    assert_solved([found[0], found[2]], [problems[0], problems[2]])
    assert (
        found[0].info["problem_id"] == found[2].info["problem_id"] == ["id-0"]
    )
    best = exact(problems[1:2])[0].energies
    gap = (found[1].energies - best) / (problems[1].random_energy() - best)
    assert (gap >= -1e-9).all() and gap.max() < 0.2
    assert found[1].info["calls"] == len(chip.calls) - 1 >= 2
    total = sum(f.info["qpu_access_time"] for f in found)
    assert 1e-6 * total == pytest.approx(backend.budget.charged)


# Failures


def failure():
    return kq.backends.SolverError("broken")


def test_no_further_call_after_a_failure(monkeypatch):
    chip = ExactChip({0: failure()})
    backend = qpu(chip)
    offline.split_calls(monkeypatch, backend, 3)
    first, second, third = backend.solve_layers(qubos(), [1, 2, 3], True)
    assert len(chip.calls) == 1
    assert str(first) == "broken" and first.info["calls"] == 1
    for error in (second, third):
        assert isinstance(error, Stopped) and error.info["calls"] == 0


def test_failures_beside_a_wide_layer():
    options = {"block_size": 5, "block_sweeps": 1}
    problems = qubos([(4, 2), (9, 2)])
    backend = qpu(ExactChip({0: failure()}), **options)
    narrow, wide = backend.solve_layers(problems, [1, 2], True)
    assert str(narrow) == "broken" and isinstance(wide, Stopped)
    backend = qpu(ExactChip({1: failure()}), **options)
    narrow, wide = backend.solve_layers(problems, [1, 2], False)
    assert not isinstance(narrow, Exception) and str(wide) == "broken"


def test_other_layers_keep_their_answers(monkeypatch):
    """Call 1 has three columns of the second layer. It is not sent again."""
    chip = ExactChip({1: failure()})
    backend = qpu(chip)
    offline.split_calls(monkeypatch, backend, 3)
    problems = qubos()
    first, second, third = backend.solve_layers(problems, [1, 2, 3], False)
    assert_solved([first, third], [problems[0], problems[2]])
    assert len(chip.calls) == 3
    assert str(second) == "broken"
    assert second.info["calls"] == 2  # the last column shares a call
    # The answered call of the failed layer is still reported.
    seconds = 1e-6 * sum(
        found.info["qpu_access_time"] for found in (first, second, third)
    )
    estimate = backend.call_seconds(chip.calls[1][0].num_variables)
    assert seconds == pytest.approx(backend.budget.charged - estimate)


def test_calls_of_failed_layers_are_not_made(monkeypatch):
    chip = ExactChip({0: failure()})
    backend = qpu(chip)
    offline.split_calls(monkeypatch, backend, 1)
    first, second = backend.solve_layers(qubos([(5, 3), (4, 1)]), [1, 2], False)
    assert len(chip.calls) == 2
    assert first.info["calls"] == 1
    assert not isinstance(second, Exception)


def test_budget_is_never_exceeded_by_threads(chip):
    problems = qubos()
    step = qpu(chip).step_cost(SIZES)
    assert step.calls == 1
    backend = qpu(chip, qpu_budget_seconds=4.5 * step.seconds)

    def solve(seed):
        found = backend.solve_layers(problems, [seed] * 3, seed % 2 == 0)
        errors = [f for f in found if isinstance(f, Exception)]
        assert len(errors) in (0, 3)
        return not errors

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(solve, range(16))) == 4
    assert len(chip.calls) == 4
    assert backend.budget.charged == pytest.approx(4 * step.seconds)
    assert backend.budget.remaining() == pytest.approx(0.5 * step.seconds)


def test_only_the_layer_of_a_failed_call_falls_back(monkeypatch):
    """Each layer has its own call, and the second call of step 2 fails."""
    seed = tools.CLEAR_CUT["averaged"]
    chip = ExactChip({5: failure()})
    backend = qpu(chip)
    offline.split_calls(monkeypatch, backend, 3)
    opt = tools.optimizer(backend=backend, on_failure="exact")
    with pytest.warns(UserWarning, match="A solve failed"):
        found = tools.fit(tools.small_model(seed), opt, *tools.data(seed))
    assert len(chip.calls) == 8
    rows = list(opt.solver_report().layers.values())
    assert [row.failures for row in rows] == [0, 1]
    assert [row.fallbacks for row in rows] == [0, 1]
    tools.assert_equal(found, tools.clear_cut_fit(seed))


# Reports


def test_report_counts_every_call_once(chip):
    seed = tools.CLEAR_CUT["averaged"]
    backend = qpu(chip)
    opt = tools.optimizer(backend=backend)
    found = tools.fit(tools.small_model(seed), opt, *tools.data(seed))
    tools.assert_equal(found, tools.clear_cut_fit(seed))
    report = opt.solver_report()
    assert len(chip.calls) == report.total.calls == tools.STEPS
    assert [row.calls for row in report.layers.values()] == [tools.STEPS] * 2
    assert report.since(opt.solver_report()).total.calls == 0
    charged = sum(row.qpu_seconds for row in report.layers.values())
    assert charged == pytest.approx(backend.budget.charged)
    # Divided by qubits.
    (call,) = backend.pack([(5, 3), (3, 3)])
    qubits = [0, 0]
    for slot in call.slots:
        qubits[slot.layer] += sum(map(len, slot.chains))
    shares = [row.qpu_seconds / charged for row in report.layers.values()]
    np.testing.assert_allclose(shares, np.divide(qubits, sum(qubits)))
    ids = [f"id-{k}" for k in range(tools.STEPS)]
    for row in report.layers.values():
        assert list(row.problem_ids) == ids[-5:]


# Arguments
