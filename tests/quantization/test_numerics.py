"""The numerics of one layer, against independent calculations."""

import numpy as np
import pytest

from keras_qpsbgd import backends
from keras_qpsbgd.quantization.numerics import grid
from keras_qpsbgd.quantization.numerics import heuristics
from keras_qpsbgd.quantization.numerics.encodings import Full
from keras_qpsbgd.quantization.numerics.encodings import Rounding
from keras_qpsbgd.quantization.numerics.heuristics import Gptq
from keras_qpsbgd.quantization.numerics.layer import METHODS
from keras_qpsbgd.quantization.numerics.layer import quantize_layer
from keras_qpsbgd.quantization.numerics.output_error import Statistics
from keras_qpsbgd.quantization.numerics.output_error import fit_scales
from keras_qpsbgd.quantization.numerics.output_error import held_out_error

pytestmark = pytest.mark.once

ONCE = {"name": "native", "preset": "once"}


def layer(n, m, bias=True, rows=60, seed=0, same=False, groups=2):
    """Returns statistics of random, correlated rows, and the rows."""
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(groups, n, n))
    x = np.einsum("bgi,gij->bgj", rng.normal(size=(rows, groups, n)), mix) + 1
    quantized = x if same else x + 0.3 * rng.normal(size=x.shape)
    statistics = Statistics(rng.normal(size=(groups, n, m)), bias)
    half = rows // 2
    statistics.add(x[:half], quantized[:half])
    statistics.add(x[half:], quantized[half:])
    return statistics, x, quantized


def output_error(statistics, x, quantized, kernel, change=None):
    """The squared output error of each output, with the bias corrected."""
    change = statistics.bias_change(kernel) if change is None else change
    outputs = np.einsum("bgi,gij->bgj", quantized, kernel)
    targets = np.einsum("bgi,gij->bgj", x, statistics.kernel)
    rest = outputs + change - targets
    return (rest**2).sum(axis=0)[:, None]


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_nearest_levels(bits):
    largest = 2**bits - 1
    odd = np.arange(-largest, largest + 1, 2)
    values = np.linspace(-largest - 3, largest + 3, 1001) + 1e-6
    nearest = odd[np.abs(values[:, None] - odd).argmin(axis=1)]
    np.testing.assert_array_equal(grid.nearest_levels(values, bits), nearest)
    assert grid.nearest_levels(np.array([0.0, -0.0]), bits).tolist() == [1, 1]


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_weight_scales_are_close_to_the_best(bits):
    kernel = np.random.default_rng(0).normal(size=(50, 6))

    def error(scales):
        levels = grid.nearest_levels(kernel / scales, bits)
        return ((kernel - scales * levels) ** 2).sum(axis=0)

    scales = grid.weight_scales(kernel[None], bits)[0, 0]
    best = np.min([error(np.full(6, s)) for s in np.linspace(0.01, 3, 3000)], 0)
    assert (error(scales) <= 1.02 * best).all()
    assert grid.weight_scales(np.zeros((1, 4, 1)), bits) == 0.0


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_latent_kernel_has_the_levels(bits):
    rng = np.random.default_rng(0)
    largest = 2**bits - 1
    levels = 2.0 * rng.integers(2**bits, size=(40, 3)) - largest
    scales = np.array([0.2, 1.0, 0.0])
    kernel = rng.normal(size=(40, 3))
    latent = grid.latent_kernel(kernel, levels, scales, bits)
    assert np.abs(latent).max() <= 1
    found = np.clip(2 * np.floor(latent * largest / 2) + 1, -largest, largest)
    np.testing.assert_array_equal(found, levels)


