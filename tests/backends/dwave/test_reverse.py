"""Reverse annealing."""

import numpy as np
import offline
import pytest
import tools
from dwave.cloud.exceptions import SolverFailureError

import keras_qpsbgd as kq
from keras_qpsbgd.backends.dwave.chip import ranges
from keras_qpsbgd.backends.dwave.chip import reverse
from keras_qpsbgd.backends.dwave.chip.cliques import Cliques
from keras_qpsbgd.backends.dwave.chip.columns import EmbeddedCall
from keras_qpsbgd.backends.dwave.chip.layout import Layout
from keras_qpsbgd.backends.dwave.leap import timing
from keras_qpsbgd.backends.dwave.mock import MockQPU

pytestmark = pytest.mark.once

SIZES = ((12, 3), (6, 4))


@pytest.fixture(scope="module")
def chip():
    return MockQPU("pegasus", shape=[4], num_sweeps=20)


@pytest.fixture(scope="module")
def embedded(chip):
    (call,) = Cliques(chip.to_networkx_graph()).pack(SIZES).calls
    return EmbeddedCall(call, Layout(call.chains, chip))


@pytest.fixture(scope="module")
def qubos():
    return [
        kq.Qubo.from_rows(*tools.rows_and_gradients(seed, 24, n, m))
        for seed, (n, m) in enumerate(SIZES)
    ]


def states(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.choice([-1, 1], size).astype(np.int8) for size in SIZES]


# Schedules


def test_default_schedule():
    chip = offline.small_chip()
    assert chip.properties["default_annealing_time"] == 20.0
    expected = [[0.0, 1.0], [2.0, 0.45], [18.0, 0.45], [20.0, 1.0]]
    assert reverse.schedule(chip.properties) == expected
    reverse.check(chip, {})


@pytest.mark.parametrize("time", [0.57, 1.0, 2.75, 3.0, 20.0, 333.33, 2000.0])
def test_schedules_are_valid_for_dwave_system(time):
    chip = offline.small_chip()
    points = reverse.schedule(chip.properties, time)
    reverse.check_schedule(chip, points)
    assert points[-1] == [time, 1.0]
    assert all(t == round(t, 2) for t, _ in points)
    reverse.check(chip, {}, time)


def test_time_too_short_for_a_schedule():
    with pytest.raises(
        kq.backends.BackendUnavailable,
        match="`annealing_time`.*0.56 micro.*Received: annealing_time=0.5",
    ):
        reverse.check(offline.small_chip(), {}, 0.5)


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"fast_anneal": True}, "`warm_start`.*`fast_anneal`"),
        ({"initial_state": {1: 1}}, "`initial_state`.*Received"),
        ({"anneal_schedule": [[0, 0], [9, 1]]}, "start at 1.*Received"),
        ({"anneal_schedule": [[0, 1], [0.1, 0.4], [9, 1]]}, "slope"),
        ({"anneal_schedule": [[0, 1], [5, 0.4], [4, 1]]}, "increase"),
        ({"anneal_schedule": [[0, 1], [5, -0.4], [9, 1]]}, "between 0 and 1"),
        ({"anneal_schedule": [[1, 1], [5, 0.4], [9, 1]]}, "start at 0"),
    ],
)
def test_parameters_that_exclude_reverse_annealing(parameters, message):
    with pytest.raises(kq.backends.BackendUnavailable, match=message):
        reverse.check(offline.small_chip(), parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        {"initial_state": {1: 1}},
        {"anneal_schedule": [[0, 1], [5, 0.4], [9, 1]]},
    ],
)
def test_reverse_annealing_requires_a_warm_start(parameters):
    backend = offline.qpu(offline.small_chip(), parameters=parameters)
    with pytest.raises(
        kq.backends.BackendUnavailable,
        match="`warm_start=True`.*Received: parameters=",
    ):
        backend.check(3, 2)
    schedule = {"anneal_schedule": [[0, 0], [20, 1]]}
    offline.qpu(offline.small_chip(), parameters=schedule).check(3, 2)


def test_solver_without_reverse_annealing():
    chip = MockQPU("pegasus", shape=[2])
    del chip.parameters["initial_state"]
    with pytest.raises(
        kq.backends.BackendUnavailable, match="no `initial_state`.*Received"
    ):
        reverse.check(chip, {})


def test_parameters_of_a_call():
    chip = offline.small_chip()
    given = {"num_reads": 3, "annealing_time": 50.0}
    found = reverse.with_state(given, chip.properties, {4: 1})
    assert found == {
        "num_reads": 3,
        "anneal_schedule": [[0.0, 1.0], [5.0, 0.45], [45.0, 0.45], [50.0, 1.0]],
        "initial_state": {4: 1},
        "reinitialize_state": True,
    }
    assert given == {"num_reads": 3, "annealing_time": 50.0}
    own = {"anneal_schedule": [[0, 1], [1, 0.5], [2, 1]]}
    own["reinitialize_state"] = False
    found = reverse.with_state({**own, "num_reads": 3}, chip.properties, {4: 1})
    assert own.items() <= found.items()
    assert reverse.without_state(found) == {"num_reads": 3}


