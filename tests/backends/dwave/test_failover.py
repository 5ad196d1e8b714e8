"""Solvers that go offline, and working graphs that change."""

import concurrent.futures
import re
import types
import warnings

import dimod
import leap_service
import numpy as np
import offline
import pytest
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.backends.dwave import mock
from keras_qpsbgd.backends.dwave.chip import search
from keras_qpsbgd.backends.dwave.leap import connection
from keras_qpsbgd.backends.dwave.leap import ocean
from keras_qpsbgd.backends.dwave.qpu import DWaveBackend
from keras_qpsbgd.backends.host import calls

pytestmark = pytest.mark.once

PEGASUS = {"topology": "pegasus", "shape": [3]}
ZEPHYR = {"topology": "zephyr", "shape": [2, 4]}


@pytest.fixture
def service():
    found = leap_service.Service(first=PEGASUS, second=ZEPHYR)
    with found.connected():
        yield found


def qubo(n=4, m=3):
    rows, v = tools.rows_and_gradients(0, 12, n, m)
    return kq.Qubo.from_rows(rows, v)


def backend(solver, **arguments):
    return DWaveBackend(solver=solver, num_reads=20, **arguments)


def assert_exact(found, problem):
    best = kq.backends.get("exact").solve(problem).energies
    np.testing.assert_allclose(found.energies, best, rtol=1e-5)


# At the start


def test_first_solver_of_a_list_is_used(service):
    qpu = backend(["first", "second"])
    assert_exact(qpu.solve(qubo()), qubo())
    assert service.calls == ["first"]


@pytest.mark.parametrize("gone", ["offline", "unknown"])
def test_first_solver_of_a_list_is_not_available(service, gone):
    if gone == "offline":
        service.offline.add("first")
    solvers = ["first" if gone == "offline" else "third", "second"]
    qpu = backend(solvers)
    qpu.check(4, 3)
    assert_exact(qpu.solve(qubo()), qubo())
    assert service.calls == ["second"]
    assert qpu.open().sampler.properties["topology"]["type"] == "zephyr"


def test_no_solver_of_a_list_is_available(service):
    service.offline |= {"first", "second"}
    with pytest.raises(
        kq.backends.BackendUnavailable,
        match=r"None of the solvers.*Received: solver=\['first', 'second'\]",
    ):
        backend(["first", "second"]).check(4, 3)


def test_a_rejected_token_ends_the_search(monkeypatch):
    import dwave.system
    from dwave.cloud.exceptions import SolverAuthenticationError

    tried = []

    def connect(**config):
        tried.append(config["solver"])
        raise SolverAuthenticationError("401")

    monkeypatch.setattr(dwave.system, "DWaveSampler", connect)
    with pytest.raises(kq.backends.BackendUnavailable, match="rejected"):
        backend(["first", "second"]).open()
    assert tried == ["first"]


@pytest.mark.parametrize("solver", [[], ["a", None], [3], 3, {"a"}])
def test_invalid_solvers(solver):
    with pytest.raises(ValueError, match="`solver`.*Received: solver="):
        DWaveBackend(solver=solver)


def test_list_of_solvers_is_saved():
    solvers = ["first", {"topology__type": "zephyr"}]
    config = kq.backends.serialize(DWaveBackend(solver=solvers))
    assert config == {"name": "dwave", "num_reads": 100, "solver": solvers}
    with pytest.raises(ValueError, match="secrets"):
        DWaveBackend(solver=["first", {"token": "abc"}])
    with pytest.raises(ValueError, match="cannot be combined"):
        DWaveBackend(solver=["first"], mock=True)


# In the middle


def go_offline(service, name):
    return lambda: service.offline.add(name)


def test_solver_goes_offline_during_training(service):
    """The step is repeated on the next solver, and nothing is lost."""
    service.plan[2] = go_offline(service, "first")
    seed = tools.CLEAR_CUT["averaged"]
    qpu = backend(["first", "second"])
    opt = tools.optimizer(backend=qpu)
    with pytest.warns(UserWarning, match="first is not available.*second"):
        found = tools.fit(tools.small_model(seed), opt, *tools.data(seed))
    tools.assert_equal(found, tools.clear_cut_fit(seed))
    names = list(dict.fromkeys(service.calls))
    assert names == ["first", "second"]
    assert service.calls[:3] == ["first"] * 3
    total = opt.solver_report().total
    assert total.failures == total.fallbacks == 0
    assert total.calls == len(service.calls)
    # The call that found the solver offline is not charged.
    per_layer = [row.qpu_seconds for row in opt.solver_report().layers.values()]
    assert qpu.budget.charged == pytest.approx(sum(per_layer))


def test_ocean_chooses_another_solver_with_the_same_features(service):
    service.chips["third"] = mock.MockQPU(**PEGASUS)
    service.plan[1] = go_offline(service, "first")
    qpu = backend({"topology__type": "pegasus"})
    qpu.solve(qubo())
    with pytest.warns(UserWarning, match="first is not available.*third"):
        assert_exact(qpu.solve(qubo()), qubo())
    assert service.calls == ["first", "first", "third"]


