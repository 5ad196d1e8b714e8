"""The fast paths against plain ones, on random layers of all kinds.

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
# Of E_rand: what float32 sums may differ by.
ROUNDING = 1e-5


def layer(cell, shape, seed=0):
    """The problem with an input that was never active, and a zero column."""
    n, m = shape
    if shape == ROWS:  # one number of rows: each is compiled for anew
        cell = cell._replace(batch=20)
    given = instances.Instance.of_cell(cell, n, m, seed)
    z = given.rows_problem.normalized_rows.numpy()
    v = given.rows_problem.row_gradients.numpy()
    z[:, 2] = 0.0
    v[:, 1] = 0.0
    z, v = tf.constant(z), tf.constant(v)
    if shape == ROWS:
        return ops.rows_problem(z, v)
    return ops.gram_problem(z, v)._replace(normalized_rows=z, row_gradients=v)


def value(problem):
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
    """In units of E_rand, without the columns that are zero."""
    qubo = value(problem)
    found = qubo.energy(states) / qubo.random_energy()
    return np.delete(found, 1)


def one_by_one(problem, start, order, count):
    """Plain sweeps: each variable is set to its better value in turn."""
    qubo = value(problem)
    q, half_fields = qubo.couplings, qubo.fields / 2
    g = np.array(start, np.float64)
    for _ in range(count):
        for i in order:
            others = q[i] @ g - q[i, i] * g[i] + half_fields[i]
            g[i] = np.where(others <= 0, 1.0, -1.0)
    return g


def descend(problem, start):
    """Plain best-improvement descent."""
    qubo = value(problem)
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
def test_ridge_by_rows_is_ridge_by_inputs(cell):
    problem = layer(cell, GRAM)
    rows = problem._replace(couplings=None)
    inputs = problem._replace(normalized_rows=None, row_gradients=None)
    expected = relaxed.ridge_solution(inputs).numpy()
    scale = abs(expected).max()
    qubo = value(problem)
    n = qubo.num_variables
    matrix = qubo.couplings + 0.1 * np.trace(qubo.couplings) / n * np.eye(n)
    exact = np.linalg.solve(matrix, -qubo.fields / 2)
    np.testing.assert_allclose(expected, exact, atol=1e-3 * scale)

    @tf.function
    def of_any_batch(z, v):  # as in `fit`, which does not know its size
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
def test_blocks_of_a_sweep_are_one_variable_after_the_other(shape):
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
        plain = one_by_one(problem, np.zeros((n, m)), order, 2)
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


def test_descent_from_ridge_is_no_worse_than_from_the_signs_of_the_fields():
    """To 1 % of E_rand. (In trained layers it is better: bench solver.)"""
    ours, theirs = [], []
    for cell in CELLS:
        problem = layer(cell, GRAM)
        found = kq.backends.get("native").solve_in_graph(problem, SEED).numpy()
        plain = descend(problem, np.where(problem.fields.numpy() <= 0, 1, -1))
        ours.append(energies(problem, found).mean())
        theirs.append(energies(problem, plain).mean())
    assert np.mean(ours) <= np.mean(theirs) + 0.01


@pytest.mark.parametrize(
    ("preset", "shape"),
    [(preset, GRAM) for preset in sorted(native.PRESETS)]
    + [("balanced", ROWS)],  # the others differ in the number of sweeps
)
def test_seeded_never_ascending_and_held(preset, shape):
    backend = kq.backends.get({"name": "native", "preset": preset})
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
    """States that ascend."""

    name = "uphill"

    def __init__(self, compiled):
        super().__init__()
        self.compiled = compiled

    def search(self, problem, seed):
        del seed
        return ops.sign(problem.fields)


class Threshold(Uphill):
    """States that depend on the scale."""

    def search(self, problem, seed):
        del seed
        return ops.sign(-problem.fields - 1.0)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_step_turns_round_and_scales(compiled):
    problem = layer(CELLS[1], (5, 4))
    (states,) = Uphill(compiled).step_in_graph([problem], [SEED], [2.0])
    (held,) = np.nonzero(states.numpy().any(axis=0))
    expected = np.where(problem.fields.numpy() > 0, -1.0, 1.0)[:, held]
    expected[2] = 0.0
    np.testing.assert_array_equal(states.numpy()[:, held], expected)

    backend = Threshold(compiled)
    found = {}
    for factor in (0.1, 100.0):
        (found[factor],) = backend.step_in_graph([problem], [SEED], [factor])
        scaled = ops.scale_problem(problem, factor)
        plain = backend.solve_in_graph(scaled, SEED).numpy()
        plain[~ops.has_information(scaled).numpy()] = 0.0
        np.testing.assert_array_equal(found[factor], plain)
    assert np.any(found[0.1] != found[100.0])


def test_layers_solved_together_are_the_layers_solved_alone():
    backend = kq.backends.get({"name": "native", "preset": "balanced"})
    shapes = ((5, 4), (20, 4), (20, 4))
    problems = [layer(CELLS[1], shape) for shape in shapes]
    sizes = [problem.fields.shape.num_elements() for problem in problems]
    assert max(sizes) <= graph_backend.SMALL
    seeds = [tf.constant([i, 1]) for i in range(3)]
    factors = [tf.constant(0.1 * (1.0 + i)) for i in range(3)]
    together = backend.step_in_graph(problems, seeds, factors)
    for index, found in enumerate(together):
        (alone,) = backend.step_in_graph(
            *([part[index]] for part in (problems, seeds, factors))
        )
        np.testing.assert_array_equal(found, alone)


@pytest.fixture
def nothing_compiled(monkeypatch):
    """As in a new process; what other tests have compiled comes back."""
    monkeypatch.setattr(
        native.NativeBackend,
        "_compiled",
        collections.OrderedDict(),
        raising=False,
    )


def test_shared_functions_do_not_change_with_a_backend(nothing_compiled):
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


def test_the_gradient_of_a_kernel_is_not_made():
    """In `fit` nothing that has an effect depends on it."""
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
    made = [
        op
        for op in products
        if op.name.startswith("gradient_tape") and op.outputs[0].shape == (7, 3)
    ]
    assert made  # Keras asks for it, ...
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
    assert not needed & set(made)  # ... but TensorFlow leaves it out


def test_a_ragged_last_batch_compiles_no_search(monkeypatch, nothing_compiled):
    """The search of a layer that is not wide never sees the number of rows."""
    seen = []
    search = native.NativeBackend.search

    def spy(self, problem, seed):
        seen.append(problem)
        return search(self, problem, seed)

    monkeypatch.setattr(native.NativeBackend, "search", spy)
    backend = kq.backends.get("native")
    for cell in (CELLS[0], CELLS[1]):  # 6 and 30 rows
        backend.step_in_graph([layer(cell, (18, 2))], [SEED], [1.0])
    assert len(seen) == 1
    assert seen[0].normalized_rows is None and seen[0].row_gradients is None
