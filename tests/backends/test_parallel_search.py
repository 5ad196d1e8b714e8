"""Tests of the search for GPUs, on a CPU."""

import re

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import ops
from keras_qpsbgd import products
from keras_qpsbgd.backends.graph import native
from keras_qpsbgd.backends.graph.parallel import search as parallel_search
from keras_qpsbgd.backends.graph.parallel import stacks
from research.bench.solvers import instances

pytestmark = pytest.mark.once

SEED = tf.constant([3, 5])
CELL = instances.Cell(30, "htanh", 0.1)
SHORT = parallel_search.Effort(3, 3, ((64, 2),), kicks=2, kick_rounds=2)


def instance(n, m, seed=0, cell=CELL):
    # `bench solver` uses smaller seeds.
    return instances.Instance.of_cell(cell, n, m, 50_000 + seed)


def parallel(preset="fast"):
    return kq.backends.get(
        {"name": "native", "preset": preset, "search": "parallel"}
    )


def search(problems, effort=SHORT, compiled=False):
    seeds = [SEED + i for i in range(len(problems))]

    @tf.function(jit_compile=compiled, autograph=False)
    def run(problems):
        return parallel_search.search(
            problems, seeds, effort, lambda states, problem: states
        )

    return [states.numpy() for states in run(problems)]


def gram(problem):
    return problem._replace(normalized_rows=None, row_gradients=None)


@pytest.fixture
def gpu(monkeypatch, nothing_compiled):
    """Takes the paths for a GPU with TensorFloat-32 products."""
    monkeypatch.setattr(products, "on_gpu", lambda: True)
    monkeypatch.setattr(products, "matmul", rounded_matmul)


ROUNDED = products.rounded


def rounded_matmul(a, b, transpose_a=False, transpose_b=False):
    """Rounds the factors to 10 explicit bits, as a GPU does."""
    assert a.dtype == b.dtype == tf.float32
    a, b = ROUNDED(a), ROUNDED(b)
    return tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)


# Quality


@pytest.mark.parametrize("form", ["couplings", "rows"])
def test_energies_are_close_to_those_of_the_sequential_search(form):
    excess = []
    for seed, kind in enumerate(instances.KINDS):
        cell = instances.Cell(30, kind, 0.1)
        n = 96 if form == "couplings" else 300
        layer = instance(n, 16, seed, cell)
        problem = (
            gram(layer.problem) if form == "couplings" else (layer.rows_problem)
        )
        found = [
            layer.qubo.energy(backend.solve_in_graph(problem, SEED).numpy())
            for backend in (parallel(), kq.backends.get("native"))
        ]
        excess.append(instances.gaps(*found, layer.qubo).mean())
    assert np.mean(excess) < 0.02, excess


@pytest.mark.slow
@pytest.mark.usefixtures("few_blocks")
def test_more_effort_finds_lower_energies():
    layer = instance(64, 32, cell=instances.Cell(64, "sparse", 0.1))
    energies = [
        layer.qubo.energy(
            parallel(preset).solve_in_graph(gram(layer.problem), SEED).numpy()
        ).mean()
        for preset in ("fast", "balanced")
    ]
    assert energies[1] < energies[0]


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize("form", ["couplings", "rows"])
def test_energy_is_never_above_the_start(form):
    layer = instance(40, 8)
    problem = layer.rows_problem if form == "rows" else gram(layer.problem)
    good = parallel("balanced").solve_in_graph(problem, SEED).numpy()
    random = np.random.default_rng(0).choice([-1.0, 1.0], good.shape)
    for start in (good, random.astype("float32")):
        (found,) = search([problem._replace(start=tf.constant(start))])
        before, after = layer.qubo.energy(start), layer.qubo.energy(found)
        assert np.all(after <= before + 1e-5 * layer.qubo.random_energy())
    assert np.all(after < before)  # from a random state


def test_ridge_by_iterations_serves_as_well_as_the_factorization():
    layer = instance(96, 16)
    exact, iterated = (
        kq.backends.get({"name": "ridge", "search": kind})
        .solve_in_graph(layer.problem, SEED)
        .numpy()
        for kind in ("sequential", "parallel")
    )
    assert np.mean(exact == iterated) > 0.95
    gaps = instances.gaps(
        layer.qubo.energy(iterated), layer.qubo.energy(exact), layer.qubo
    )
    assert gaps.mean() < 0.02