SMALL = {"topology": "pegasus", "shape": [2]}


@pytest.mark.parametrize("stop", [False, True])
def test_next_solver_is_too_small_for_a_layer(service, stop):
    """That layer fails in this step. The next step solves it in blocks."""
    service.chips["small"] = mock.MockQPU(**SMALL)
    service.plan[1] = go_offline(service, "first")
    qpu = backend(["first", "small"])
    problems = [qubo(4), qubo(16, 1)]
    assert_exact(qpu.solve_layers(problems, [0, 1], stop)[1], problems[1])
    with pytest.warns(UserWarning, match="first is not available.*small"):
        narrow, wide = qpu.solve_layers(problems, [0, 1], stop)
    largest = qpu.open().cliques.largest()
    assert 4 < largest < 16
    assert type(wide) is kq.backends.BackendUnavailable
    assert re.search(f"layer of 16 inputs.*at most {largest}", str(wide))
    if stop:
        assert isinstance(narrow, calls.Stopped)
        assert service.calls == ["first", "first"]
    else:
        assert_exact(narrow, problems[0])
        assert service.calls == ["first", "first", "small"]
    narrow, wide = qpu.solve_layers(problems, [0, 1], stop)
    assert_exact(narrow, problems[0])
    best = kq.backends.get("exact").solve(problems[1]).energies
    gap = (wide.energies - best) / (problems[1].random_energy() - best)
    assert wide.info["calls"] > 1 and gap.max() < 0.2
    assert set(service.calls[2:]) == {"small"}


def test_policy_if_the_next_solver_is_too_small(service):
    service.chips["small"] = mock.MockQPU(**SMALL)
    service.plan[1] = go_offline(service, "first")
    x = np.random.default_rng(0).normal(size=(4 * tools.BATCH, 16))
    model = keras.Sequential(
        [
            keras.layers.InputLayer((16,)),
            kq.layers.BinaryDense(2, activation="tanh", name="wide"),
            kq.layers.BinaryDense(1, name="narrow"),
        ]
    )
    opt = tools.optimizer(
        backend=backend(["first", "small"]), on_failure="native"
    )
    model.compile(opt, "mse")
    with pytest.warns(UserWarning, match="A solve failed.*layer of 16 inputs"):
        model.fit(x, x[:, :1], batch_size=tools.BATCH, verbose=0)
    rows = opt.solver_report().layers
    assert (rows["wide"].failures, rows["wide"].fallbacks) == (1, 1)
    assert (rows["narrow"].failures, rows["narrow"].solves) == (0, 4)


def test_layers_are_divided_again_if_the_chip_shrinks(monkeypatch):
    """Another thread may change the chip after the groups were formed."""
    chip = offline.small_chip()
    qpu = offline.qpu(chip)
    sizes = iter([16, 4, 10, 10])
    monkeypatch.setattr(qpu, "block_size_for", lambda n: next(sizes))
    problems = [qubo(16), qubo(4)]
    for found, problem in zip(
        qpu.solve_layers(problems, [0, 1], True), problems
    ):
        assert_exact(found, problem)


def test_all_solvers_go_offline(service):
    def both():
        service.offline |= {"first", "second"}

    service.plan[1] = both
    qpu = backend(["first", "second"], retries=0)
    qpu.solve(qubo())
    with pytest.raises(kq.backends.TransientError, match="Offline"):
        qpu.solve(qubo())
    service.offline.clear()
    assert_exact(qpu.solve(qubo()), qubo())


def test_errors_of_a_problem_do_not_change_the_solver(service):
    qpu = backend(["first", "second"])
    qpu.solve(qubo())
    service.chips["first"].properties["num_reads_range"] = [1, 5]
    with pytest.raises(kq.backends.SolverError, match="num_reads"):
        qpu.solve(qubo())
    assert set(service.calls) == {"first"}


# Working graphs


def used_qubit(qpu):
    return qpu.copies(4, 3)[0][0][0]


@pytest.mark.parametrize("solver", [["first"], None])
def test_qubit_is_lost_between_steps(service, solver):
    qpu = backend(solver)
    qpu.solve(qubo())
    old, lost = qpu.open(), used_qubit(qpu)
    service.lose_qubit("first", lost)
    with pytest.warns(UserWarning, match="working graph of the solver first"):
        assert_exact(qpu.solve(qubo()), qubo())
    chip = qpu.open()
    assert chip is not old
    copies = chip.cliques.copies(4, 3)
    search.validate(copies, service.chips["first"].to_networkx_graph())
    assert lost not in chip.cliques.qubits
    assert service.calls == ["first"] * 3
    # The rejected call is charged with its estimate: it may have run.
    assert qpu.budget.charged == pytest.approx(3 * qpu.estimate(4, 3), rel=0.1)


