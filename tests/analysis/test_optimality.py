"""The gap to the optimum, against an enumeration and by hand."""

import numpy as np
import pytest
import tools

import keras_qpsbgd as kq

pytestmark = pytest.mark.once


def solution(qubo, states):
    states = np.asarray(states, np.int8)
    return kq.backends.Solution(states, qubo.energy(states))


def test_by_hand():
    """Energies g1 + 2 g2 + 7: the optimum is 4, the mean is 7, the worst 10."""
    qubo = kq.Qubo(np.zeros((2, 2)), [[1.0], [2.0]], [7.0])
    found = kq.analysis.optimality_gap(
        qubo,
        {
            "best": solution(qubo, [[-1], [-1]]),
            "second": solution(qubo, [[1], [-1]]),
            "worst": solution(qubo, [[1], [1]]),
        },
    )
    np.testing.assert_allclose(found.gaps[:, 0], [0, 2 / 3, 2])
    np.testing.assert_allclose(found.energies[:, 0], [4, 6, 10])
    assert (found.best[0], found.random[0], found.is_exact) == (4, 7, True)
    relative = kq.analysis.optimality_gap(
        qubo, solution(qubo, [[1], [-1]]), best=5.0
    )
    np.testing.assert_allclose(relative.gaps, [[0.5]])
    assert relative.names == ["solution"] and not relative.is_exact


def test_against_an_enumeration():
    qubo = kq.Qubo.from_rows(*tools.rows_and_gradients())
    energies = np.stack([qubo.energy(g) for g in tools.all_states(6).T])
    best, random = energies.min(axis=0), energies.mean(axis=0)
    found = kq.analysis.optimality_gap(
        qubo, {"exact": "exact", "sign": {"name": "sign"}}
    )
    np.testing.assert_allclose(found.best, best)
    np.testing.assert_allclose(found.random, random)
    np.testing.assert_allclose(found.gaps[0], 0.0, atol=1e-12)
    sign = qubo.energy(np.where(qubo.fields > 0, -1, 1))
    np.testing.assert_allclose(
        found.gaps[1], (sign - best) / (random - best), atol=1e-12
    )
    assert found.gaps[1].max() > 0


def test_best_known_above_20_variables():
    rows, v = tools.rows_and_gradients(n=21)
    qubo = kq.Qubo.from_rows(rows, v)
    found = kq.analysis.optimality_gap(qubo, {"a": "sign", "b": "ridge"})
    assert not found.is_exact
    np.testing.assert_allclose(found.gaps.min(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(found.best, found.energies.min(axis=0))


def test_column_without_fields_and_couplings():
    qubo = kq.Qubo(np.eye(2), np.zeros((2, 1)))
    found = kq.analysis.optimality_gap(qubo, solution(qubo, [[1], [-1]]))
    np.testing.assert_array_equal(found.gaps, [[0.0]])


def test_small_gaps_next_to_a_large_offset():
    """The offset is 1e12 times the difference, below float64's rounding."""
    qubo = kq.Qubo(np.zeros((1, 1)), [[1e-6]], [1e12])
    found = kq.analysis.optimality_gap(qubo, solution(qubo, [[1]]))
    np.testing.assert_allclose(found.gaps, [[2.0]])


def test_errors():
    qubo = kq.Qubo(np.zeros((2, 2)), [[1.0], [2.0]])
    other = kq.Qubo(np.zeros((1, 1)), [[1.0]])
    for arguments, message in (
        ((qubo, {}), "at least one solver. Received"),
        ((qubo, solution(other, [[1]])), "states of shape.*Received"),
        (("hidden", "sign"), "`qubo` must be a `Qubo`. Received: str"),
    ):
        with pytest.raises(ValueError, match=message):
            kq.analysis.optimality_gap(*arguments)


def test_table_and_plot():
    qubo = kq.Qubo(np.zeros((2, 2)), [[1.0, 1.0], [2.0, 2.0]], [7.0, 7.0])
    found = kq.analysis.optimality_gap(
        qubo, {"half": solution(qubo, [[-1, 1], [-1, 1]])}
    )
    assert str(found).splitlines()[2].split() == ["half", "1", "2", "50%"]
    assert "the optimum" in str(found)
    pytest.importorskip("matplotlib")
    ax = kq.analysis.plot_optimality_gap(found)
    points = ax.get_lines()[0]
    np.testing.assert_allclose(points.get_xdata(), [0.0, 2.0])
    assert [text.get_text() for text in ax.get_yticklabels()] == ["half"]
