"""Tests that all backends share, and the registry of backends."""

import concurrent.futures
import json
import subprocess
import sys
import unittest

import dimod
import dimod.testing
import numpy as np
import offline
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.backends import registry
from keras_qpsbgd.qubo import ops

pytestmark = pytest.mark.once

NATIVE = [{"name": "native", "preset": preset} for preset in ("fast", "once")]
GRAPH = [*NATIVE, "exact", "ridge", "sign"]
HOST = ["simulated_annealing", "tabu", "gurobi", "dwave", "leap_hybrid"]
ALL = [*GRAPH, *HOST]
# One of each kind.
SOME = ["native", "ridge", "simulated_annealing", "gurobi", "dwave"]
# Backends that find the optimum for certain, and those that also find it
# reliably in small problems.
EXACT = [*NATIVE, "exact", "gurobi"]
SURE = [*EXACT, "simulated_annealing", "dwave", "leap_hybrid"]


def get(backend):
    """Like `backends.get`, but `dwave` and `leap_hybrid` run offline."""
    if backend == "dwave":
        return kq.backends.get(offline.small_qpu())
    if backend == "leap_hybrid":
        return kq.backends.get(offline.hybrid())
    if backend == "tabu":  # ten restarts take 0.1 s per column
        return kq.backends.get({"name": "tabu", "num_restarts": 0})
    return kq.backends.get(backend)


def qubo(n, m=3, batch=12, kind="normal", seed=0, scale=1.0):
    rows, v = tools.rows_and_gradients(seed, batch, n, m, kind)
    return kq.Qubo.from_rows(rows, scale * v)


def lowest_energies(problem):
    return np.array(
        [
            dimod.ExactSolver().sample(problem.to_bqm(column)).first.energy
            for column in range(problem.num_columns)
        ]
    )


# Tests that every backend must pass


@pytest.mark.parametrize("n", [2, 7, 16])
@pytest.mark.parametrize("backend", EXACT, ids=str)
def test_small_layers_are_solved_exactly(n, backend):
    if n == 16 and backend in NATIVE:
        pytest.skip("same enumeration as `exact`; see `bench solver`")
    kinds = ["normal"] if n == 16 else ["normal", "pm1", "sparse"]
    for kind in kinds:
        problem = qubo(n, kind=kind, scale=0.3)
        solution = get(backend).solve(problem)
        bound = 1e-5 * problem.random_energy()
        assert (solution.energies <= lowest_energies(problem) + bound).all()


def problems():
    """Yields problems of all kinds, the ordinary ones first."""
    yield qubo(8, kind="sparse")
    yield qubo(12, m=2, batch=30)
    yield qubo(1, 3)  # one variable
    yield qubo(6, 1)  # one column
    yield qubo(3, m=60)  # many columns
    rows, v = tools.rows_and_gradients(batch=5, n=4)
    single = np.zeros_like(v)
    single[2] = v[2]
    yield kq.Qubo.from_rows(rows, np.zeros_like(v))  # all zeros
    yield kq.Qubo(np.cov(rows.T), np.zeros((4, 3)))  # no fields
    yield kq.Qubo(np.zeros((4, 4)), v[:4])  # no couplings
    yield kq.Qubo.from_rows(rows, single)  # one row


@pytest.mark.parametrize("backend", ALL, ids=str)
def test_solutions(backend):
    solver = get(backend)
    for number, problem in enumerate(problems()):
        solution = solver.solve(problem, seed=3)
        assert solution.states.dtype == np.int8
        assert solution.states.shape == problem.fields.shape
        assert set(np.unique(solution.states)) <= {-1, 1}
        np.testing.assert_allclose(
            solution.energies, problem.energy(solution.states), atol=1e-12
        )
        assert ((problem.fields * solution.states).sum(axis=0) <= 1e-9).all()
        if backend in SURE:
            bound = 1e-5 * problem.random_energy()
            assert (solution.energies <= lowest_energies(problem) + bound).all()
        if number < 2:
            if backend != "sign":
                assert (solution.energies < problem.random_energy()).all()
            again = get(backend).solve(problem, seed=3)  # mocks are seeded too
            np.testing.assert_array_equal(solution.states, again.states)


