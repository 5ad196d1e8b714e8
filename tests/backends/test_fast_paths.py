"""Compares fast paths with plain implementations, on all kinds of layers.

Energies are compared in units of E_rand, the mean energy of a random state.
"""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.backends.graph import local_search
from keras_qpsbgd.backends.graph import native
from keras_qpsbgd.backends.graph import relaxed
from keras_qpsbgd.qubo import ops
from research.bench import instances

pytestmark = pytest.mark.once

SEED = tf.constant([3, 5])
CELLS = (
    *(
        instances.Cell(batch, kind, sigma)
        for kind in instances.KINDS
        for batch, sigma in ((6, 0.1), (30, 1.0))
    ),
    instances.Cell(30, "htanh", 0.1, planted=True),
)
SHAPE = (34, 6)
# Tolerance for float32 sums, as a fraction of E_rand.
ROUNDING = 1e-5


def layer(cell, shape=SHAPE, seed=0):
    """Returns a problem with one inactive input and one zero column.

    Also returns the same problem as a `Qubo`.
    """
    instance = instances.Instance.of_cell(cell, *shape, seed)
    active = np.ones(shape[0], "float32")
    active[2] = 0.0
    moving = np.ones(shape[1], "float32")
    moving[1] = 0.0
    couplings = instance.problem.couplings * np.outer(active, active)
    fields = instance.problem.fields * np.outer(active, moving)
    informative = ops.has_information(
        fields, ops.has_gradient(fields), ops.squared_forces(couplings) > 0
    )
    problem = ops.Problem(couplings, fields, informative=informative)
    qubo = kq.Qubo(
        np.float64(couplings), np.float64(fields), instance.qubo.offset
    )
    return problem, qubo


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


def _shuffled(problem):
    return local_search.shuffled_sweep(problem, SEED)


def _swept(problem):
    stack = [part[None] for part in problem[:3]]
    return local_search.sweep(ops.Problem(*stack))[0]


def _warm(problem):
    """With as many repetitions as variables, warm sweeps are exact, too."""
    stack = [part[None] for part in problem[:3]]
    return local_search.warm_sweep(ops.Problem(*stack))[0]


@pytest.mark.parametrize(
    "sweep, warm",
    [(_shuffled, False), (_swept, True), (_warm, True)],
    ids=["zeros", "start", "warm"],
)
def test_sweep_over_blocks_equals_plain_sweep(sweep, warm, monkeypatch):
    """In a random order from zeros, and in order from a start."""
    monkeypatch.setattr(local_search, "BLOCK", 8)
    monkeypatch.setattr(local_search, "WARM_BLOCK", 12)
    monkeypatch.setattr(local_search, "REPETITIONS", 11)
    monkeypatch.setattr(local_search, "PART", 3)  # two parts of three blocks
    n, m = SHAPE
    random = tf.random.stateless_uniform(
        (n,), SEED, minval=None, maxval=None, dtype=tf.int32, alg="philox"
    )
    order = np.argsort(random.numpy(), kind="stable")
    start = np.zeros(SHAPE)
    if warm:
        order = np.arange(n)
        start = np.random.default_rng(0).choice([-1.0, 1.0], SHAPE)
    swept = tf.function(sweep, reduce_retracing=True)
    for cell in CELLS:
        problem, qubo = layer(cell)
        if warm:
            problem = problem._replace(start=tf.constant(start, tf.float32))
        plain = plain_sweep(qubo, start, order)
        excess = energies(qubo, swept(problem)) - energies(qubo, plain)
        assert abs(excess).max() < ROUNDING, cell


def test_search_is_no_worse_than_plain_descent():
    backend = kq.backends.get("native")
    for cell in CELLS:
        problem, qubo = layer(cell)
        problem = problem._replace(informative=None)
        start = relaxed.ridge_solution(problem).numpy() >= 0
        plain = descend(qubo, np.where(start, 1.0, -1.0))
        found = backend.solve_in_graph(problem, SEED)
        excess = energies(qubo, found) - energies(qubo, plain)
        assert excess.max() < ROUNDING, cell


@pytest.mark.parametrize(
    "search",
    ["sequential", pytest.param("parallel", marks=pytest.mark.slow)],
)
def test_states_are_seeded_and_never_ascend(search):
    backend = kq.backends.get({"name": "native", "search": search})
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
@pytest.mark.parametrize(
    "search",
    ["sequential", pytest.param("parallel", marks=pytest.mark.slow)],
)
def test_ragged_last_batch_does_not_compile_a_search(
    monkeypatch, nothing_compiled, search
):
    searches = []
    search_all = native.NativeBackend._search_all

    def spy(self, layers, seeds, is_warm):
        searches.append(layers)
        return search_all(self, layers, seeds, is_warm)

    monkeypatch.setattr(native.NativeBackend, "_search_all", spy)
    backend = kq.backends.get({"name": "native", "search": search})
    model = keras.Sequential(
        [keras.layers.InputLayer((18,)), kq.layers.BinaryDense(2)]
    )
    model.compile(kq.QPSBGD(0.1, backend, seed=0), "mse")
    x = np.random.default_rng(0).normal(size=(7, 18))
    model.fit(x, x[:, :2], batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) == 2
    assert len(searches) == 1
