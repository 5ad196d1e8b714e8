"""Large constants and penalties do not change the solutions."""

import itertools

import dimod
import numpy as np
import pytest

import keras_qpsbgd as kq
from keras_qpsbgd.backends import block_descent

pytestmark = pytest.mark.once

EXACT = ["native", "exact"]


def model(n, seed, vartype="SPIN", offset=0.0, penalties=0):
    """Draws a random model with this many penalties of 1e8."""
    rng = np.random.default_rng(seed)
    linear = rng.normal(size=n)
    quadratic = np.triu(rng.normal(size=(n, n)), 1)
    for i, j in itertools.islice(zip(*np.triu_indices(n, 1)), penalties):
        quadratic[i, j] = rng.choice([-1e8, 1e8])
    linear[-1] += 1e8 * (penalties > 1)
    return dimod.BinaryQuadraticModel(linear, quadratic, offset, vartype)


def gap(bqm, states):
    """Returns the energy above the minimum, without the offset."""
    bqm = bqm.copy()
    bqm.offset = 0.0
    lowest = dimod.ExactSolver().sample(bqm).first.energy
    return bqm.energy(states) - lowest


@pytest.mark.parametrize("backend", [*EXACT, "gurobi", "simulated_annealing"])
@pytest.mark.parametrize("vartype, offset", [("SPIN", -1e8), ("BINARY", 1e12)])
def test_offsets(backend, vartype, offset):
    sampler = kq.backends.as_sampler(backend)
    for seed in range(3):
        bqm = model(9, seed, vartype, offset)
        found = sampler.sample(bqm).first
        assert gap(bqm, found.sample) < 1e-6
        np.testing.assert_allclose(found.energy, bqm.energy(found.sample))


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("vartype, penalties", [("SPIN", 5), ("BINARY", 1)])
def test_penalties(backend, vartype, penalties):
    sampler = kq.backends.as_sampler(backend)
    for n, seed in itertools.product((2, 13), range(2)):
        bqm = model(n, seed, vartype, penalties=penalties)
        assert gap(bqm, sampler.sample(bqm).first.sample) < 1e-6


@pytest.mark.parametrize("backend", EXACT)
def test_a_large_diagonal_and_wide_ranges(backend):
    rng = np.random.default_rng(0)
    couplings = rng.normal(size=(8, 8))
    couplings += couplings.T
    fields = rng.normal(size=(8, 3))
    backend = kq.backends.get(backend)
    expected = backend.solve(kq.Qubo(couplings, fields)).states
    shifted = kq.Qubo(couplings + 1e12 * np.eye(8), fields)
    np.testing.assert_array_equal(backend.solve(shifted).states, expected)
    for scale in (1e-60, 1e60):  # beyond float32
        scaled = kq.Qubo(scale * couplings, scale * fields)
        np.testing.assert_array_equal(backend.solve(scaled).states, expected)


@pytest.mark.parametrize(
    "name",
    [
        "sign",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("ridge", "native")),
    ],
)
def test_other_backends_and_ranges_beyond_float32(name):
    rng = np.random.default_rng(0)
    rows, v = rng.normal(size=(40, 20)), rng.normal(size=(40, 3))
    qubo = kq.Qubo.from_rows(rows, v)
    backend = kq.backends.get(name)
    expected = backend.solve(qubo).states
    for scale in (2.0**-200, 2.0**200):
        scaled = kq.Qubo(scale * qubo.couplings, scale * qubo.fields, 1e9)
        np.testing.assert_array_equal(backend.solve(scaled).states, expected)


@pytest.mark.parametrize("penalties", [1, 30])
def test_searches_end_in_a_local_optimum(penalties):
    """The problem has small numbers that are lost in float32."""
    backend = kq.backends.get("native")
    for seed in range(2):
        qubo = kq.Qubo.from_bqm(model(24, seed, penalties=penalties))
        states = backend.solve(qubo).states.astype(float)
        forces = 2 * qubo.couplings @ states + qubo.fields
        assert (states * forces <= 1e-6).all()


def test_best_read_with_a_large_offset():
    class Reads(kq.backends.Backend):
        def sample(self, qubo, seed):
            return np.array([[[1], [1]], [[-1], [1]]]), {}

    fields = np.array([[1e-3], [-3e-3]])
    solution = Reads().solve(kq.Qubo(np.zeros((2, 2)), fields, 1e16))
    np.testing.assert_array_equal(solution.states, [[-1], [1]])


@pytest.mark.parametrize("constant", [0.0, 1e9])
def test_blocks_improve_despite_a_penalty(constant):
    """A block with a large coupling is still solved to the optimum."""
    couplings = np.zeros((4, 4))
    couplings[0, 1] = couplings[1, 0] = -1e9
    couplings[2, 3] = couplings[3, 2] = -0.6
    couplings += constant * np.eye(4)
    # Starting from the signs of the fields, flipping the last two variables
    # together lowers the energy.
    qubo = kq.Qubo(couplings, np.array([[-1.0], [-1.0], [-0.2], [1.0]]))
    solve = kq.backends.get("exact").solve
    states, _ = block_descent.solve(qubo, 0, 4, solve, 1)
    np.testing.assert_array_equal(states[:, 0], [1, 1, -1, -1])