@pytest.mark.parametrize("backend", SOME, ids=str)
def test_arrays_with_any_memory_layout(backend):
    problem = qubo(6, m=4)
    strided = kq.Qubo(
        np.repeat(problem.couplings, 2, axis=1)[:, ::2],
        np.asfortranarray(problem.fields)[::-1][::-1],
        np.broadcast_to(problem.offset[:, None], (4, 2))[:, 0],
    )
    assert not strided.couplings.flags.c_contiguous
    np.testing.assert_allclose(
        get(backend).solve(strided).energies,
        get(backend).solve(problem).energies,
    )


@pytest.mark.parametrize("backend", SOME, ids=str)
def test_several_threads(backend):
    backend = get(backend)
    problems = [qubo(5, m=3, seed=seed) for seed in range(6)]
    expected = [backend.solve(problem, 7).energies for problem in problems]
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        found = threads.map(lambda p: backend.solve(p, 7).energies, problems)
    np.testing.assert_allclose(list(found), expected)


@pytest.mark.parametrize("backend", HOST)
def test_configuration_of_host_backends(backend):
    config = {
        "name": backend,
        "executor_tasks": 4,
        "block_size": 32,
        "block_sweeps": 2,
        "retries": 1,
        "timeout_seconds": 5.0,
    }
    created = kq.backends.get(config)
    saved = kq.backends.serialize(created)
    assert config.items() <= saved.items()
    json.dumps(saved)
    assert kq.backends.serialize(kq.backends.get(saved)) == saved
    for name in config.keys() - {"name"}:
        with pytest.raises(ValueError, match=f"`{name}`.*Received: {name}=-1"):
            kq.backends.get({**config, name: -1})


@pytest.mark.parametrize(
    "backend",
    [NATIVE[0], pytest.param(NATIVE[1], marks=pytest.mark.exhaustive)],
    ids=str,
)
def test_search_is_nearly_exact_at_20(backend):
    problem = qubo(20, m=5, batch=30)
    best = kq.backends.get("exact").solve(problem).energies
    found = kq.backends.get(backend).solve(problem).energies
    gap = (found - best) / (problem.random_energy() - best)
    assert gap.min() >= -1e-6
    assert gap.mean() < {"fast": 0.1, "once": 1e-3}[backend["preset"]]


@pytest.mark.parametrize(
    "backend",
    [
        NATIVE[0],
        *(pytest.param(b, marks=pytest.mark.slow) for b in ("ridge", "sign")),
    ],
    ids=str,
)
def test_compiled_search_equals_plain_search(backend):
    backend = kq.backends.get(backend)
    problem = backend._as_problem(qubo(20, batch=30))
    seed = tf.constant([1, 2])
    compiled = backend.solve_in_graph(problem, seed).numpy()
    given = problem._replace(start=backend.start(problem))
    plain = tf.function(backend.search)(given, seed)
    plain = ops.never_ascend(plain, problem.fields)
    np.testing.assert_array_equal(compiled, plain)


def test_ridge_formula():
    problem = qubo(9)
    n = 9
    q = problem.couplings + 0.1 * np.trace(problem.couplings) / n * np.eye(n)
    expected = np.sign(-np.linalg.solve(q, problem.fields) / 2)
    solution = kq.backends.get("ridge").solve(problem)
    np.testing.assert_array_equal(solution.states, expected)
    zero = kq.Qubo(np.zeros((3, 3)), np.zeros((3, 1)))
    np.testing.assert_array_equal(
        kq.backends.get("ridge").solve(zero).states, np.ones((3, 1))
    )
    with pytest.raises(ValueError, match="`rho`.*Received: rho=0"):
        kq.backends.get({"name": "ridge", "rho": 0})


def test_sign_formula():
    problem = qubo(9)
    solution = kq.backends.get("sign").solve(problem)
    np.testing.assert_array_equal(solution.states, np.sign(-problem.fields))


def test_reads_are_kept():
    backend = kq.backends.get({"name": "simulated_annealing", "num_reads": 4})
    problem = qubo(12)
    solution = backend.solve(problem)
    assert solution.samples.shape == (4, 12, 3)
    assert solution.sample_energies.shape == (4, 3)
    np.testing.assert_allclose(
        solution.energies, solution.sample_energies.min(axis=0)
    )


