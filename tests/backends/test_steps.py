"""The problems of a training step, with every backend.

A step has three layers: one with few inputs, one with several blocks of
couplings, whose last block is padded, and one with start states.
"""

import numpy as np
import offline
import pytest
import tensorflow as tf
import tools

import keras_qpsbgd as kq
from keras_qpsbgd.backends.graph import products
from keras_qpsbgd.optimizers import averaged_rule
from keras_qpsbgd.optimizers.step_solver import StepSolver
from keras_qpsbgd.qubo import ops
from keras_qpsbgd.qubo.blocks import block_shape
from keras_qpsbgd.qubo.blocks import join
from keras_qpsbgd.qubo.blocks import second_moments

pytestmark = pytest.mark.once

GRAPH = ["native", "exact", "ridge", "sign"]
HOST = ["simulated_annealing", "tabu", "gurobi", "dwave", "leap_hybrid"]
ALL = [*GRAPH, *HOST]

# Inputs, outputs and blocks. `native` enumerates up to 16 inputs.
SHAPES = ((4, 3, 1), (9, 2, 2), (5, 2, 1))
WIDE_SHAPES = ((4, 3, 1), (37, 3, 2), (18, 2, 1))
# An input that is never active, and a column without a gradient.
INACTIVE, IDLE = 2, 1
NAMES = ["first", "second", "third"]


def get(backend):
    if backend == "dwave":
        return offline.qpu(offline.exact_chip(), num_reads=2)
    if backend == "leap_hybrid":
        return offline.hybrid()
    if backend == "tabu":
        return kq.backends.get({"name": "tabu", "num_restarts": 0})
    return kq.backends.get(backend)


def averaged(gradient, ahead, couplings, kappa, start):
    """Returns the problems of the averaged rule, with rho = 1."""
    unit = 1.0 / tf.sqrt(averaged_rule.mean_square(ahead))
    found = averaged_rule.Averages(gradient, ahead, ahead, tf.zeros((4,)), unit)
    scales = averaged_rule.scales(found, couplings, kappa)
    return averaged_rule.scaled(couplings, gradient, ahead, *scales, start)


