"""Any `dimod.Sampler` gets a timeout and retries."""

import concurrent.futures
import re
import sys
import threading
import urllib.error

import dimod
import numpy as np
import pytest
import tools

import keras_qpsbgd as kq
from keras_qpsbgd.backends import calls
from keras_qpsbgd.backends.host.samplers import SamplerBackend

pytestmark = pytest.mark.once

TRANSIENT = kq.backends.TransientError


class Remote(dimod.Sampler):
    """Answers like a remote service, after the faults of a plan.

    Args:
        plan: Dictionary from the number of a call to a function that replaces
            the answer.
        late: Boolean. Whether to return futures.
    """

    properties = {}
    parameters = {}

    def __init__(self, plan=(), late=False):
        self.plan = dict(plan)
        self.late = late
        self.models = []

    def sample(self, bqm):
        fault = self.plan.get(len(self.models))
        self.models.append(bqm)
        if not self.late:
            return fault() if fault else dimod.ExactSolver().sample(bqm)

        def resolve(future):
            return fault() if fault else future.result()

        future = concurrent.futures.Future()
        future.set_result(dimod.ExactSolver().sample(bqm))
        return dimod.SampleSet.from_future(future, resolve)


def raises(error):
    def fault():
        raise error

    return fault


def hangs():
    threading.Event().wait()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(calls, "FIRST_WAIT", 0.0)


def qubo(n=5, m=4):
    return kq.Qubo.from_rows(*tools.rows_and_gradients(0, 12, n, m))


def assert_exact(solution):
    best = kq.backends.get("exact").solve(qubo()).energies
    np.testing.assert_allclose(solution.energies, best, rtol=1e-5)


@pytest.mark.parametrize("late", [False, True])
def test_hanging_samplers_time_out(late):
    sampler = Remote({0: hangs, 1: hangs}, late)
    backend = SamplerBackend(sampler, timeout_seconds=0.2, retries=1)
    with pytest.raises(TRANSIENT, match="0.2 s .`timeout_seconds`") as raised:
        backend.solve(qubo())
    assert raised.value.info == {"calls": 2, "retries": 1}
    assert len(sampler.models) == 2


def test_arguments_of_the_backend_and_of_the_sampler():
    backend = kq.backends.SamplerBackend(
        Remote(), timeout_seconds=2, retries=1, num_reads=7
    )
    assert (backend.timeout_seconds, backend.retries) == (2, 1)
    assert backend.parameters == {"num_reads": 7}


def test_budgets_are_refused():
    with pytest.raises(ValueError, match='"dwave".*_budget_seconds=2.0$'):
        kq.backends.SamplerBackend(Remote(), qpu_budget_seconds=2.0)


def test_configuration_with_a_sampler_instead_of_a_name():
    with pytest.raises(ValueError, match="SamplerBackend.*timeout_seconds"):
        kq.backends.get({"name": Remote(), "timeout_seconds": 2})


@pytest.mark.parametrize("late", [False, True])
def test_only_the_column_that_failed_is_repeated(late):
    lost = raises(ConnectionError("reset"))
    sampler = Remote({2: lost, 3: lost}, late)
    solution = kq.backends.get(sampler).solve(qubo())
    assert_exact(solution)
    assert len(sampler.models) == 6
    assert solution.info["calls"] == 6 and solution.info["retries"] == 2
    third = [dict(model.linear) for model in sampler.models[2:5]]
    assert third[0] == third[1] == third[2]


def http(code):
    return urllib.error.HTTPError("https://host", code, "text", {}, None)


def requests_timeout():
    import requests

    return requests.Timeout("slow")


@pytest.mark.parametrize(
    "error, retried",
    [
        (TimeoutError("slow"), True),
        (urllib.error.URLError("no route"), True),
        (http(503), True),
        (http(429), True),
        (requests_timeout(), True),
        (http(404), False),
        (OSError("disk"), False),
    ],
    ids=repr,
)
@pytest.mark.parametrize("with_ocean", [True, False])
def test_temporary_failures_are_retried(
    error, retried, with_ocean, monkeypatch
):
    if with_ocean:
        import dwave.cloud  # noqa: F401
    else:
        monkeypatch.delitem(sys.modules, "dwave.cloud", raising=False)
    sampler = Remote({0: raises(error)})
    backend = kq.backends.get(sampler)
    if retried:
        assert backend.solve(qubo()).info["retries"] == 1
        return
    with pytest.raises(Exception, match=re.escape(str(error))) as raised:
        backend.solve(qubo())
    assert not isinstance(raised.value, TRANSIENT)
    assert len(sampler.models) == 1


def test_answered_columns_are_counted_after_a_failure():
    def paid(bqm):
        found = dimod.ExactSolver().sample(bqm)
        found.info["timing"] = {"qpu_access_time": 10.0}
        return found

    class Paid(Remote):
        def sample(self, bqm):
            super().sample(bqm)
            return paid(bqm)

    sampler = Paid({2: raises(ValueError("wrong"))})
    with pytest.raises(Exception, match="wrong") as raised:
        kq.backends.get(sampler).solve(qubo())
    assert raised.value.info["qpu_access_time"] == 20.0
    assert raised.value.info["calls"] == 3


@pytest.mark.slow
def test_training_survives_failures():
    sampler = Remote({3: raises(ConnectionError("reset")), 7: hangs}, late=True)
    backend = SamplerBackend(sampler, timeout_seconds=2.0)
    seed = tools.CLEAR_CUT["averaged"]
    opt = tools.optimizer(backend=backend)
    found = tools.fit(tools.small_model(seed), opt, *tools.data(seed))
    tools.assert_equal(found, tools.clear_cut_fit(seed))
    total = opt.solver_report().total
    assert total.retries == 2 and total.failures == 0
