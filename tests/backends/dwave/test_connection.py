"""Lists of solvers, solvers that go offline, and graphs that change."""

import leap_service
import numpy as np
import offline
import pytest
import tools

import keras_qpsbgd as kq
from keras_qpsbgd.backends.dwave import mock
from keras_qpsbgd.backends.dwave.qpu import DWaveBackend

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


def test_misspelled_solver(service):
    with pytest.raises(
        kq.backends.BackendUnavailable, match="name=firts.*`dwave solvers`"
    ):
        kq.backends.get({"name": "dwave", "solver": "firts"}).open()


def test_no_solver_of_a_list_is_available(service):
    service.offline |= {"first", "second"}
    with pytest.raises(
        kq.backends.BackendUnavailable,
        match=r"None of the solvers.*Received: solver=\['first', 'second'\]",
    ):
        backend(["first", "second"]).check(4, 3)


def test_after_a_rejected_token_no_other_solver_is_tried(monkeypatch):
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


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"solver": []}, "`solver`.*Received: solver="),
        ({"solver": ["a", None]}, "`solver`.*Received: solver="),
        ({"solver": [3]}, "`solver`.*Received: solver="),
        ({"solver": {"a"}}, "`solver`.*Received: solver="),
        ({"solver": ["first", {"token": "abc"}]}, "secrets"),
        ({"solver": ["first"], "mock": True}, "cannot be combined"),
    ],
)
def test_invalid_solvers(arguments, message):
    with pytest.raises(ValueError, match=message):
        DWaveBackend(**arguments)


# In the middle


def test_solver_goes_offline_during_training(service):
    """`on_failure` decides, as for any failure, and nothing is charged."""
    service.plan[2] = lambda: service.offline.add("first")
    seed = tools.CLEAR_CUT["averaged"]
    qpu = backend(["first", "second"], retries=0)
    opt = tools.optimizer(backend=qpu, on_failure="exact")
    with pytest.warns(UserWarning, match="A solve failed.*offline"):
        found = tools.fit(tools.small_model(seed), opt, *tools.data(seed))
    tools.assert_equal(found, tools.clear_cut_fit(seed))
    assert service.calls == ["first"] * tools.STEPS
    total = opt.solver_report().total
    assert total.failures == total.fallbacks == 2 * (tools.STEPS - 2)
    assert qpu.budget.charged == pytest.approx(total.qpu_seconds)
    assert isinstance(opt.last_error, kq.backends.TransientError)
    # After `close`, the backend connects to the next solver.
    qpu.close()
    assert_exact(qpu.solve(qubo()), qubo())
    assert service.calls[-1] == "second"


def test_server_has_another_working_graph(service):
    """The call is charged with its estimate, because it may have run."""
    qpu = backend("first")
    qpu.solve(qubo())
    lost = used_qubit(qpu)
    service.lose_qubit("first", lost)
    with pytest.raises(kq.backends.SolverError, match="rejected"):
        qpu.solve(qubo())
    assert qpu.budget.charged == pytest.approx(2 * qpu.estimate(4, 3), rel=0.1)
    qpu.close()
    assert_exact(qpu.solve(qubo()), qubo())
    assert lost not in qpu.open().cliques.graph
    assert service.calls == ["first"] * 3


def test_sampler_has_another_working_graph():
    """The sampler notices before it sends anything, so nothing is charged."""
    sampler = mock.MockQPU(**PEGASUS)
    qpu = offline.qpu(sampler)
    qpu.solve(qubo())
    charged, lost = qpu.budget.charged, used_qubit(qpu)
    smaller = mock.MockQPU(**PEGASUS, dead_qubits=[lost])
    sampler.nodelist, sampler.edgelist = smaller.nodelist, smaller.edgelist
    sampler._adjacency = smaller.adjacency
    message = "working graph of the chip.*Call `close`"
    with pytest.raises(kq.backends.SolverError, match=message):
        qpu.solve(qubo())
    assert qpu.budget.charged == charged
    qpu.close()
    assert_exact(qpu.solve(qubo()), qubo())


def used_qubit(qpu):
    return qpu.open().cliques.copies(4, 3)[0][0][0]
