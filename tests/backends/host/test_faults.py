"""Fault injection with a QPU that fails in every known way.

After all steps, the weights must match the policy `on_failure`, and the report
must count all failures.
"""

import concurrent.futures
import threading

import dimod
import numpy as np
import offline
import pytest
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.backends import calls
from keras_qpsbgd.backends.dwave.mock import MockQPU

pytestmark = pytest.mark.once

STEPS = 32
FAILING_FROM = 3  # in the tests with one fault
SEED = 3  # no step is nearly a tie, as the tests check


# Faults that fail in different places. One training with all faults covers
# the others.
DIFFERENT = ("403", "429", "broken chains")


def raises(error):
    def sample(answer, chains):
        raise error

    return sample


def raises_late(error):
    """Like a remote call: `sample` returns, but resolving the answer raises."""

    def sample(answer, chains):
        future = concurrent.futures.Future()
        future.set_exception(error)
        return dimod.SampleSet.from_future(future)

    return sample


def never_answers(answer, chains):
    threading.Event().wait()


def nan_energies(answer, chains):
    answer.record.energy[:] = np.nan
    return answer


def wrong_labels(answer, chains):
    return answer.relabel_variables({q: f"q{q}" for q in answer.variables})


def broken_chains(answer, chains):
    """The qubits of each chain disagree."""
    position = {qubit: i for i, qubit in enumerate(answer.variables)}
    for first, *others in chains:
        answer.record.sample[:, position[first]] = 1
        for qubit in others:
            answer.record.sample[:, position[qubit]] = -1
    return answer


def half_the_columns(answer, chains):
    kept = sorted(answer.variables)[: len(answer.variables) // 2]
    samples = answer.record.sample[:, : len(kept)]
    energies = answer.record.energy
    return dimod.SampleSet.from_samples((samples, kept), "SPIN", energies)


TRANSIENT = kq.backends.TransientError
UNAVAILABLE = kq.backends.BackendUnavailable
FAILED = kq.backends.SolverError


def faults():
    """Maps names to a fault and the exception that it becomes."""
    from dwave.cloud import exceptions
    from dwave.cloud.api import exceptions as api
    from dwave.cloud.config.exceptions import ConfigFileReadError
    from minorminer.utils.exceptions import MissingChainError

    structure = dimod.exceptions.BinaryQuadraticModelStructureError
    return {
        "value": (raises(ValueError("API token not defined")), FAILED),
        "config file": (raises(ConfigFileReadError("unreadable")), UNAVAILABLE),
        "no network": (raises(api.RequestTimeout("no network")), TRANSIENT),
        "401": (
            raises(exceptions.SolverAuthenticationError("401")),
            UNAVAILABLE,
        ),
        "403": (raises(api.ResourceAccessForbiddenError("403")), UNAVAILABLE),
        "404": (raises(api.ResourceNotFoundError("404")), UNAVAILABLE),
        "429": (raises(api.ResourceLimitsExceededError("429")), TRANSIENT),
        "500": (raises(api.InternalServerError("500")), TRANSIENT),
        "403 sent": (
            raises(exceptions.SolverError(error_code=403)),
            UNAVAILABLE,
        ),
        "429 sent": (raises(exceptions.SolverError(error_code=429)), TRANSIENT),
        "503 sent": (raises(exceptions.SolverError(error_code=503)), TRANSIENT),
        "400 sent": (raises(exceptions.SolverError(error_code=400)), FAILED),
        "not JSON": (
            raises(exceptions.InvalidAPIResponseError("<")),
            TRANSIENT,
        ),
        "no solver": (
            raises(exceptions.SolverNotFoundError("none")),
            UNAVAILABLE,
        ),
        "offline": (raises(exceptions.SolverOfflineError("off")), TRANSIENT),
        "structure": (raises(structure("not embedded")), FAILED),
        "no chain": (raises(MissingChainError(7)), FAILED),
        "failure": (raises_late(exceptions.SolverFailureError("long")), FAILED),
        "polling": (raises_late(exceptions.PollingTimeout("slow")), TRANSIENT),
        "canceled": (raises_late(exceptions.CanceledFutureError()), FAILED),
        "upload": (raises(exceptions.ProblemUploadError("lost")), TRANSIENT),
        "closed": (raises(exceptions.UseAfterCloseError("closed")), FAILED),
        "connection": (raises(ConnectionError("reset")), TRANSIENT),
        "never answers": (never_answers, TRANSIENT),
        "nan energies": (nan_energies, FAILED),
        "wrong labels": (wrong_labels, FAILED),
        "broken chains": (broken_chains, FAILED),
        "half the columns": (half_the_columns, FAILED),
    }


class Faulty(MockQPU):
    """A mock QPU whose call number i has the fault `plan[i]`."""

    def __init__(self, plan):
        super().__init__("pegasus", shape=[2])
        self.plan = plan
        self.chains = ()
        self.calls = 0

    def sample(self, bqm, **parameters):
        fault = self.plan.get(self.calls)
        self.calls += 1
        answer = super().sample(bqm, **parameters)
        return answer if fault is None else fault(answer, self.chains)


def data(steps):
    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(300, 5)).astype("float32")
    y = rng.normal(size=(300, 2)).astype("float32")
    return x[: 6 * steps], y[: 6 * steps]


