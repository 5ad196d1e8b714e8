"""Tests of the search for GPUs, on a CPU."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.backends.graph import gpu_batches
from keras_qpsbgd.backends.graph import gpu_search
from keras_qpsbgd.backends.graph import native
from keras_qpsbgd.backends.graph import products
from keras_qpsbgd.qubo import ops
from research.bench import instances

pytestmark = pytest.mark.once

SEED = tf.constant([3, 5])
CELL = instances.Cell(30, "htanh", 0.1)


def instance(n, m, seed=0, cell=CELL):
    # `bench solver` uses smaller seeds.
    return instances.Instance.of_cell(cell, n, m, 50_000 + seed)


def search(problems, compiled=False):
    seeds = [SEED + i for i in range(len(problems))]

    @tf.function(jit_compile=compiled, autograph=False)
    def run(problems):
        return gpu_search.search(
            [[problem] for problem in problems],
            seeds,
            lambda states, problem: states,
        )

    return [states.numpy() for (states,) in run(problems)]


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


@pytest.mark.slow  # compiles 16 slices; shorter tests have three
def test_energies_are_close_to_those_of_the_sequential_search():
    parallel = kq.backends.get({"name": "native", "search": "parallel"})
    excess = []
    for seed, kind in enumerate(instances.KINDS):
        layer = instance(96, 16, seed, instances.Cell(30, kind, 0.1))
        found = [
            layer.qubo.energy(backend.solve_in_graph(layer.problem, SEED))
            for backend in (parallel, kq.backends.get("native"))
        ]
        excess.append(instances.gaps(*found, layer.qubo).mean())
    assert np.mean(excess) < 0.02, excess


@pytest.mark.usefixtures("few_slices")
def test_energy_is_never_above_the_start():
    layer = instance(40, 8)
    good = kq.backends.get({"name": "native", "preset": "once"})
    good = good.solve(layer.qubo).states.astype("float32")
    random = np.random.default_rng(0).choice([-1.0, 1.0], good.shape)
    for start in (good, random.astype("float32")):
        (found,) = search([layer.problem._replace(start=tf.constant(start))])
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


@pytest.mark.usefixtures("few_slices")
def test_compiled_equals_plain():
    problems = [instance(n, 8, n).problem for n in (24, 20)]
    plain, compiled = search(problems), search(problems, compiled=True)
    for a, b in zip(plain, compiled):
        np.testing.assert_array_equal(a, b)


def sweep(problems, compiled):
    @tf.function(jit_compile=compiled, autograph=False)
    def run(problems):
        return gpu_batches.in_batches(
            [[problem] for problem in problems],
            [SEED] * len(problems),
            native.gpu_sweep,
            lambda states, problem: states,
        )

    return [states.numpy() for (states,) in run(problems)]


@pytest.mark.slow
@pytest.mark.usefixtures("few_slices")
def test_sweeps_of_stacked_layers_equal_sweeps_alone():
    """Also compiled. The layers have several blocks."""
    problems = [instance(n, 4, n).problem for n in (20, 10)]
    # From the states with the highest energy of the linear part.
    problems = [p._replace(start=ops.sign(p.fields)) for p in problems]
    together, compiled = (sweep(problems, c) for c in (False, True))
    for i, problem in enumerate(problems):
        (alone,) = sweep([problem], False)
        np.testing.assert_array_equal(together[i], alone)
        np.testing.assert_array_equal(together[i], compiled[i])


@pytest.mark.usefixtures("few_slices")
@pytest.mark.slow  # compiles; the sweeps of stacked layers are tested above
@pytest.mark.parametrize("name", ["native", "ridge"])
def test_layers_of_any_shape_together_equal_layers_alone(name):
    backend = kq.backends.get({"name": name, "search": "parallel"})
    # The layer with 17 inputs has a different number of lanes.
    shapes = ((40, 7), (33, 1), (17, 5))
    layers = [[instance(n, m, n).problem] for n, m in shapes]
    (first,) = layers[0]
    nothing = tf.zeros(first.fields.shape, tf.bool)
    held = first._replace(informative=nothing)
    blocks = [instance(n, 3, n).problem for n in (40, 33)]
    layers = [ops.LayerProblems.of(one) for one in [*layers, [held], blocks]]
    seeds = [tf.constant([i, 1]) for i in range(len(layers))]
    together = backend.step_in_graph(layers, seeds)
    for found, layer in zip(together, layers):
        shapes = [problem.fields.shape for problem in layer.problems()]
        assert [states.shape for states in found] == shapes
    # Each shape takes seconds to compile, so leave out (17, 5), which is not
    # padded by `native`, and the layer that is held.
    for i in (1, 4):
        (alone,) = backend.step_in_graph([layers[i]], [seeds[i]])
        for a, b in zip(together[i], alone):
            np.testing.assert_array_equal(a, b)
    assert not together[3][0].numpy().any()
    assert np.all(abs(together[0][0].numpy()) == 1)


def test_ten_equal_layers_are_one_batch():
    shapes = [(123, 128)] + [(128, 128)] * 8 + [(128, 1)]
    problems = [
        ops.Problem(tf.zeros((n, n)), tf.zeros((n, m))) for n, m in shapes
    ]
    (batch,) = gpu_batches._batches(problems, lambda problem: None)
    assert sorted(batch) == list(range(10))


# Precision


@pytest.mark.slow
@pytest.mark.usefixtures("few_slices")
def test_search_does_not_depend_on_rounded_products(request, monkeypatch):
    problem = instance(64, 512).problem
    (expected,) = search([problem])
    request.getfixturevalue("gpu")
    (found,) = search([problem])
    np.testing.assert_array_equal(found, expected)
    # Without the rounding, they do.
    monkeypatch.setattr(products, "rounded", lambda x: x)
    (rounded,) = search([problem])
    monkeypatch.setattr(products, "matmul", tf.matmul)
    (found,) = search([problem])
    assert np.any(found != rounded)


@pytest.mark.slow
@pytest.mark.usefixtures("few_slices")
def test_sweep_does_not_depend_on_rounded_products(request):
    problem = instance(40, 24).problem
    problem = problem._replace(start=ops.sign(problem.fields))
    (expected,) = sweep([problem], False)
    request.getfixturevalue("gpu")
    (found,) = sweep([problem], False)
    np.testing.assert_array_equal(found, expected)


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


@pytest.mark.usefixtures("few_slices")
@pytest.mark.parametrize("backend", ["native", "ridge"])
@pytest.mark.slow  # compiles a whole step
def test_step_has_no_loops_and_no_factorization(gpu, backend):
    hlo = step_hlo(backend)
    for name in ("cholesky", "triangular-solve", " sort(", "potrf", "trsm"):
        assert name not in hlo.lower()
    assert " while(" not in hlo


# The choice


def test_search_is_chosen_by_device(monkeypatch):
    for name in ("native", "ridge"):
        backend = kq.backends.get(name)
        assert "search" not in kq.backends.serialize(backend)
        assert not backend.is_parallel()
        saved = {"name": name, "search": "parallel"}
        again = kq.backends.serialize(kq.backends.get(saved))
        assert again["search"] == "parallel"
    monkeypatch.setattr(products, "on_gpu", lambda: True)
    assert backend.is_parallel()
    sequential = kq.backends.get({"name": "ridge", "search": "sequential"})
    assert not sequential.is_parallel()


@pytest.mark.usefixtures("few_slices")
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
