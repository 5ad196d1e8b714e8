"""Tests `direction_test` against scipy's binomial test."""

import math

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

import keras_qpsbgd as kq

pytestmark = pytest.mark.once

ALTERNATIVES = ("two-sided", "greater", "less")
COUNTS = [
    (0, 1),
    (1, 1),
    (5, 10),
    (6, 10),
    (0, 40),
    (13, 13),
    (490, 1000),
    (600, 1000),
    (50_100, 100_000),
    (499_000, 1_000_000),
    (60_000, 100_000),  # a p-value of zero
]


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("agreed, total", COUNTS)
def test_p_value(agreed, total, alternative):
    states = np.ones(total)
    gradient = np.where(np.arange(total) < agreed, 0.1, -7.0)
    test = kq.analysis.direction_test(states, gradient, alternative)
    expected = stats.binomtest(agreed, total, 0.5, alternative)
    assert test.agreement == expected.statistic
    assert test.comparisons == total
    np.testing.assert_allclose(
        test.p_value, expected.pvalue, rtol=1e-8, atol=1e-300
    )
    if total > 100_000:
        # For many comparisons the binomial distribution is normal.
        tail = {"greater": test.z, "less": -test.z, "two-sided": abs(test.z)}
        normal = stats.norm.sf(tail[alternative])
        normal *= 2 if alternative == "two-sided" else 1
        assert test.p_value == pytest.approx(normal, rel=0.05)


def test_known_answer():
    states = np.array([[1, -1], [1, 0], [-1, 1]], np.int8)
    gradient = np.array([[0.5, 2.0], [0.0, 1.0], [-1e-9, 3.0]])
    test = kq.analysis.direction_test(states, gradient)
    # Four comparisons: yes, no, yes, yes.
    assert (test.agreed, test.comparisons) == (3, 4)
    assert test.agreement == 0.75
    assert test.z == 0.25 / math.sqrt(1 / 16)
    assert test.p_value == pytest.approx(2 * (1 + 4) / 16)


def test_lists_of_arrays():
    layers = [np.ones((2, 3)), -np.ones(4)]
    test = kq.analysis.direction_test(layers, [layers[0], -layers[1]])
    assert (test.agreed, test.comparisons) == (6, 10)


def test_nothing_to_compare():
    test = kq.analysis.direction_test(np.zeros(3), np.ones(3))
    assert test.comparisons == 0
    assert all(map(math.isnan, (test.agreement, test.z, test.p_value)))


def test_errors():
    with pytest.raises(ValueError, match="same shapes.*Received: "):
        kq.analysis.direction_test(np.ones(3), np.ones(4))
    with pytest.raises(ValueError, match="`alternative` .*Received: "):
        kq.analysis.direction_test(np.ones(3), np.ones(3), "more")


def test_plot():
    tests = {
        "first": kq.analysis.DirectionTest(60, 100),
        "second": kq.analysis.DirectionTest(5, 10),
    }
    ax = Figure().subplots()
    assert kq.analysis.plot_direction_test(tests, ax) is ax
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