def train(backend, on_failure, steps=STEPS):
    keras.utils.set_random_seed(SEED)
    model = keras.Sequential(
        [
            keras.layers.InputLayer((5,)),
            kq.layers.BinaryDense(2, use_bias=False, name="layer"),
        ]
    )
    opt = kq.QPSBGD(0.05, backend=backend, on_failure=on_failure, seed=1)
    model.compile(opt, "mse", run_eagerly=steps < STEPS)
    error = None
    try:
        model.fit(*data(steps), batch_size=6, shuffle=False, verbose=0)
    except Exception as raised:
        error = raised
    return model.get_weights()[0], opt, error


def faulty(plan, timeout_seconds=60.0):
    sampler = Faulty(plan)
    backend = offline.qpu(sampler, retries=2, timeout_seconds=timeout_seconds)
    copies = backend.open().cliques.copies(5, 2)
    backend.sampler.chains = [c for copy in copies for c in copy.values()]
    return backend


class Oracle(tools.GapBackend):
    """Solves exactly, but raises in the steps `failing`."""

    def __init__(self, failing):
        super().__init__()
        self.failing = failing
        self.steps = 0

    def sample(self, qubo, seed):
        self.steps += 1
        if self.steps - 1 in self.failing:
            raise kq.backends.SolverError("planned failure")
        return super().sample(qubo, seed)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(calls, "FIRST_WAIT", 0.0)


@pytest.mark.filterwarnings("ignore:A solve failed")
@pytest.mark.parametrize(
    "policy", [pytest.param("hold", marks=pytest.mark.exhaustive), "exact"]
)
def test_one_training_with_all_faults(policy):
    """Each step from the third has one fault; transient faults are retried."""
    plan, failing, call = {}, set(), 0
    kinds = faults()
    if policy == "exact":
        del kinds["never answers"]  # waits for the timeout
    kinds = list(kinds.values())
    for step in range(STEPS):
        if 2 <= step < 2 + len(kinds):
            fault, kind = kinds[step - 2]
            plan[call] = fault
            if kind is TRANSIENT:
                call += 1
            else:
                failing.add(step)
        call += 1
    assert len(plan) == len(kinds)
    retries = len(kinds) - len(failing)
    sampler_calls = STEPS + retries

    # One call never answers. A busy machine may need seconds for the others.
    backend = faulty(plan, timeout_seconds=6.0)
    kernel, opt, error = train(backend, policy)
    assert error is None
    oracle = Oracle(failing if policy == "hold" else ())
    expected, _, _ = train(oracle, "hold")
    assert oracle.least > 1e-3  # no step was nearly a tie
    np.testing.assert_array_equal(kernel, expected)

    row = opt.solver_report().layers["layer"]
    assert opt.backend.sampler.calls == sampler_calls
    assert row.solves == STEPS
    assert row.calls == sampler_calls
    assert row.retries == retries
    assert row.failures == len(failing)
    assert row.fallbacks == (len(failing) if policy == "exact" else 0)
    assert row.qpu_seconds > 0
    assert isinstance(opt.last_error, kq.backends.SolverError)