@pytest.mark.parametrize("bias", [True, False])
def test_errors_are_those_of_the_outputs(bias):
    statistics, x, quantized = layer(6, 4, bias)
    problem = statistics.problem(damping=0.05)
    levels = 2.0 * np.random.default_rng(1).integers(4, size=(2, 6, 4)) - 3
    found = fit_scales(problem, levels)
    kernel = found.levels * found.scales
    expected = output_error(statistics, x, quantized, kernel)
    np.testing.assert_allclose(found.errors, expected, rtol=1e-9)
    assert (found.scales >= 0).all()
    # The scales and the changes of the bias are the best ones.
    for factor in (0.99, 1.01):
        other = output_error(statistics, x, quantized, factor * kernel)
        change = ((factor * kernel - statistics.kernel) ** 2).sum(
            axis=1, keepdims=True
        )
        assert (other + problem.delta * change >= found.damped).all()
        if bias:
            change = statistics.bias_change(kernel) + factor - 1.0
            other = output_error(statistics, x, quantized, kernel, change)
            assert (other >= expected).all()
    change = ((kernel - statistics.kernel) ** 2).sum(axis=1, keepdims=True)
    mean = np.trace(problem.couplings, axis1=1, axis2=2) / 6 / 1.05
    damped = expected + 0.05 * mean[:, None, None] * change
    np.testing.assert_allclose(found.damped, damped, rtol=1e-9)
    targets = np.einsum("bgi,gij->bgj", x, statistics.kernel)
    total = (targets**2).sum()
    assert problem.relative(expected) == pytest.approx(expected.sum() / total)

    change = statistics.bias_change(kernel)
    found = held_out_error(statistics.kernel, kernel, change, [(x, quantized)])
    assert found == pytest.approx(problem.relative(expected))


def test_groups_are_separate_layers():
    for method in METHODS:
        statistics, x, quantized = layer(12, 3, groups=3)
        alone = []
        for group in range(3):
            alone.append(Statistics(statistics.kernel[group], True))
            alone[-1].add(x[:, group], quantized[:, group])
        settings = {"bits": 1, "method": method, "backend": backends.get(ONCE)}
        together = quantize_layer(statistics, **settings)
        for group in range(3):
            result = quantize_layer(alone[group], **settings)
            np.testing.assert_array_equal(
                together.levels[group], result.levels[0]
            )
            np.testing.assert_allclose(together.scales[group], result.scales[0])
            np.testing.assert_allclose(
                together.bias_change[group], result.bias_change[0]
            )


@pytest.mark.parametrize("encoding", [Rounding, Full])
@pytest.mark.parametrize("bits", [1, 2, 3])
def test_energies_are_the_errors(bits, encoding):
    statistics, x, quantized = layer(4, 2, groups=1)
    problem = statistics.problem(damping=1e-13)
    largest = 2**bits - 1
    rng = np.random.default_rng(0)
    levels = 2.0 * rng.integers(2**bits, size=(4, 2)) - largest
    scales = np.array([0.3, 0.7])
    built = encoding(
        problem.couplings[0],
        problem.products[0] / scales,
        problem.constant[0, 0] / scales**2,
        levels,
        bits,
    )
    np.testing.assert_array_equal(built.levels(built.qubo.start), levels)
    n = built.qubo.num_variables
    assert n == (4 * bits if encoding is Full else 4)
    for _ in range(5):
        states = 2 * rng.integers(2, size=(n, 2)) - 1
        found = built.levels(states)
        assert np.abs(found).max() <= largest and (found % 2 == 1).all()
        kernel = (found * scales)[None]
        error = output_error(statistics, x, quantized, kernel)[0, 0]
        energies = built.qubo.energy(states) * scales**2
        np.testing.assert_allclose(energies, error, rtol=1e-6)


@pytest.mark.parametrize("bits", [1, 3])
def test_gptq_equals_the_published_algorithm(bits):
    statistics, *_ = layer(20, 5, same=True)
    problem = statistics.problem(0.01)
    scales = grid.weight_scales(statistics.kernel, bits)
    found = Gptq(problem).levels(scales, bits)
    for group in range(2):
        # The published form: Cholesky factor of the inverse, first to last.
        couplings = problem.couplings[group]
        order = np.argsort(-np.diag(couplings), kind="stable")
        inverse = np.linalg.inv(couplings[np.ix_(order, order)])
        upper = np.linalg.cholesky(inverse).T
        weights = np.linalg.solve(couplings, problem.products[group])[order]
        expected = np.zeros((20, 5))
        for i in range(20):
            levels = grid.nearest_levels(weights[i] / scales[group, 0], bits)
            expected[order[i]] = levels
            error = (weights[i] - levels * scales[group, 0]) / upper[i, i]
            weights[i + 1 :] -= np.outer(upper[i, i + 1 :], error)
        np.testing.assert_array_equal(found[group], expected)