def test_any_dimod_sampler():
    problem = qubo(8)
    backend = kq.backends.get(dimod.ExactSolver())
    np.testing.assert_allclose(
        backend.solve(problem).energies, lowest_energies(problem)
    )
    with pytest.raises(ValueError, match="cannot be saved.*register"):
        backend.get_config()


def test_registry_lists_all_backends():
    rows = {row.name: row for row in kq.backends.available()}
    expected = {
        "native",
        "exact",
        "ridge",
        "sign",
        "simulated_annealing",
        "tabu",
        "gurobi",
    }
    remote = {"dwave", "leap_hybrid"}
    assert expected | remote <= set(rows)
    for name in expected:
        assert rows[name].available and not rows[name].missing
        assert rows[name].summary
    for name in remote:
        assert rows[name].available or "dwave setup" in rows[name].missing


def test_missing_package(monkeypatch):
    monkeypatch.setattr(registry, "_is_installed", lambda name: False)
    rows = {row.name: row for row in kq.backends.available()}
    assert rows["native"].available
    assert not rows["tabu"].available
    assert "dwave.samplers" in rows["tabu"].missing
    assert "pip install" in rows["tabu"].missing
    with pytest.raises(kq.backends.BackendUnavailable, match="pip install"):
        kq.QPSBGD(backend="tabu")


