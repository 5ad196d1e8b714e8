"""Tests `direction_test` by hand."""

import math

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

import keras_qpsbgd as kq

pytestmark = pytest.mark.once


def test_known_answer():
    states = np.array([[1, -1], [1, 0], [-1, 1]], np.int8)
    gradient = np.array([[0.5, 2.0], [0.0, 1.0], [-1e-9, 3.0]])
    test = kq.analysis.direction_test(states, gradient)
    # Four comparisons: yes, no, yes, yes.
    assert (test.agreed, test.comparisons) == (3, 4)
    assert test.agreement == 0.75
    assert test.z == 0.25 / math.sqrt(1 / 16)
    assert test.p_value == pytest.approx(2 * (1 + 4) / 16)
    for alternative, expected in (("greater", 5 / 16), ("less", 15 / 16)):
        test = kq.analysis.direction_test(states, gradient, alternative)
        assert test.p_value == pytest.approx(expected)


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