# Equalities


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize("form", ["couplings", "rows"])
def test_compiled_equals_plain(form):
    layers = [instance(n, 12, n) for n in (48, 40)]
    problems = [
        layer.rows_problem if form == "rows" else gram(layer.problem)
        for layer in layers
    ]
    plain, compiled = search(problems), search(problems, compiled=True)
    for a, b in zip(plain, compiled):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize(
    "name", [pytest.param("native", marks=pytest.mark.slow), "ridge"]
)
def test_layers_of_any_shape_together_equal_layers_alone(name):
    backend = kq.backends.get({"name": name, "search": "parallel"})
    # The layer with 17 inputs has a different number of lanes.
    shapes = ((40, 7), (33, 1), (1, 3), (17, 5))
    problems = [gram(instance(n, m, n).problem) for n, m in shapes]
    held = problems[0]._replace(fields=tf.zeros((40, 7)), offset=tf.zeros((7,)))
    wide = [instance(n, 3, n).rows_problem for n in (50, 40)]
    problems += [held, *wide]
    seeds = [tf.constant([i, 1]) for i in range(len(problems))]
    factors = [tf.constant(1.0 + i) for i in range(len(problems))]
    together = backend.step_in_graph(problems, seeds, factors)
    for found, problem in zip(together, problems):
        assert found.shape == problem.fields.shape
    # Each shape takes seconds to compile, so leave out (17, 5) and (50, 3),
    # which are not padded by `native`.
    for i in (0, 1, 2, 4, 6):
        (alone,) = backend.step_in_graph(
            [problems[i]], [seeds[i]], [factors[i]]
        )
        np.testing.assert_array_equal(together[i], alone)
    assert not together[4].numpy().any()
    assert np.all(abs(together[0].numpy()) == 1)


@pytest.mark.usefixtures("few_blocks")
def test_unknown_number_of_rows():
    layers = [instance(40, 3), instance(36, 3, cell=CELL._replace(batch=20))]
    problems = [layer.rows_problem for layer in layers]
    expected = search(problems)
    run = tf.function(
        lambda problems: parallel_search.search(
            problems, [SEED, SEED + 1], SHORT, lambda states, problem: states
        )
    )
    specs = tf.nest.map_structure(
        lambda x: None if x is None else tf.TensorSpec(x.shape), problems
    )
    specs = [
        spec._replace(
            normalized_rows=tf.TensorSpec((None, n)),
            row_gradients=tf.TensorSpec((None, 3)),
        )
        for spec, n in zip(specs, (40, 36))
    ]
    unknown = run.get_concrete_function(specs)
    for a, b in zip(unknown(problems), expected):
        np.testing.assert_array_equal(a, b)


def test_ten_equal_layers_are_one_batch():
    shapes = [(123, 128)] + [(128, 128)] * 8 + [(128, 1)]
    problems = [
        ops.Problem(tf.zeros((n, n)), tf.zeros((n, m)), tf.zeros((m,)))
        for n, m in shapes
    ]
    (batch,) = stacks._batches(problems, lambda problem: None)
    assert sorted(batch) == list(range(10))


# Precision


def test_products_do_not_depend_on_rounded_factors(gpu):
    rng = np.random.default_rng(0)
    a = tf.constant(rng.normal(size=(30, 50)), tf.float32)
    b = tf.constant(rng.normal(size=(30, 20)), tf.float32)
    expected = np.float64(a).T @ np.float64(b)
    split = products.product(a, b, transpose_a=True).numpy()
    rounded = rounded_matmul(a, b, transpose_a=True).numpy()
    assert abs(split - expected).max() < 1e-5
    assert abs(rounded - expected).max() > 1e-4


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize("form", ["couplings", "rows"])
def test_states_are_the_same_with_rounded_products(form, request):
    def problem():
        layer = instance(48, 24)
        return layer.rows_problem if form == "rows" else gram(layer.problem)

    (expected,) = search([problem()])
    request.getfixturevalue("gpu")
    (found,) = search([problem()])
    # Where the problems are the same bit for bit, so are the states. A coupling
    # that is built from split factors may differ in its last bit.
    equal = np.all(found == expected, axis=0)
    assert equal.mean() > 0.9


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize("form", ["couplings", "rows"])
@pytest.mark.parametrize("preset", ["fast", "balanced"])
def test_search_does_not_depend_on_rounded_products(preset, form, request):
    layer = instance(48, 24)
    problem = layer.rows_problem if form == "rows" else gram(layer.problem)
    effort = native.PARALLEL_PRESETS[preset]
    (expected,) = search([problem], effort)
    request.getfixturevalue("gpu")
    (found,) = search([problem], effort)
    if form == "couplings":
        np.testing.assert_array_equal(found, expected)
    else:  # ZZ' is built from split factors
        assert np.all(found == expected, axis=0).mean() > 0.9