def test_entry_point_of_an_installed_package(monkeypatch, tmp_path):
    with pytest.raises(TypeError, match="`backend_class`.*Received"):
        kq.backends.register("other", int)
    info = tmp_path / "plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[keras_qpsbgd.backends]\nplugin = my_plugin:Plugin\n"
    )
    (tmp_path / "my_plugin.py").write_text(
        "import keras_qpsbgd as kq\n"
        "class Plugin(kq.backends.get('sign').__class__):\n"
        "    'A plug-in.'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = {row.name: row for row in kq.backends.available()}
    assert rows["plugin"].available and rows["plugin"].summary == "A plug-in."
    assert kq.backends.get("plugin").name == "plugin"


@pytest.mark.parametrize(
    "identifier, message",
    [
        ("nativ", "`backend` must be one of.*Received: backend='nativ'"),
        (3, "`backend` must be a name.*Received: backend=3"),
        (
            {"name": "native", "preset": "best"},
            "`preset`.*Received: preset='best'",
        ),
        (
            {"name": "dwave", "topology": "ring"},
            "`topology`.*Received: topology='ring'",
        ),
        (
            {"name": "dwave", "topology": "zephyr", "solver": "x"},
            "`solver` cannot be combined.*Received: solver='x'",
        ),
        (
            {"name": "dwave", "mock": True, "solver": "x"},
            "`solver` cannot be combined.*Received: solver='x'",
        ),
        ({"name": "dwave", "solver": 7}, "`solver`.*Received: solver=7"),
        ({"name": "dwave", "gauge": "no"}, "`gauge`.*Received: gauge='no'"),
        ({"name": "dwave", "problem_label": 3}, "Received: problem_label=3"),
        (
            {"name": "dwave", "num_reads": 2.5},
            "`num_reads` must be an integer.*Received: num_reads=2.5",
        ),
        (
            {"name": "dwave", "chain_strength": -1},
            "`chain_strength`.*Received: chain_strength=-1",
        ),
        (
            {"name": "dwave", "parameters": {"num_reads": 1}},
            "`parameters`.*separate arguments.*Received",
        ),
        (
            {"name": "dwave", "num_read": 10},
            "not accept `num_read`. Did you mean `num_reads`.*Received",
        ),
        (
            {"name": "dwave", "block_sizes": 10},
            "Did you mean `block_size`.*Received",
        ),
        (
            {"name": "gurobi", "work_limit": 0},
            "`work_limit`.*Received: work_limit=0",
        ),
        (
            {"name": "native", "speed": 1},
            "does not accept.*Received: {'speed': 1}",
        ),
    ],
)
def test_invalid_identifiers(identifier, message):
    with pytest.raises(ValueError, match=message):
        kq.QPSBGD(backend=identifier)


class Together(kq.backends.Backend):
    """Solves all layers in one call."""

    def solve_layers(self, qubos, seeds, stop_at_failure):
        return [
            self.best_solution(
                qubo, np.ones((1, qubo.num_variables, qubo.num_columns)), {}
            )
            for qubo in qubos
        ]


def test_a_call_of_all_layers_counts_once():
    model = keras.Sequential(
        [
            keras.layers.InputLayer((4,)),
            kq.layers.BinaryDense(3),
            kq.layers.BinaryDense(2),
        ]
    )
    optimizer = kq.QPSBGD(backend=Together())
    model.compile(optimizer, "mse", run_eagerly=True)
    model.fit(np.ones((6, 4)), np.ones((6, 2)), batch_size=3, verbose=0)
    report = optimizer.solver_report()
    assert [row.calls for row in report.layers.values()] == [2, 2]
    assert report.total.calls == 2


class Careful(kq.backends.Backend):
    name = "careful"
    block_size = 4
    retries = 0

    def __init__(self, level=1):
        super().__init__()
        self.level = level

    def get_config(self):
        return {**super().get_config(), "level": self.level}


def test_class_options_are_kept(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    kq.backends.register("careful", Careful)
    backend = kq.backends.get("careful")
    assert (backend.block_size, backend.retries) == (4, 0)
    saved = kq.backends.serialize(backend)
    assert saved == {"name": "careful", "level": 1}
    assert kq.backends.get(saved).block_size == 4


def test_numpy_numbers_are_accepted():
    config = {"name": "dwave", "num_reads": np.int64(5)}
    assert kq.backends.get(config).num_reads == 5
    with pytest.raises(ValueError, match="`timeout_seconds`.*Received"):
        kq.backends.get({"name": "tabu", "timeout_seconds": np.inf})
    with pytest.raises(ValueError, match="It accepts (?!.*options).*num_reads"):
        kq.backends.get({"name": "tabu", "speed": 1})


@pytest.mark.parametrize("value", [-1, 2.5, True])
@pytest.mark.parametrize(
    "name, argument",
    [
        ("simulated_annealing", "num_reads"),
        ("simulated_annealing", "num_sweeps"),
        ("tabu", "num_reads"),
        ("tabu", "num_restarts"),
    ],
)
def test_numbers_of_local_samplers(name, argument, value):
    message = f"`{argument}` must be an integer.*Received: {argument}={value}"
    with pytest.raises(ValueError, match=message):
        kq.backends.get({"name": name, argument: value})
    if argument == "num_reads":
        with pytest.raises(ValueError, match="at least 1. Received"):
            kq.backends.get({"name": name, argument: 0})


@dimod.testing.load_sampler_bqm_tests(kq.backends.as_sampler("native"))
class TestNativeSampler(unittest.TestCase):
    """Runs dimod's tests for samplers."""


@pytest.mark.slow  # imports TensorFlow in another process
def test_import_does_not_need_solvers():
    code = (
        "import sys, tensorflow\n"
        "before = set(sys.modules)  # TensorFlow imports some packages\n"
        "import keras_qpsbgd\n"
        "heavy = ('dwave', 'gurobipy', 'spektral', 'sklearn', 'matplotlib',\n"
        "         'distributed', 'keras_qpsbgd.cli')\n"
        "loaded = set(sys.modules) - before\n"
        "print([name for name in heavy if name in loaded])\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "backend, n",
    [
        ("exact", 10),
        ("ridge", 10),
        ("sign", 10),
        (NATIVE[0], 10),
        (NATIVE[0], 18),
        pytest.param(NATIVE[1], 18, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_graph_backends_do_not_modify_their_problem(backend, n):
    random = np.random.default_rng(0)
    rows = random.normal(size=(30, n))
    qubo = kq.Qubo(rows.T @ rows, random.normal(size=(n, 3)))
    for array in (qubo.couplings, qubo.fields, qubo.offset):
        array.flags.writeable = False
    backend = kq.backends.get(backend)
    solution = backend.solve(qubo)
    np.testing.assert_allclose(solution.energies, qubo.energy(solution.states))
