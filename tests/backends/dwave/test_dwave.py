"""The QPU backend, with a mock QPU in place of the chip."""

import re
import zipfile

import numpy as np
import offline
import pytest
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.backends.dwave import mock
from keras_qpsbgd.backends.dwave import ranges
from keras_qpsbgd.backends.dwave.qpu import DWaveBackend

pytestmark = pytest.mark.once


def qubo(n, m=3, batch=24, scale=1.0):
    rows, v = tools.rows_and_gradients(0, batch, n, m)
    return kq.Qubo.from_rows(rows, scale * v)


class Spy(mock.MockQPU):
    """Records its calls."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = []

    def sample(self, bqm, **parameters):
        self.calls.append((bqm, parameters))
        return super().sample(bqm, **parameters)


@pytest.fixture
def spy():
    return Spy("pegasus", shape=[4])


# Embeddings


def test_wide_layers_are_solved_in_blocks():
    spy = Spy("pegasus", shape=[2])
    backend = offline.qpu(spy, block_sweeps=2)
    largest = backend.open().cliques.largest()
    problem = qubo(largest + 5, m=2, batch=64)
    size = min(64, largest)
    assert backend.block_size_for(largest + 5) == size
    assert backend.block_size_for(largest) == largest
    solution = backend.solve(problem)
    best = kq.backends.get({"name": "native", "preset": "once"}).solve(problem)
    gap = (solution.energies - best.energies) / (
        problem.random_energy() - best.energies
    )
    assert gap.max() < 0.1
    assert solution.info["calls"] == len(spy.calls) >= 2


# Calls and answers


def test_parameters_are_passed_to_the_sampler(spy):
    backend = offline.qpu(
        spy,
        num_reads=7,
        annealing_time=50.0,
        chain_strength=3.5,
        parameters={"reduce_intersample_correlation": True},
        gauge=False,
    )
    backend.solve(qubo(8))
    ((bqm, parameters),) = spy.calls
    assert parameters == {
        "num_reads": 7,
        "annealing_time": 50.0,
        "reduce_intersample_correlation": True,
        "answer_mode": "raw",
        "label": "keras_qpsbgd",
        "auto_scale": False,  # columns are already scaled
    }
    # Each column is scaled as a whole, including its chains.
    problem = qubo(8)
    for column, copy in enumerate(backend.open().cliques.copies(8, 3)):
        chain = next(chain for chain in copy.values() if len(chain) == 2)
        variable = list(copy.values()).index(chain)
        field = problem.fields[variable, column] / 2  # spread over two qubits
        scale = bqm.linear[chain[0]] / field
        assert bqm.quadratic[chain] == pytest.approx(-3.5 * scale)


def test_chain_strength_may_be_a_function(spy):
    calls = []

    def strength(bqm, embedding):
        calls.append((bqm.num_variables, sorted(embedding)))
        return 2.0

    backend = offline.qpu(spy, chain_strength=strength)
    found = backend.solve(qubo(6))
    assert calls == 3 * [(6, list(range(6)))]
    constant = offline.qpu(spy, chain_strength=2.0).solve(qubo(6))
    np.testing.assert_array_equal(found.samples, constant.samples)


def test_solver_without_a_cost_model(spy):
    timing = {**spy.solver.properties["problem_timing_data"], "version": "2"}
    spy.solver.properties["problem_timing_data"] = timing
    spy._timing = lambda num_qubits, parameters: {
        "qpu_access_time": 1000.0,
        "qpu_sampling_time": 10.0,
    }
    backend = offline.qpu(spy)
    backend.check(4, 2)
    backend.solve(qubo(4, m=2))
    assert backend.budget.charged == pytest.approx(1e-3)
    with pytest.raises(kq.backends.BackendUnavailable, match="no cost model"):
        offline.qpu(spy, qpu_budget_seconds=1.0).check(4, 2)


def test_columns_without_couplings_use_the_ranges_of_the_chip(spy):
    """One-hot inputs have no couplings. The scale must not depend on units."""
    backend = offline.qpu(spy)
    fields = 1e-3 * qubo(8, m=2).fields
    solution = backend.solve(kq.Qubo(np.eye(8), fields))
    np.testing.assert_array_equal(solution.states, np.where(fields > 0, -1, 1))
    ((bqm, _),) = spy.calls
    scaled = np.array([abs(bqm.linear[q]) for q in bqm.variables])
    scaled /= ranges.excess(bqm, spy.properties)
    assert scaled.max() > 0.5


def test_training_equals_exact_training(spy):
    seed = tools.CLEAR_CUT["averaged"]
    opt = tools.optimizer(backend=offline.qpu(spy))
    found = tools.fit(tools.small_model(seed), opt, *tools.data(seed))
    tools.assert_equal(found, tools.clear_cut_fit(seed))
    report = opt.solver_report()
    assert len(report.layers) == 2
    for row in report.layers.values():
        assert row.solves == row.calls == tools.STEPS
        assert row.qpu_seconds > 0 and row.seconds > 0
        assert row.retries == row.failures == row.fallbacks == 0
        assert 0 <= row.mean_chain_breaks < 0.2
    assert report.total.calls == len(spy.calls)
    table = str(report).splitlines()
    assert all(len(line) <= 80 for line in table)
    assert table[-1].split()[:2] == ["total", str(len(spy.calls))]


def test_warns_once_below_the_precision_of_the_chip(spy, recwarn):
    backend = offline.qpu(spy)
    backend.solve(qubo(8, scale=0.3))
    assert not [w for w in recwarn if "precision" in str(w.message)]
    for _ in range(2):
        backend.solve(qubo(8, scale=0.002))
    (warning,) = [w for w in recwarn if "precision" in str(w.message)]
    assert "kappa" in str(warning.message)


# Budget


@pytest.mark.parametrize(
    "policy",
    [
        "exact",
        *(
            pytest.param(p, marks=pytest.mark.exhaustive)
            for p in ("raise", "hold")
        ),
    ],
)
def test_budget_and_on_failure(spy, policy):
    """The budget is enough for both layers in two of the four steps."""
    seed = tools.CLEAR_CUT["averaged"]
    free = offline.qpu(spy)
    step = free.step_cost([(5, 3), (3, 3)]).seconds
    backend = offline.qpu(spy, qpu_budget_seconds=2.1 * step)
    opt = tools.optimizer(backend=backend, on_failure=policy)
    model, (x, y) = tools.small_model(seed), tools.data(seed)
    if policy == "raise":
        message = "SolverError.*qpu_budget_seconds"
        with pytest.raises(Exception, match=message) as caught:
            tools.fit(model, opt, x, y)
        named = re.findall("failed on layer `(.*?)`", str(caught.value))
        assert len(set(named)) == 1  # both layers have the same error
        assert isinstance(opt.last_error, kq.backends.BudgetExceeded)
    else:
        with pytest.warns(UserWarning, match="budget is spent") as caught:
            tools.fit(model, opt, x, y)
        # One for both layers.
        (text,) = [str(w.message) for w in caught if "budget" in str(w.message)]
        assert f"Using on_failure='{policy}'" in text
        assert text.count("Received: qpu_budget_seconds=") == 1
    steps = tools.STEPS if policy == "exact" else 2
    expected = tools.fit(
        tools.small_model(seed),
        tools.optimizer(backend="exact"),
        x[: steps * tools.BATCH],
        y[: steps * tools.BATCH],
    )
    tools.assert_equal(tools.kernels(model), expected)
    assert len(spy.calls) == 2
    total = opt.solver_report().total
    assert total.calls == 2
    # A failed call is a failure of both layers. With "raise", `fit` ends.
    failures = 2 if policy == "raise" else 4
    assert total.failures == failures
    assert total.fallbacks == (4 if policy == "exact" else 0)


# Connection and secrets


def test_solver_and_timeouts_are_passed_to_ocean(monkeypatch):
    import dwave.system

    received = {}

    def connect(**config):
        received.update(config)
        return offline.small_chip()

    monkeypatch.setattr(dwave.system, "DWaveSampler", connect)
    DWaveBackend(solver="Advantage_x", timeout_seconds=7).open()
    assert received == {
        "solver": "Advantage_x",
        "request_timeout": 7,
        "polling_timeout": 7,
    }
    DWaveBackend(topology="zephyr").open()
    assert received["solver"]["topology__type"] == "zephyr"


def test_close(spy, monkeypatch):
    import dwave.system

    closed = []
    monkeypatch.setattr(spy, "close", lambda: closed.append(1))
    monkeypatch.setattr(dwave.system, "DWaveSampler", lambda **config: spy)
    backend = DWaveBackend(num_reads=5)
    backend.solve(qubo(3))
    backend.close()
    assert closed == [1]
    backend.solve(qubo(3))  # opens again
    given = offline.qpu(spy)
    given.solve(qubo(3))
    given.close()
    assert closed == [1]  # a sampler of the user is not closed


@pytest.mark.parametrize("name", ["dwave", "leap_hybrid"])
def test_no_token(name, monkeypatch, tmp_path):
    monkeypatch.delenv("DWAVE_API_TOKEN", raising=False)
    empty = tmp_path / "dwave.conf"
    empty.write_text("[defaults]\n")
    monkeypatch.setenv("DWAVE_CONFIG_FILE", str(empty))
    row = {r.name: r for r in kq.backends.available()}[name]
    assert not row.available and "dwave setup --auth" in row.missing
    model, opt = tools.small_model(), kq.QPSBGD(backend=name)
    message = (
        "No D-Wave API token found. Run `dwave setup --auth` or set "
        "DWAVE_API_TOKEN."
    )
    if name == "dwave":
        message += ' To try it without access, pass "mock": True.'
    with pytest.raises(kq.backends.BackendUnavailable) as caught:
        tools.fit(model, opt, *tools.data())
    assert message in str(caught.value)
    # A model that was trained with the backend can still be loaded.
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.backend.name == name


def test_token_appears_nowhere(spy, monkeypatch, tmp_path, recwarn):
    token = "TEST-0123456789abcdef"
    monkeypatch.setenv("DWAVE_API_TOKEN", token)

    def sample(*args, **kwargs):
        raise ConnectionError(f"header X-Auth-Token: {token}")

    spy.sample = sample
    backend = offline.qpu(spy, retries=0)
    opt = tools.optimizer(backend=backend, on_failure="hold")
    model = tools.small_model()
    tools.fit(model, opt, *tools.data())
    path = tmp_path / "model.keras"
    model.save(path)
    shown = [
        repr(backend),
        repr(opt.get_config()),
        str(opt.last_error),
        str(opt.solver_report()),
        *(str(w.message) for w in recwarn),
    ]
    assert any("X-Auth-Token: ***" in text for text in shown)
    for text in shown:
        assert token not in text
    with zipfile.ZipFile(path) as saved:
        for name in saved.namelist():
            assert token.encode() not in saved.read(name)


def test_token_as_an_argument_raises():
    for config in (
        {"name": "dwave", "token": "abc-123"},
        {"name": "gurobi", "WLSSecret": "abc-123"},
        {"name": "dwave", "parameters": {"token": "abc-123"}},
        {"name": "dwave", "solver": {"a": {"token": "abc-123"}}},
    ):
        with pytest.raises(ValueError, match="Do not pass secrets") as raised:
            kq.QPSBGD(backend=config)
        assert "abc-123" not in str(raised.value)
    with pytest.raises(ValueError, match="Do not pass secrets"):
        DWaveBackend(parameters={"token": "abc-123"})


def test_saved_and_loaded(tmp_path):
    backend = {
        "name": "dwave",
        "mock": True,
        "topology": "zephyr",
        "num_reads": 10,
        "qpu_budget_seconds": 5.0,
        "chain_strength": 2.0,
        "gauge": False,
        "problem_label": None,
    }
    model = tools.small_model()
    model.compile(tools.optimizer(backend=backend), tools.loss())
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    saved = kq.backends.serialize(loaded.optimizer.backend)
    assert backend.items() <= saved.items()
    plain = kq.backends.serialize(kq.backends.get("dwave"))
    assert plain == {"name": "dwave", "num_reads": 100}
    with pytest.raises(ValueError, match="`chain_strength`.*Received"):
        DWaveBackend(chain_strength=lambda bqm, embedding: 1).get_config()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"num_reads": 20_000}, "`num_reads` must be between 1 and 10000"),
        ({"annealing_time": 3e3}, "`annealing_time`.*Received: .*3000"),
        ({"block_size": 500}, "`block_size`.*Received: block_size=500"),
        (
            {"parameters": {"anneal_schedul": 1}},
            "`parameters`.*anneal_schedule.*Received: .'anneal_schedul'",
        ),
        (
            {"parameters": {"fast_anneal": True}},
            "`fast_anneal`.*linear biases.*Received",
        ),
        (
            {"parameters": {"auto_scale": True}},
            "`auto_scale`.*each column.*Received: auto_scale=True",
        ),
        (
            {"num_reads": 9000, "annealing_time": 1999.0},
            "s, but this solver allows at most 10 s.*Received: num_reads=9000",
        ),
    ],
)
def test_what_the_solver_does_not_support(spy, arguments, message):
    with pytest.raises(kq.backends.BackendUnavailable, match=message):
        offline.qpu(spy, **arguments).check(600, 1)
    with pytest.raises(kq.backends.BackendUnavailable, match=message):
        offline.qpu(spy, **arguments).step_cost([(600, 1)])
    assert not spy.calls


def test_solve_checks_the_parameters(spy):
    backend = offline.qpu(spy, num_reads=20_000)
    qubo = kq.Qubo.from_rows(np.ones((3, 2)), np.ones((3, 1)))
    with pytest.raises(kq.backends.BackendUnavailable, match="`num_reads`"):
        backend.solve(qubo)
    assert not spy.calls


# The mock QPU


# Cost


# Leap hybrid


def test_hybrid_solver_receives_all_columns_in_one_call():
    backend = offline.hybrid()
    solution = backend.solve(qubo(6, 40))
    server = type(backend.sampler.solver)
    assert server.calls == solution.info["calls"] == 1
    assert solution.info["qpu_access_time"] == 32_000
    # Unless the solver accepts fewer variables.
    backend.sampler.properties["maximum_number_of_variables"] = 100
    assert backend.solve(qubo(6, 40)).info["calls"] == 3
    assert server.calls == 4
