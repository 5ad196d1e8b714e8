"""Tests fixed points against an enumeration, and directions by hand."""

import itertools
import math

import numpy as np
from matplotlib.figure import Figure
from scipy import stats
from tensorflow import keras

import keras_qpsbgd as kq
from research.analysis import direction_test
from research.analysis.direction_test import DirectionTest
from research.analysis.fixed_points import FixedPoints

N, M, KAPPA = 4, 2, 3.0
ACTIVE = [0, 1, 3]  # the other input is zero in all samples


def data(seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(30, N))
    x[:, 2] = 0.0
    y = x @ rng.choice([-1.0, 1.0], size=(N, M)) + rng.normal(size=(30, M)) > 0
    return x.astype("float32"), y.astype("float32")


def network():
    layer = kq.layers.BinaryDense(M, use_bias=False)
    return keras.Sequential([keras.Input((N,)), layer])


def candidates():
    """All pairs of columns. The weight of the zero input is arbitrary."""
    columns = list(itertools.product((1.0, -1.0), repeat=len(ACTIVE)))
    for index, pair in enumerate(itertools.product(columns, repeat=M)):
        weights = np.full((N, M), 1.0 if index % 2 else -1.0)
        weights[ACTIVE] = np.transpose(pair)
        yield weights


def qubo_of_averages(x, v):
    """Returns the couplings and fields of the averaged rule."""
    couplings, gradient = x.T @ x / (x**2).sum(), x.T @ v
    others = couplings - np.diag(np.diag(couplings))
    force = np.sqrt((others**2).sum() / N)
    rms = np.sqrt((gradient**2).mean())
    return couplings, -2 * KAPPA * force * gradient / rms


def columns_at_fixed_points(x, y, weights):
    """Enumerates all states. Returns a list, one entry per column."""
    x, y = x.astype("float64"), y.astype("float64")
    outputs = x @ weights / np.sqrt(N)
    v = (1 / (1 + np.exp(-outputs)) - y) / np.sqrt(N) / y.size
    couplings, fields = qubo_of_averages(x, v)
    couplings = couplings[np.ix_(ACTIVE, ACTIVE)]
    found = []
    for column in range(M):
        energies = {}
        for active in itertools.product((1.0, -1.0), repeat=len(ACTIVE)):
            g = np.array(active)
            energies[active] = g @ couplings @ g + fields[ACTIVE, column] @ g
        best, second = sorted(energies, key=energies.get)[:2]
        gap = energies[second] - energies[best]
        assert gap > 1e-3 * np.ptp(list(energies.values()))  # not a tie
        found.append(np.array_equal(weights[ACTIVE, column], -np.array(best)))
    return found


def test_finds_exactly_the_fixed_points():
    x, y = data()
    model = network()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    callback = FixedPoints(network(), x, y, kappa=KAPPA, loss=loss)
    callback.set_model(model)
    found = []
    for weights in candidates():
        expected = columns_at_fixed_points(x, y, weights)
        model.layers[0].kernel.assign(0.3 * weights)
        assert list(callback.columns()[0]) == expected
        logs = {}
        callback.on_epoch_end(0, logs)
        assert logs == {"fixed_point": np.mean(expected)}
        found.append(np.mean(expected))
    assert {0.0, 0.5, 1.0} == set(found)
    callback.every = 2
    callback.on_epoch_end(0, logs)
    assert np.isnan(logs["fixed_point"])


def test_direction():
    none = DirectionTest(0, 0)
    assert math.isnan(none.agreement) and math.isnan(none.z)
    test = DirectionTest(3, 4)
    assert test.agreement == 0.75
    assert test.z == 0.25 / math.sqrt(1 / 16)
    tests = {"first": DirectionTest(60, 100), "second": DirectionTest(5, 10)}
    ax = Figure().subplots()
    direction_test.plot(tests, ax)
    assert [text.get_text() for text in ax.texts] == [
        "Z = 2.0, N = 100",
        "Z = 0.0, N = 10",
    ]
    ends = [line.get_segments()[0][:, 0] for line in ax.collections]
    for (low, high), test in zip(ends, tests.values()):
        interval = stats.binomtest(test.agreed, test.comparisons).proportion_ci(
            method="wilson"
        )
        np.testing.assert_allclose((low, high), interval, rtol=1e-9)