@pytest.mark.parametrize("bits", [1, 2])
def test_descent_ends_where_no_single_change_helps(bits):
    statistics, *_ = layer(40, 6, rows=200)
    problem = statistics.problem(0.01)
    levels = grid.nearest_levels(statistics.kernel, bits)
    start = fit_scales(problem, levels)
    end = heuristics.descend(problem, start, bits)
    assert (end.damped <= start.damped).all()
    assert end.damped.sum() < start.damped.sum()
    largest = 2**bits - 1
    for i in range(40):
        for step in (-2, 2):
            levels = end.levels.copy()
            levels[:, i] = np.clip(levels[:, i] + step, -largest, largest)
            kernel = levels * end.scales
            other = (
                kernel * (problem.couplings @ kernel - 2 * problem.products)
            ).sum(axis=1, keepdims=True) + problem.constant
            assert (other >= end.damped * (1 - 1e-12)).all()


@pytest.mark.parametrize("bits, bias", [(1, True), (2, False), (4, True)])
def test_each_method_is_at_least_as_good_as_those_before_it(bits, bias):
    for number, method in enumerate(METHODS):
        statistics, x, quantized = layer(70, 8, bias, 150, groups=1)
        result = quantize_layer(statistics, bits, method, backends.get(ONCE))
        errors = result.errors
        assert tuple(errors) == METHODS[: number + 1]
        assert (result.solver["calls"] > 0) == (method == "qubo")
        error = output_error(statistics, x, quantized, result.kernel).sum()
        total = ((x[:, 0] @ statistics.kernel[0]) ** 2).sum()
        assert errors[method] == pytest.approx(error / total, rel=1e-6)
        assert result.levels.dtype == np.int8
        assert (result.levels % 2 == 1).all()
        assert np.abs(result.levels).max() <= (2**bits - 1)
    assert errors["qubo"] <= min(errors.values())
    assert errors["gptq+scales"] <= 1.01 * errors["gptq"]
    assert errors["descent+scales"] <= 1.01 * errors["gptq+scales"]
    assert (result.improved > 0) == (
        errors["qubo"] < errors["descent+scales"] * (1 - 1e-12)
    )


def test_proven_outputs():
    for name, proven in (("exact", 8), ("gurobi", 8), ("tabu", None)):
        backend = backends.get(
            {"name": name, "work_limit": None} if name == "gurobi" else name
        )
        result = quantize_layer(layer(10, 4)[0], 1, "qubo", backend)
        assert result.proven == proven
    # Many groups are not solved.
    many, *_ = layer(4, 1, groups=65)
    result = quantize_layer(many, 1, "qubo", backends.get(ONCE))
    assert result.improved is None and result.solver["calls"] == 0


def test_dead_inputs_get_the_nearest_levels():
    for method in METHODS:
        statistics, x, quantized = layer(6, 3)
        dead = Statistics(statistics.kernel, True)
        x[:, :, [1, 4]] = quantized[:, :, [1, 4]] = 0.0
        dead.add(x, quantized)
        result = quantize_layer(dead, 1, method, backends.get(ONCE))
        expected = np.where(dead.kernel >= 0, 1, -1)[:, [1, 4]]
        np.testing.assert_array_equal(result.levels[:, [1, 4]], expected)
        # No active input at all, and a kernel of zeros.
        statistics = Statistics(np.array([[0.5, 0.0], [-1.5, 0.0]]), True)
        statistics.add(np.zeros((3, 2)), np.zeros((3, 2)))
        result = quantize_layer(statistics, 1, method, backends.get(ONCE))
        np.testing.assert_array_equal(result.levels[0, :, 0], [1, -1])
        np.testing.assert_allclose(result.scales[0, 0], [1.0, 0.0])
        assert result.errors[method] == 0
