"""Compares fast paths with plain implementations, on all kinds of layers.

Energies are compared in units of E_rand, the mean energy of a random state.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import ops
from keras_qpsbgd.backends.graph import graph_backend
from keras_qpsbgd.backends.graph import native
from keras_qpsbgd.backends.graph import relaxed
from keras_qpsbgd.backends.graph import sweeps
from research.bench.solvers import instances

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
GRAM, ROWS = (34, 6), (40, 6)
# Tolerance for float32 sums, as a fraction of E_rand.
ROUNDING = 1e-5


def layer(cell, shape, seed=0):
    """Returns a problem with one inactive input and one zero column."""
    n, m = shape
    if shape == ROWS:  # each number of rows would be compiled separately
        cell = cell._replace(batch=20)
    instance = instances.Instance.of_cell(cell, n, m, seed)
    z = instance.rows_problem.normalized_rows.numpy()
    v = instance.rows_problem.row_gradients.numpy()
    z[:, 2] = 0.0
    v[:, 1] = 0.0
    z, v = tf.constant(z), tf.constant(v)
    if shape == ROWS:
        return ops.rows_problem(z, v)
    return ops.gram_problem(z, v)._replace(normalized_rows=z, row_gradients=v)


def to_qubo(problem):
    couplings = problem.couplings
    if couplings is None:
        z = np.float64(problem.normalized_rows)
        couplings = z.T @ z
    return kq.Qubo(
        np.float64(couplings),
        np.float64(problem.fields),
        np.float64(problem.offset),
    )


def energies(problem, states):
    """Returns energies in units of E_rand, without the zero column."""
    qubo = to_qubo(problem)
    found = qubo.energy(states) / qubo.random_energy()
    return np.delete(found, 1)


def plain_sweeps(problem, start, order, count):
    """Runs plain sweeps: sets one variable at a time to its better value."""
    qubo = to_qubo(problem)
    q, half_fields = qubo.couplings, qubo.fields / 2
    g = np.array(start, np.float64)
    for _ in range(count):
        for i in order:
            others = q[i] @ g - q[i, i] * g[i] + half_fields[i]
            g[i] = np.where(others <= 0, 1.0, -1.0)
    return g


def descend(problem, start):
    """Runs plain best-improvement descent."""
    qubo = to_qubo(problem)
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
def test_ridge_by_rows_equals_ridge_by_inputs(cell):
    problem = layer(cell, GRAM)
    rows = problem._replace(couplings=None)
    inputs = problem._replace(normalized_rows=None, row_gradients=None)
    expected = relaxed.ridge_solution(inputs).numpy()
    scale = abs(expected).max()
    qubo = to_qubo(problem)
    n = qubo.num_variables
    matrix = qubo.couplings + 0.1 * np.trace(qubo.couplings) / n * np.eye(n)
    exact = np.linalg.solve(matrix, -qubo.fields / 2)
    np.testing.assert_allclose(expected, exact, atol=1e-3 * scale)

    @tf.function
    def of_any_batch(z, v):  # `fit` does not know the batch size
        return relaxed.ridge_solution(
            problem._replace(normalized_rows=z, row_gradients=v)
        )

    unknown = of_any_batch.get_concrete_function(
        tf.TensorSpec((None, n)), tf.TensorSpec((None, 6))
    )
    for found in (
        relaxed.ridge_solution(problem),
        relaxed.ridge_solution(rows),
        unknown(problem.normalized_rows, problem.row_gradients),
    ):
        np.testing.assert_allclose(found, exact, atol=1e-3 * scale)


@pytest.mark.parametrize("shape", [GRAM, ROWS], ids=["gram", "rows"])
def test_sweeps_over_blocks_equal_plain_sweeps(shape):
    n, m = shape
    random = tf.random.stateless_uniform(
        (n,), SEED, minval=None, maxval=None, dtype=tf.int32, alg="philox"
    )
    order = np.argsort(random.numpy(), kind="stable")
    swept = tf.function(
        lambda problem, seed: sweeps.cyclic_sweeps(problem, seed, 2),
        reduce_retracing=True,
    )
    for cell in CELLS:
        problem = layer(cell, shape)
        plain = plain_sweeps(problem, np.zeros((n, m)), order, 2)
        found = swept(problem, SEED).numpy()
        excess = energies(problem, found) - energies(problem, plain)
        assert abs(excess).max() < ROUNDING, cell


@pytest.mark.parametrize("preset", sorted(native.PRESETS))
def test_search_is_no_worse_than_plain_descent(preset):
    backend = kq.backends.get({"name": "native", "preset": preset})
    for cell in CELLS:
        problem = layer(cell, GRAM)
        start = relaxed.ridge_solution(problem).numpy() >= 0
        plain = descend(problem, np.where(start, 1.0, -1.0))
        found = backend.solve_in_graph(problem, SEED).numpy()
        excess = energies(problem, found) - energies(problem, plain)
        assert excess.max() < ROUNDING, cell


def test_descent_from_ridge_is_no_worse_than_from_field_signs():
    """Within 1 % of E_rand. It is better in trained layers (`bench solver`)."""
    ours, theirs = [], []
    for cell in CELLS:
        problem = layer(cell, GRAM)
        found = kq.backends.get("native").solve_in_graph(problem, SEED).numpy()
        plain = descend(problem, np.where(problem.fields.numpy() <= 0, 1, -1))
        ours.append(energies(problem, found).mean())
        theirs.append(energies(problem, plain).mean())
    assert np.mean(ours) <= np.mean(theirs) + 0.01


@pytest.mark.parametrize(
    ("preset", "search", "shape"),
    [(preset, "sequential", GRAM) for preset in sorted(native.PRESETS)]
    # Other presets only change the number of sweeps, rounds or kicks.
    + [("balanced", "sequential", ROWS)]
    + [("balanced", "parallel", shape) for shape in (GRAM, ROWS)],
)
def test_states_are_seeded_and_never_ascend(preset, search, shape):
    backend = kq.backends.get(
        {"name": "native", "preset": preset, "search": search}
    )
    for cell in CELLS:
        problem = layer(cell, shape)
        (states,) = backend.step_in_graph([problem], [SEED], [2.0])
        (again,) = backend.step_in_graph([problem], [SEED], [2.0])
        states = states.numpy()
        np.testing.assert_array_equal(states, again)
        assert not states[2].any() and not states[:, 1].any()
        others = np.delete(np.delete(states, 2, axis=0), 1, axis=1)
        reached = np.any(problem.normalized_rows.numpy() != 0, axis=0)
        assert np.all(abs(others)[np.delete(reached, 2)] == 1)
        fields = np.float64(problem.fields)
        slack = 1e-6 * abs(fields).sum(axis=0)
        assert np.all((fields * states).sum(axis=0) <= slack)


class Uphill(kq.backends.GraphBackend):
    """Returns states that ascend."""

    name = "uphill"

    def __init__(self, compiled):
        super().__init__()
        self.compiled = compiled

    def search(self, problem, seed):
        del seed
        return ops.sign(problem.fields)


class Threshold(Uphill):
    """Returns states that depend on the scale."""

    def search(self, problem, seed):
        del seed
        return ops.sign(-problem.fields - 1.0)


@pytest.mark.parametrize("compiled", [True, False])
def test_step_negates_ascending_states_and_scales(compiled):
    problem = layer(CELLS[1], (5, 4))
    (states,) = Uphill(compiled).step_in_graph([problem], [SEED], [2.0])
    (moving,) = np.nonzero(states.numpy().any(axis=0))
    expected = np.where(problem.fields.numpy() > 0, -1.0, 1.0)[:, moving]
    expected[2] = 0.0
    np.testing.assert_array_equal(states.numpy()[:, moving], expected)

    backend = Threshold(compiled)
    found = {}
    for factor in (0.1, 100.0):
        (found[factor],) = backend.step_in_graph([problem], [SEED], [factor])
        scaled = ops.scale_problem(problem, factor)
        plain = backend.solve_in_graph(scaled, SEED).numpy()
        plain[~ops.has_information(scaled).numpy()] = 0.0
        np.testing.assert_array_equal(found[factor], plain)
    assert np.any(found[0.1] != found[100.0])


@pytest.mark.parametrize("search", ["sequential", "parallel"])
def test_layers_solved_together_equal_layers_solved_separately(search):
    backend = kq.backends.get(
        {"name": "native", "preset": "balanced", "search": search}
    )
    shapes = ((5, 4), (20, 4), (20, 4))
    problems = [layer(CELLS[1], shape) for shape in shapes]
    sizes = [problem.fields.shape.num_elements() for problem in problems]
    assert max(sizes) <= graph_backend.SMALL
    seeds = [tf.constant([i, 1]) for i in range(3)]
    factors = [tf.constant(0.1 * (1.0 + i)) for i in range(3)]
    together = backend.step_in_graph(problems, seeds, factors)
    for index, found in enumerate(together):
        (separate,) = backend.step_in_graph(
            *([part[index]] for part in (problems, seeds, factors))
        )
        np.testing.assert_array_equal(found, separate)


def test_changing_a_backend_does_not_change_shared_functions(nothing_compiled):
    first = kq.backends.get("native")
    narrow, wide = layer(CELLS[0], ROWS), layer(CELLS[1], ROWS)
    first.solve_in_graph(narrow, SEED)
    first.preset = "accurate"
    found = kq.backends.get("native").solve_in_graph(
        wide._replace(
            normalized_rows=tf.pad(wide.normalized_rows, [[0, 1], [0, 0]]),
            row_gradients=tf.pad(wide.row_gradients, [[0, 1], [0, 0]]),
        ),
        SEED,
    )
    expected = sweeps.cyclic_sweeps(wide, SEED, 1)
    np.testing.assert_allclose(
        energies(wide, found), energies(wide, expected), atol=ROUNDING
    )


def test_kernel_gradient_is_not_computed():
    """In `fit`, no stateful operation depends on it."""
    model = keras.Sequential(
        [keras.layers.InputLayer((7,)), kq.layers.BinaryDense(3)]
    )
    model.compile(kq.QPSBGD(seed=0), "mse")
    x, y = tf.ones((5, 7)), tf.ones((5, 3))
    model.fit(x, y, verbose=0)
    step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
    step(x, y)
    graph = step.get_concrete_function(x, y).graph
    products = [op for op in graph.get_operations() if op.type == "MatMul"]
    gradients = [
        op
        for op in products
        if op.name.startswith("gradient_tape") and op.outputs[0].shape == (7, 3)
    ]
    assert gradients  # Keras adds it to the graph, ...
    needed, todo = (
        set(),
        [
            op
            for op in graph.get_operations()
            if op.op_def.is_stateful and op.type != "ReadVariableOp"
        ],
    )
    while todo:
        op = todo.pop()
        if op not in needed:
            needed.add(op)
            todo += [tensor.op for tensor in op.inputs] + op.control_inputs
    assert not needed & set(gradients)  # ... but TensorFlow prunes it


@pytest.mark.parametrize("search", ["sequential", "parallel"])
def test_ragged_last_batch_does_not_compile_a_search(
    monkeypatch, nothing_compiled, search
):
    """Only the search of a wide layer depends on the number of rows."""
    seen = []
    search_all = native.NativeBackend._search_all

    def spy(self, problems, seeds, finish):
        seen.extend(problems)
        return search_all(self, problems, seeds, finish)

    monkeypatch.setattr(native.NativeBackend, "_search_all", spy)
    backend = kq.backends.get({"name": "native", "search": search})
    for cell in (CELLS[0], CELLS[1]):  # 6 and 30 rows
        backend.step_in_graph([layer(cell, (18, 2))], [SEED], [1.0])
    assert len(seen) == 1
    assert seen[0].normalized_rows is None and seen[0].row_gradients is None


def test_numbers_of_rows_do_not_compile_again(monkeypatch):
    compiled = collections.OrderedDict()
    monkeypatch.setattr(
        graph_backend.GraphBackend, "_compiled", compiled, raising=False
    )
    for batch in (20, 7):
        cell = instances.Cell(batch, "htanh", 0.1)
        problem = instances.Instance.of_cell(cell, 40, 8, 0).rows_problem
        kq.backends.get("ridge").step_in_graph([problem], [SEED], [1.0])
    (function,) = compiled.values()
    assert function.experimental_get_tracing_count() == 1