def test_rounded_products_change_states_without_the_rounding(gpu, monkeypatch):
    problem = gram(instance(64, 64).problem)
    monkeypatch.setattr(products, "rounded", lambda x: x)
    (rounded,) = search([problem])
    monkeypatch.setattr(products, "matmul", tf.matmul)
    (found,) = search([problem])
    assert np.any(found != rounded)


# The program


def step_hlo(backend, sizes=(20, 24, 24, 24, 1), batch=8):
    """Returns the optimized HLO of a whole training step."""
    model = keras.Sequential(
        [keras.layers.InputLayer((sizes[0],))]
        + [kq.layers.BinaryDense(size, "hard_tanh") for size in sizes[1:]]
    )
    model.compile(kq.QPSBGD(backend=backend, seed=0), "mse", jit_compile=True)
    model.optimizer.build(model.trainable_variables)
    step = tf.function(
        lambda x, y: model.train_step((x, y)), jit_compile=True, autograph=False
    )
    data = tf.ones((batch, sizes[0])), tf.ones((batch, sizes[-1]))
    return step.experimental_get_compiler_ir(*data)(stage="optimized_hlo")


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.parametrize(
    "backend",
    [
        "native",
        pytest.param(
            {"name": "native", "preset": "balanced"}, marks=pytest.mark.slow
        ),
        "ridge",
    ],
)
def test_step_has_no_unknown_loops_and_no_factorization(gpu, backend):
    hlo = step_hlo(backend)
    for name in ("cholesky", "triangular-solve", " sort(", "potrf", "trsm"):
        assert name not in hlo.lower()
    loops = [line for line in hlo.splitlines() if " while(" in line]
    assert all("known_trip_count" in line for line in loops)
    # Rounds, or rounds, kicks and the rounds after a kick.
    count = {"native": 1, "ridge": 0}.get(str(backend), 3)
    assert len(loops) == count


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.slow
def test_number_of_kernels_does_not_grow_with_the_layers(gpu):
    """Compares steps with and without a search, as compiled for a CPU."""
    extra = []
    for layers in (1, 3):
        sizes = (20, *[24] * layers, 1)
        programs = [step_hlo(backend, sizes) for backend in ("native", "sign")]
        with_search, without = (
            [len(re.findall(rf" {k}\(", program)) for k in ("fusion", "dot")]
            for program in programs
        )
        extra.append(np.subtract(with_search, without))
    # `sign` has no product for the couplings. The others are one per iteration
    # and amount of noise, one for the memory and one per round.
    count = parallel_search.ITERATIONS + len(parallel_search.NOISE) + 3
    assert [dots for _, dots in extra] == [count] * 2
    assert all(fusions < 130 for fusions, _ in extra), extra


# The choice


def test_search_is_chosen_by_device(monkeypatch):
    for name in ("native", "ridge"):
        backend = kq.backends.get(name)
        assert "search" not in kq.backends.serialize(backend)
        assert not stacks.is_parallel(backend.search_kind)
        saved = {"name": name, "search": "parallel"}
        again = kq.backends.serialize(kq.backends.get(saved))
        assert again["search"] == "parallel"
    monkeypatch.setattr(products, "on_gpu", lambda: True)
    assert stacks.is_parallel("auto")
    assert not stacks.is_parallel("sequential")


@pytest.mark.usefixtures("few_blocks")
@pytest.mark.slow
def test_training_with_the_parallel_search_learns():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, 20)).astype("float32")
    y = x @ rng.choice([-1.0, 1.0], (20, 1))
    model = keras.Sequential(
        [keras.layers.InputLayer((20,)), kq.layers.BinaryDense(1)]
    )
    backend = {"name": "native", "search": "parallel"}
    model.compile(kq.QPSBGD(0.02, backend, seed=0), "mse")
    history = model.fit(x, y, epochs=12, verbose=0).history["loss"]
    assert history[-1] < 0.9 * history[0]
