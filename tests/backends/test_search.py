"""Compares the search with plain implementations, on all kinds of layers.

Energies are compared in units of E_rand, the mean energy of a random state.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.backends.graph import batches
from keras_qpsbgd.backends.graph import native
from keras_qpsbgd.backends.graph import products
from keras_qpsbgd.backends.graph import relaxed
from keras_qpsbgd.backends.graph import search
from keras_qpsbgd.qubo import ops

pytestmark = pytest.mark.once

SEED = tf.constant([3, 5])
# Kind and number of rows, and size of the gradients.
CELLS = [
    (kind, batch, sigma)
    for kind in ("pm1", "normal", "sparse")
    for batch, sigma in ((6, 0.1), (30, 1.0))
]
SHAPE = (34, 6)
# Tolerance for float32 sums, as a fraction of E_rand.
ROUNDING = 1e-5


def layer(cell, shape=SHAPE, seed=0):
    """Returns a problem with one inactive input and one zero column.

    Also returns the same problem as a `Qubo`.
    """
    kind, batch, sigma = cell
    rows, v = tools.rows_and_gradients(seed, batch, *shape, kind)
    whole = kq.Qubo.from_rows(rows, sigma * v)
    active = np.ones(shape[0], "float32")
    active[2] = 0.0
    moving = np.ones(shape[1], "float32")
    moving[1] = 0.0
    couplings = np.float32(whole.couplings * np.outer(active, active))
    fields = np.float32(whole.fields * np.outer(active, moving))
    informative = ops.has_information(
        fields, ops.has_gradient(fields), ops.squared_forces(couplings) > 0
    )
    problem = ops.Problem(
        tf.constant(couplings), tf.constant(fields), informative=informative
    )
    return problem, kq.Qubo(
        np.float64(couplings), np.float64(fields), whole.offset
    )


def energies(qubo, states):
    """Returns energies in units of E_rand, without the zero column."""
    return np.delete(qubo.energy(states) / qubo.random_energy(), 1)


def plain_sweep(qubo, start, order):
    """Runs a plain sweep: sets one variable at a time to its better value."""
    q, half_fields = qubo.couplings, qubo.fields / 2
    g = np.array(start, np.float64)
    for i in order:
        others = q[i] @ g - q[i, i] * g[i] + half_fields[i]
        g[i] = np.where(others <= 0, 1.0, -1.0)
    return g


def descend(qubo, start):
    """Runs plain best-improvement descent."""
    q, half_fields = qubo.couplings, qubo.fields / 2
    g = np.array(start, np.float64)
    columns = np.arange(g.shape[1])
    for _ in range(4 * len(g)):
        cost = np.diag(q)[:, None] - g * (q @ g + half_fields)
        best = cost.argmin(axis=0)
        better = cost[best, columns] < -1e-9
        if not better.any():
            break
        g[best[better], columns[better]] *= -1
    return g


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_ridge_solution(cell):
    problem, qubo = layer(cell)
    n = qubo.num_variables
    matrix = qubo.couplings + 0.1 * np.trace(qubo.couplings) / n * np.eye(n)
    exact = np.linalg.solve(matrix, -qubo.fields / 2)
    found = relaxed.ridge_solution(problem)
    np.testing.assert_allclose(found, exact, atol=1e-3 * abs(exact).max())


def stack_of(problem):
    return ops.Problem(*(part[None] for part in problem[:3]))


def random_start(shape=SHAPE):
    start = np.random.default_rng(0).choice([-1.0, 1.0], shape)
    return tf.constant(start, tf.float32)


def warm(problem):
    return search.warm_sweep(stack_of(problem))[0]


def cold(problem):
    lanes = search._Lanes(problem, 1)
    return lanes._joined(lanes.sweep(lanes.divide(problem.start)))[: SHAPE[0]]


@pytest.mark.parametrize("sweep", [warm, cold])
def test_sweep_over_chunks_equals_plain_sweep(sweep, monkeypatch):
    """With as many repetitions as variables, sweeps are exact."""
    for name in ("WARM_CHUNK", "CHUNK"):
        monkeypatch.setattr(search, name, 12)
    for name in ("REPETITIONS", "SEARCH_REPETITIONS"):
        monkeypatch.setattr(search, name, 11)
    swept = tf.function(sweep, reduce_retracing=True)
    for cell in CELLS:
        problem, qubo = layer(cell)
        problem = problem._replace(start=random_start())
        plain = plain_sweep(qubo, problem.start, range(SHAPE[0]))
        excess = energies(qubo, swept(problem)) - energies(qubo, plain)
        assert abs(excess).max() < ROUNDING, cell


def test_repetitions_update_coupled_variables_one_by_one():
    """Rectified inputs of few sources couple all variables of a chunk."""
    rng = np.random.default_rng(0)
    n, m = search.CHUNK, 100
    sources = rng.standard_normal((2000, 6)) @ rng.standard_normal((6, n))
    rows = np.maximum(sources + rng.standard_normal((2000, n)) / 2, 0)
    couplings = (rows.T @ rows / 2000).astype("float32")
    np.fill_diagonal(couplings, 0)
    old = rng.choice([-1.0, 1.0], size=(n, m)).astype("float32")
    noise = np.abs(couplings).sum(axis=1).mean() / 5
    fields = (noise * rng.standard_normal((n, m))).astype("float32")
    forces = couplings @ old + fields
    found = search._repeated(
        forces[None], old[None], couplings[None], search.SEARCH_REPETITIONS
    )[0]
    expected = old.copy()
    for i in range(n):
        expected[i] = np.where(couplings[i] @ expected + fields[i] > 0, -1, 1)
    assert np.mean(found != expected) < 0.005


def test_search_is_no_worse_than_plain_descent():
    backend = kq.backends.get("native")
    excess = []
    for cell, seed in itertools.product(CELLS, range(4)):
        problem, qubo = layer(cell, seed=seed)
        problem = problem._replace(informative=None)
        start = relaxed.ridge_solution(problem).numpy() >= 0
        plain = descend(qubo, np.where(start, 1.0, -1.0))
        found = backend.solve_in_graph(problem, SEED)
        excess += list(energies(qubo, found) - energies(qubo, plain))
    assert np.mean(excess) < 0


@pytest.mark.parametrize("penalty", [0.0, 1e8])
@pytest.mark.parametrize("preset", ["fast", "once"])
def test_solve_ends_in_a_local_optimum(preset, penalty):
    """Also with small couplings, which a search in float32 does not see."""
    _, qubo = layer(CELLS[1])
    couplings = qubo.couplings.copy()
    couplings[0, 1] += penalty
    couplings[1, 0] += penalty
    qubo = kq.Qubo(couplings, qubo.fields)
    found = kq.backends.get({"name": "native", "preset": preset}).solve(qubo)
    before = qubo.varying_energies([found.states])[0]
    for i in range(SHAPE[0]):
        flipped = found.states.copy()
        flipped[i] *= -1
        after = qubo.varying_energies([flipped])[0]
        assert (after >= before - 1e-14 * couplings.max() - 1e-12).all()


def test_search_ends_if_a_problem_is_not_finite():
    problem, _ = layer(CELLS[1])
    fields = tf.fill(SHAPE, np.nan)
    found = kq.backends.get("native").search(
        problem._replace(fields=fields), SEED
    )
    assert found.shape == SHAPE


def test_states_are_seeded_and_never_ascend():
    backend = kq.backends.get("native")
    for cell in CELLS:
        problem, qubo = layer(cell)
        states, again = (step(backend, problem, SEED).numpy() for _ in range(2))
        np.testing.assert_array_equal(states, again)
        assert not states[2].any() and not states[:, 1].any()
        others = np.delete(np.delete(states, 2, axis=0), 1, axis=1)
        reached = np.diag(qubo.couplings) > 0
        assert np.all(abs(others)[np.delete(reached, 2)] == 1)
        slack = 1e-6 * abs(qubo.fields).sum(axis=0)
        assert np.all((qubo.fields * states).sum(axis=0) <= slack)


def step(backend, problem, seed):
    """Returns the states of a step with one layer."""
    layers = [ops.LayerProblems.of([problem])]
    ((states,),) = backend.step_in_graph(layers, [seed])
    return states


class Uphill(kq.backends.GraphBackend):
    """Returns states that ascend."""

    name = "uphill"

    def __init__(self, compiled):
        super().__init__()
        self.compiled = compiled

    def search(self, problem, seed):
        del seed
        return ops.sign(problem.fields)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("shape", [(5, 4), (60, 5)], ids=["small", "large"])
def test_ascending_states_are_negated(compiled, shape):
    problem, qubo = layer(CELLS[1], shape)
    states = step(Uphill(compiled), problem, SEED)
    expected = np.where(qubo.fields > 0, -1.0, 1.0)
    expected[2] = expected[:, 1] = 0.0
    np.testing.assert_array_equal(states, expected)


@pytest.mark.slow
def test_ragged_last_batch_does_not_compile_a_search(
    monkeypatch, nothing_compiled
):
    searches = []
    search_all = native.NativeBackend._search_all

    def spy(self, layers, seeds, is_warm):
        searches.append(layers)
        return search_all(self, layers, seeds, is_warm)

    monkeypatch.setattr(native.NativeBackend, "_search_all", spy)
    model = keras.Sequential(
        [keras.layers.InputLayer((18,)), kq.layers.BinaryDense(2)]
    )
    model.compile(kq.QPSBGD(0.1, seed=0), "mse")
    x = np.random.default_rng(0).normal(size=(7, 18))
    model.fit(x, x[:, :2], batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) == 2
    assert len(searches) == 1


# Paths for a GPU, on a CPU

ROUNDED = products.rounded


def rounded_matmul(a, b, transpose_a=False, transpose_b=False):
    """Rounds the factors to 10 explicit bits, as a GPU does."""
    assert a.dtype == b.dtype == tf.float32
    a, b = ROUNDED(a), ROUNDED(b)
    return MATMUL(a, b, transpose_a=transpose_a, transpose_b=transpose_b)


MATMUL = tf.matmul


@pytest.fixture
def gpu(monkeypatch, nothing_compiled):
    monkeypatch.setattr(products, "on_gpu", lambda: True)


@pytest.mark.usefixtures("gpu")
def test_sweeps_do_not_depend_on_the_precision_of_products(monkeypatch):
    problem, _ = layer(CELLS[1])
    stack = stack_of(problem._replace(start=random_start()))
    expected = native._sweep(stack, None)
    monkeypatch.setattr(tf, "matmul", rounded_matmul)
    np.testing.assert_array_equal(native._sweep(stack, None), expected)


@pytest.mark.usefixtures("gpu")
def test_ridge_by_iterations_serves_as_well_as_the_factorization():
    problem, qubo = layer(CELLS[3], (96, 16))
    problem = problem._replace(informative=None)
    backend = kq.backends.get("ridge")
    exact = backend.search(problem, SEED).numpy()
    iterated = backend.solve_in_graph(problem, SEED).numpy()
    assert np.mean(exact == iterated) > 0.95
    excess = energies(qubo, iterated) - energies(qubo, exact)
    assert excess.mean() < 0.02


@pytest.mark.usefixtures("gpu")
def test_layers_of_any_shape_together_equal_layers_alone():
    shapes = ((24, 7), (20, 1), (17, 5))
    layers = [[layer(CELLS[3], (n, m + 2))[0]] for n, m in shapes]
    layers[1] = [p._replace(informative=None) for p in layers[1]]
    starts = [
        [p._replace(start=random_start(p.fields.shape)) for p in one]
        for one in layers
    ]

    def swept(layers):
        return batches.in_batches(
            layers, native._sweep, kq.backends.get("native")._finished
        )

    for one, together in zip(starts, swept(starts)):
        ((alone,),) = swept([one])
        np.testing.assert_array_equal(together[0], alone)


@pytest.mark.parametrize("on_gpu, count", [(True, 1), (False, 3)])
def test_batches(on_gpu, count, monkeypatch):
    """A CPU only stacks layers of equal shapes."""
    monkeypatch.setattr(products, "on_gpu", lambda: on_gpu)
    shapes = [(123, 128)] + [(128, 128)] * 8 + [(128, 1)]
    problems = [
        ops.Problem(tf.zeros((n, n)), tf.zeros((n, m))) for n, m in shapes
    ]
    found = batches._batches(problems)
    assert len(found) == count
    assert sorted(i for batch in found for i in batch) == list(range(10))


@pytest.mark.slow  # compiles a whole step
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "backend",
    ["native", pytest.param("ridge", marks=pytest.mark.exhaustive)],
)
def test_step_has_no_loops_and_no_factorization(backend):
    model = keras.Sequential(
        [keras.layers.InputLayer((20,))]
        + [kq.layers.BinaryDense(size, "hard_tanh") for size in (24, 24, 1)]
    )
    model.compile(kq.QPSBGD(backend=backend, seed=0), "mse", jit_compile=True)
    model.optimizer.build(model.trainable_variables)
    step = tf.function(
        lambda x, y: model.train_step((x, y)), jit_compile=True, autograph=False
    )
    data = tf.ones((8, 20)), tf.ones((8, 1))
    hlo = step.experimental_get_compiler_ir(*data)(stage="optimized_hlo")
    for name in ("cholesky", "triangular-solve", " sort(", "potrf", "trsm"):
        assert name not in hlo.lower()
    assert " while(" not in hlo