@pytest.fixture(scope="module")
def kernel_before():
    oracle = Oracle(())
    kernel, _, _ = train(oracle, "raise", FAILING_FROM)
    assert oracle.least > 1e-3
    return kernel


@pytest.mark.parametrize("name", DIFFERENT)
def test_faults_with_raise(name, kernel_before):
    """All calls from one step on fail; the weights are those before it."""
    fault, kind = faults()[name]
    plan = dict.fromkeys(range(FAILING_FROM, 1000), fault)
    kernel, opt, error = train(faulty(plan), "raise", FAILING_FROM + 2)
    assert "SolverError" in str(error)
    assert type(opt.last_error) is kind
    row = opt.solver_report().layers["layer"]
    assert (row.solves, row.failures) == (FAILING_FROM + 1, 1)
    assert row.retries == (2 if kind is TRANSIENT else 0)
    calls_made = FAILING_FROM + 1 + row.retries
    assert row.calls == opt.backend.sampler.calls == calls_made
    assert opt.iterations == FAILING_FROM
    np.testing.assert_array_equal(kernel, kernel_before)


def test_calls_time_out():
    backend = offline.qpu(
        Faulty(dict.fromkeys(range(9), never_answers)),
        retries=1,
        timeout_seconds=0.3,
    )
    problem = kq.Qubo.from_rows(*tools.rows_and_gradients(n=3))
    with pytest.raises(
        kq.backends.TransientError, match="0.3 s .`timeout_seconds`"
    ) as raised:
        backend.solve(problem)
    assert raised.value.info == {"calls": 2, "retries": 1}
    # Calls that may have run are charged with their estimate.
    estimate = 2 * backend.estimate(3, 3)
    assert backend.budget.charged == pytest.approx(estimate)


@pytest.mark.parametrize("name", ["429", "429 sent", "403", "403 sent"])
def test_rejected_calls_are_not_charged(name):
    sampler = Faulty(dict.fromkeys(range(9), faults()[name][0]))
    backend = offline.qpu(sampler, retries=1)
    with pytest.raises(faults()[name][1]):
        backend.solve(kq.Qubo.from_rows(*tools.rows_and_gradients(n=3)))
    assert backend.budget.charged == 0


def test_invalid_answers_are_charged():
    sampler = Faulty({0: nan_energies})
    backend = offline.qpu(sampler)
    with pytest.raises(kq.backends.SolverError, match="energies") as raised:
        backend.solve(kq.Qubo.from_rows(*tools.rows_and_gradients(n=3)))
    cost = 1e-6 * raised.value.info["qpu_access_time"]
    assert cost > 0
    assert backend.budget.charged == pytest.approx(cost)


def test_waits_between_retries_double(monkeypatch):
    waits = []
    monkeypatch.setattr(calls, "FIRST_WAIT", 1.0)
    monkeypatch.setattr(calls.time, "sleep", waits.append)
    sampler = Faulty(dict.fromkeys(range(9), faults()["500"][0]))
    with pytest.raises(kq.backends.TransientError):
        offline.qpu(sampler, retries=3).solve(
            kq.Qubo.from_rows(*tools.rows_and_gradients(n=3))
        )
    assert waits == [1.0, 2.0, 4.0]