def layer(n, m, blocks, seed, with_start=False):
    """Draws a layer of the averaged rule."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(20, n)).astype("float32")
    rows[:, INACTIVE] = 0.0
    gradient = rng.normal(size=(n, m)).astype("float32")
    gradient[INACTIVE] = gradient[:, IDLE] = 0.0
    average = rng.normal(size=(n, m)).astype("float32")
    average[INACTIVE] = 0.0
    count, width = block_shape(n, -(-n // blocks))
    assert count == blocks
    moments = second_moments(rows, (count, width, width))
    start = None
    if with_start:
        start = rng.choice([-1.0, 0.0, 1.0], (n, m)).astype("float32")
    return ops.LayerProblems(
        averaged,
        tuple(
            None if part is None else tf.constant(part)
            for part in (gradient, average, moments / 50.0, 0.5, start)
        ),
        (n, m),
        is_warm=with_start,
    )


def layers_for(backend):
    shapes = WIDE_SHAPES if backend == "native" else SHAPES
    return [
        layer(*shape, seed=seed, with_start=seed == 2)
        for seed, shape in enumerate(shapes)
    ]


class Warnings:
    """`StepSolver` holds a weak reference to a bound method."""

    def once(self, key, message):
        raise AssertionError(message)


WARNINGS = Warnings()


def solve(backend, layers):
    """Returns the states of all layers, in a graph as in training."""
    solver = StepSolver(backend, "raise", WARNINGS.once)
    seeds = [tf.constant([i, 1]) for i in range(len(layers))]
    builds = [(one.build, one.shape, one.is_warm) for one in layers]

    @tf.function(autograph=False)
    def run(tensors):
        again = [
            ops.LayerProblems(build, part, shape, is_warm)
            for (build, shape, is_warm), part in zip(builds, tensors)
        ]
        return solver.solve(
            NAMES[: len(again)], again, seeds, tf.constant(0), None
        )

    found = run([one.tensors for one in layers])
    return [states.numpy() for states in found]


def fields_of(layer):
    """Returns the fields of all inputs, and the number of blocks."""
    problems = layer.problems()
    fields = join([p.fields for p in problems], layer.shape[0])
    return fields.numpy(), len(problems)


# Properties of every backend


# Compiling `exact` takes seconds, and other tests search with it.
@pytest.mark.parametrize("backend", [b for b in ALL if b != "exact"])
def test_a_step(backend):
    """One test, because each list of layers is compiled."""
    layers = layers_for(backend)
    together = solve(get(backend), layers)
    for one, states in zip(layers, together):
        assert states.shape == one.shape
        # Entries without information are held, and only these.
        held = np.zeros(one.shape, bool)
        held[INACTIVE] = held[:, IDLE] = True
        np.testing.assert_array_equal(states == 0, held)
        assert set(np.unique(states)) <= {-1, 0, 1}
        # The states of every block descend.
        fields, count = fields_of(one)
        for block in range(count):
            products = (fields * states)[block::count].sum(axis=0)
            sizes = np.abs(fields[block::count]).sum(axis=0)
            assert (products <= 1e-6 * sizes).all()
    # The states depend on the seed alone.
    tools.assert_equal(solve(get(backend), layers), together)
    # Layers apart, eagerly.
    for i, one in enumerate(layers):
        solver = StepSolver(get(backend), "raise", WARNINGS.once)
        (apart,) = solver.solve(
            NAMES[i : i + 1],
            [one],
            [tf.constant([i, 1])],
            tf.constant(0),
            None,
        )
        np.testing.assert_array_equal(apart, together[i])


@pytest.mark.parametrize("backend", ["native", "simulated_annealing"])
def test_blocks_are_separate_problems(backend):
    """Another block does not change the states of a block."""
    shape = (WIDE_SHAPES if backend == "native" else SHAPES)[1]
    one = layer(*shape, seed=7)
    gradient, average, moments, *others = one.tensors
    # The scale of the fields depends on both blocks. Negating the average and
    # reversing the order of inputs in a block does not change it.
    even = tf.range(shape[0])[:, None] % 2 == 0
    changed = tf.where(even, average, -average)
    other = one._replace(tensors=(gradient, changed, moments, *others))
    (before,), (after,) = (solve(get(backend), [part]) for part in (one, other))
    np.testing.assert_array_equal(after[::2], before[::2])
    assert (after[1::2] != before[1::2]).any()


@pytest.mark.parametrize("backend", ["ridge", "sign", *HOST])
def test_a_step_without_couplings(backend):
    """The first step of a layer whose inputs were all zero."""
    n, m = 5, 2
    gradient = tf.constant(np.random.default_rng(0).normal(size=(n, m)))
    gradient = tf.cast(gradient, tf.float32)
    one = ops.LayerProblems(
        averaged,
        (gradient, gradient, tf.zeros((1, n, n)), tf.constant(0.5), None),
        (n, m),
    )
    (states,) = solve(get(backend), [one])
    np.testing.assert_array_equal(states, np.sign(gradient))


# Starts


class Starts(kq.backends.Backend):
    """Stores the problems and returns states that are worse than the start."""

    warm_start = True

    def __init__(self):
        super().__init__()
        self.received = []

    def sample(self, qubo, seed):
        self.received.append(qubo)
        shape = (1, qubo.num_variables, qubo.num_columns)
        return np.ones(shape), {}


@pytest.mark.parametrize("blocks", [1, 2])
def test_starts_on_the_host(blocks):
    one = layer(9, 3, blocks, seed=4, with_start=True)
    start, backend = one.tensors[-1].numpy(), Starts()
    (states,) = solve(backend, [one])
    fields, _ = fields_of(one)
    wanted = np.where(start == 0, np.where(fields > 0, -1, 1), start)
    assert len(backend.received) == blocks
    for block, qubo in enumerate(backend.received):
        part = wanted[block::blocks]
        np.testing.assert_array_equal(qubo.start[: len(part)], part)
        assert set(np.unique(qubo.start)) <= {-1, 1}  # also the padding
        found = np.ones(qubo.fields.shape)
        found[: len(part)] = np.where(
            states[block::blocks] == 0, part, states[block::blocks]
        )
        slack = 1e-6 * np.abs(qubo.fields).sum()
        assert (qubo.energy(found) <= qubo.energy(qubo.start) + slack).all()


def test_search_is_never_worse_than_its_start():
    (problem,) = layer(40, 6, 1, seed=3, with_start=True).problems()
    good = get("simulated_annealing").solve(qubo_of(problem)).states
    for start in (good, problem.start.numpy()):
        start = np.float32(start)
        given = problem._replace(start=tf.constant(start), informative=None)
        found = get("native").solve_in_graph(given, tf.constant([1, 2]))
        qubo = qubo_of(problem)
        slack = 1e-6 * np.abs(qubo.couplings).sum()
        assert (qubo.energy(found) <= qubo.energy(start) + slack).all()


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_warm_step_is_nearly_a_plain_sweep(
    on_gpu, monkeypatch, nothing_compiled
):
    monkeypatch.setattr(products, "on_gpu", lambda: on_gpu)
    backend = kq.backends.get("native")
    one = layer(37, 3, 2, seed=5, with_start=True)
    (states,) = solve(backend, [one])
    for block, problem in enumerate(one.problems()):
        qubo = qubo_of(problem)
        g = np.float64(problem.start)
        for i in range(len(g)):
            others = qubo.couplings[i] @ g - qubo.couplings[i, i] * g[i]
            g[i] = np.where(others + qubo.fields[i] / 2 <= 0, 1.0, -1.0)
        ascends = (qubo.fields * g).sum(axis=0) > 0
        g = np.where(ascends, -g, g)
        found = np.array(g)
        part = states[block::2]
        found[: len(part)] = np.where(part == 0, g[: len(part)], part)
        energy, plain = qubo.energy(found).mean(), qubo.energy(g).mean()
        start = qubo.energy(np.float64(problem.start)).mean()
        assert energy - plain < 0.03 * (start - plain)


def qubo_of(problem):
    return kq.Qubo(np.float64(problem.couplings), np.float64(problem.fields))


class Follows(kq.backends.GraphBackend):
    """Tells whether `start`, `search` or `follow` was used."""

    warm_start = True
    can_ascend = False

    def __init__(self, compiled):
        super().__init__()
        self.compiled = compiled

    def start(self, problem):
        return ops.sign(problem.fields)

    def search(self, problem, seed):
        return problem.start

    def follow(self, problem, seed):
        return -problem.start


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("shape", [(5, 4), (40, 20)], ids=str)
def test_start_and_follow(compiled, shape):
    """Compiled or not, searches get a start and warm steps use `follow`."""
    backend = Follows(compiled)
    cold, warm = (layer(*shape, 1, 6, with_start=w) for w in (False, True))
    held = ~cold.problems()[0].informative.numpy()
    (found,) = solve(backend, [cold])
    expected = np.where(fields_of(cold)[0] >= 0, 1.0, -1.0)
    np.testing.assert_array_equal(found, np.where(held, 0.0, expected))
    (found,) = solve(backend, [warm])
    expected = -warm.problems()[0].start.numpy()
    np.testing.assert_array_equal(found, np.where(held, 0.0, expected))