def test_qubit_is_lost_during_training(service):
    seed = tools.CLEAR_CUT["averaged"]
    qpu = backend("first")
    tools.fit(
        tools.small_model(seed),
        tools.optimizer(backend=qpu),
        *tools.data(seed),
    )
    lost = qpu.copies(5, 3)[0][0][0]
    service.plan[len(service.calls) + 2] = lambda: service.lose_qubit(
        "first", lost
    )
    opt = tools.optimizer(backend=qpu)
    with pytest.warns(UserWarning, match="working graph"):
        found = tools.fit(tools.small_model(seed), opt, *tools.data(seed))
    tools.assert_equal(found, tools.clear_cut_fit(seed))
    assert opt.solver_report().total.failures == 0


def test_graph_of_a_given_sampler_changes():
    """The new lists of qubits are noticed before the call."""
    sampler = mock.MockQPU(**PEGASUS)
    qpu = offline.qpu(sampler)
    qpu.solve(qubo())
    lost = used_qubit(qpu)
    smaller = mock.MockQPU(**PEGASUS, dead_qubits=[lost])
    sampler.nodelist, sampler.edgelist = smaller.nodelist, smaller.edgelist
    with pytest.warns(UserWarning, match="working graph"):
        assert_exact(qpu.solve(qubo()), qubo())
    assert lost not in qpu.open().cliques.qubits


def test_equal_graphs_are_not_embedded_again(recwarn):
    sampler = mock.MockQPU(**PEGASUS)
    qpu = offline.qpu(sampler)
    chip = qpu.open()
    sampler.nodelist = list(sampler.nodelist)
    sampler.edgelist = list(sampler.edgelist)
    assert qpu.open() is chip
    assert not [w for w in recwarn if "working graph" in str(w.message)]


def test_threads_repeat_on_the_chip_that_another_thread_opened(service):
    links = backend(["first", "second"]).connection()
    chip = links.chip()
    service.offline.add("first")
    error = kq.backends.SolverError("any")
    with pytest.warns(UserWarning, match="not available"):
        problem = dimod.BinaryQuadraticModel(
            {chip.sampler.nodelist[0]: 1.0}, {}, "SPIN"
        )
        with pytest.raises(connection.ChipChanged) as raised:
            links.sample(chip, problem, 60.0, num_reads=1)
    assert raised.value.info == {"qpu_access_time": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert links.recover(chip, error)
    assert links.chip().sampler.solver.name == "second"


# Samplers with `failover=True`


def test_conditions_of_dwave_system_are_translated():
    from dwave.cloud import exceptions
    from dwave.system import exceptions as conditions

    def translated(condition, cause):
        try:
            raise condition("wrapped") from cause
        except conditions.FailoverCondition as error:
            return ocean.translate(error)

    retry, failover = conditions.RetryCondition, conditions.FailoverCondition
    slow, off = exceptions.PollingTimeout("slow"), exceptions.SolverOfflineError
    transient = kq.backends.TransientError
    assert type(translated(retry, slow)) is transient
    assert type(translated(retry, None)) is transient
    assert type(translated(failover, off("off"))) is transient
    failed = exceptions.SolverFailureError("failed")
    assert type(translated(failover, failed)) is kq.backends.SolverError
    assert type(translated(failover, None)) is kq.backends.SolverError


def test_names_of_samplers():
    named = types.SimpleNamespace(name="a")
    assert connection.solver_name(offline.small_chip()) == "MockDWaveSampler"
    sampler = types.SimpleNamespace(properties={}, solver=named)
    assert connection.solver_name(sampler) == "a"


# Workers


def test_workers_and_their_parent_change_the_solver(service):
    """Each thread of the executor has its own copy and connection."""
    service.plan[2] = go_offline(service, "first")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        qpu = backend(["first", "second"], executor=pool)
        with pytest.warns(UserWarning, match="first is not available"):
            for _ in range(4):
                assert_exact(qpu.solve(qubo()), qubo())
    assert service.calls == ["first"] * 3 + ["second"] * 2
    assert qpu.open().sampler.solver.name == "second"


@pytest.mark.parametrize("change", ["graph", "offline"])
def test_a_worker_is_behind_its_parent(service, change):
    """The parent has packed for a chip that the second worker has not seen."""
    pools = [concurrent.futures.ThreadPoolExecutor(1) for _ in range(2)]
    qpu = backend(["first", "second"])
    for qpu.executor in pools:
        qpu.solve(qubo())
    if change == "graph":
        service.lose_qubit("first", used_qubit(qpu))
    else:
        service.offline.add("first")
    before = len(service.calls)
    with pytest.warns(UserWarning, match="first"):
        for qpu.executor in pools:
            assert_exact(qpu.solve(qubo()), qubo())
    # Only the first worker had to find out with a call.
    assert len(service.calls) == before + 3
    for pool in pools:
        pool.shutdown()
