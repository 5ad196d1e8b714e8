"""How QUBOs change: a run whose changes are known by hand."""

import numpy as np
import pytest

import keras_qpsbgd as kq

pytestmark = pytest.mark.once


def run():
    """Three updates of `a`, and one of `b` between them."""
    diagonal = np.diag([5.0, 7.0])  # constant for spins, so it must not count
    exchange = np.array([[0.0, 1.0], [1.0, 0.0]])
    updates = [
        (0, "a", 3 * exchange, [[3.0], [4.0]], [[1], [1]]),
        (0, "b", exchange, [[1.0], [1.0]], [[1], [1]]),
        (10, "a", 3 * exchange, [[-4.0], [3.0]], [[1], [-1]]),
        (20, "a", 6 * exchange, [[-8.0], [6.0]], [[0], [1]]),
        (30, "a", 6 * exchange, [[0.0], [0.0]], [[0], [0]]),
        (40, "a", 0 * exchange, [[1.0], [0.0]], [[1], [1]]),
    ]
    return kq.analysis.Run(
        updates=[
            kq.analysis.Update(
                step, layer, kq.Qubo(q + diagonal, fields), np.array(states)
            )
            for step, layer, q, fields, states in updates
        ]
    )


def test_evolution():
    found = kq.analysis.qubo_evolution(run(), "a")
    nan = np.nan
    np.testing.assert_array_equal(found.steps, [0, 10, 20, 30, 40])
    norms = np.sqrt(2) * np.array([3, 3, 6, 6, 0])
    np.testing.assert_allclose(found.coupling_norms, norms)
    np.testing.assert_allclose(found.field_norms, [5, 5, 10, 0, 1])
    np.testing.assert_allclose(found.coupling_changes, [nan, 0, 1, 0, 1])
    # From (3, 4) to (-4, 3), to twice that, to nothing, and from nothing.
    changes = [nan, np.sqrt(2), 1, 1, nan]
    np.testing.assert_allclose(found.field_changes, changes)
    np.testing.assert_allclose(
        found.field_cosines, [nan, 0, 1, nan, nan], atol=1e-12
    )
    # One of two; the only one that moved twice; none moved twice.
    np.testing.assert_allclose(found.changed_states, [nan, 0.5, 1, nan, nan])


def test_layers_of_the_same_name():
    one = run().updates[0]
    qubo = kq.Qubo(np.eye(3), np.ones((3, 1)))
    other = kq.analysis.Update(9, "a", qubo, np.ones((3, 1)))
    both = kq.analysis.Run(updates=[one, other])
    found = kq.analysis.qubo_evolution(both, "a")
    np.testing.assert_array_equal(found.steps, [0, 9])
    assert np.isnan(found.field_changes).all()
    assert np.isnan(found.changed_states).all()


def test_plot():
    pytest.importorskip("matplotlib")
    ax = kq.analysis.plot_qubo_evolution(kq.analysis.qubo_evolution(run(), "a"))
    lines = {line.get_label(): line for line in ax.get_lines()}
    cosines = lines["fields: cosine to the previous"]
    np.testing.assert_array_equal(cosines.get_xdata(), [0, 10, 20, 30, 40])
    assert cosines.get_ydata()[2] == pytest.approx(1.0)
    assert ax.get_title().startswith("a")