def test_times_of_the_cost_model():
    """The formula of D-Wave's documentation, with the chip's timing data."""
    chip = offline.small_chip()
    data = chip.solver.properties["problem_timing_data"]
    forward = {"num_reads": 10, "annealing_time": 30.0}
    plain = timing.access_time(chip, 100, **forward)
    for again, kind in ((True, "with"), (False, "without")):
        parameters = reverse.with_state(forward, chip.properties)
        parameters["reinitialize_state"] = again
        extra = data[f"reverse_annealing_{kind}_reinit_prog_time_delta"]
        extra += 10 * data[f"reverse_annealing_{kind}_reinit_delay_time_delta"]
        found = timing.access_time(chip, 100, **parameters)
        assert found == pytest.approx(plain + 1e-6 * extra)
    longer = reverse.with_state({**forward, "annealing_time": 40.0}, {})
    assert timing.access_time(chip, 100, **longer) - timing.access_time(
        chip, 100, **reverse.with_state(forward, {})
    ) == pytest.approx(1e-6 * 10 * 10)


# States


@pytest.mark.parametrize("seed", [None, 1])
def test_initial_state_of_the_qubits(embedded, qubos, seed):
    gauge = None if seed is None else np.random.default_rng(seed)
    problem = embedded.embed(qubos, gauge=gauge)
    start = states()
    found = embedded.initial_state(start, problem.gauge)
    assert sorted(found) == sorted(embedded.qubits)
    signs = np.ones(36 + 24) if gauge is None else problem.gauge
    signs = iter(signs)
    for slot in embedded.call.slots:
        for variable, chain in enumerate(slot.chains):
            expected = start[slot.layer][variable, slot.column] * next(signs)
            assert {found[q] for q in chain} == {expected}


def test_mock_starts_from_the_initial_state(chip, embedded, qubos):
    """A late turn stays at the state. An early one forgets it."""
    problem = embedded.embed(qubos, gauge=np.random.default_rng(2))
    exact = [kq.backends.get("exact").solve(qubo).states for qubo in qubos]
    given = {"num_reads": 10, **ranges.PARAMETERS}

    def distance(start, turn):
        schedule = [[0.0, 1.0], [5.0, turn], [15.0, turn], [20.0, 1.0]]
        parameters = reverse.with_state(
            {**given, "anneal_schedule": schedule},
            chip.properties,
            embedded.initial_state(start, problem.gauge),
        )
        found = chip.sample(problem.bqm, **parameters)
        assert len(found.record) == 10  # raw reads, as on a QPU
        answers = embedded.unembed(found, problem.gauge)
        moved = [
            (answers[layer][0] != start[layer]).mean()
            for layer in range(len(qubos))
        ]
        return np.mean(moved)

    for start in (exact, states()):
        late, middle, early = (distance(start, turn) for turn in (1, 0.45, 0))
        assert late < 0.8 * middle < 0.8 * early
    # Only single flips that gain energy are left when the chip is cold.
    assert distance(exact, 1) < 0.01 < distance(states(), 1)


def test_reads_may_start_where_the_last_one_ended(chip, embedded, qubos):
    problem = embedded.embed(qubos)
    start = embedded.initial_state(states())
    energies = {}
    for again in (True, False):
        parameters = reverse.with_state(
            {"num_reads": 15, "reinitialize_state": again},
            chip.properties,
            start,
        )
        found = chip.sample(problem.bqm, **parameters)
        energies[again] = found.record.energy
        same = chip.sample(problem.bqm, **parameters)
        np.testing.assert_array_equal(same.record.sample, found.record.sample)
    # A walk improves from read to read. Separate starts do not.
    assert energies[False][-5:].mean() < energies[True].mean()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"annealing_time": 20.0}, "annealing_time"),
        ({"initial_state": None}, "initial_state"),
        ({"initial_state": {30: 1}}, "all qubits"),
        ({"anneal_schedule": None}, "starts at s = 1"),
        ({"anneal_schedule": [[0, 0], [20, 1]]}, "starts at s = 1"),
        ({"anneal_schedule": [[0, 1], [0.1, 0], [20, 1]]}, "slope"),
        ({"anneal_schedule": [[0, 1], [10, 0], [3000, 1]]}, "maximum anneal"),
        (
            {"anneal_schedule": [[k, 1] for k in range(20)]},
            "between 2 and 12 points",
        ),
        ({"fast_anneal": True}, "zero|fast_anneal"),
    ],
)
def test_mock_rejects_what_a_solver_rejects(
    chip, embedded, qubos, change, message
):
    problem = embedded.embed(qubos)
    parameters = reverse.with_state(
        {"num_reads": 2},
        chip.properties,
        embedded.initial_state(states()),
    )
    chip.sample(problem.bqm, **parameters)
    parameters.update(change)
    given = {k: v for k, v in parameters.items() if v is not None}
    with pytest.raises(SolverFailureError, match=message):
        chip.sample(problem.bqm, **given)
