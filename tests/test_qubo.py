"""Tests of `Qubo` and `binary_map`."""

import dimod
import numpy as np
import pytest
import tensorflow as tf
import tools

import keras_qpsbgd as kq
from keras_qpsbgd.layers import statistics
from keras_qpsbgd.optimizers import paper_rule
from keras_qpsbgd.qubo import blocks


@pytest.mark.once
@pytest.mark.parametrize("kind", ["normal", "pm1", "sparse"])
def test_energy_is_the_sum_of_squared_residuals(kind):
    rows, v = tools.rows_and_gradients(kind=kind)
    qubo = kq.Qubo.from_rows(rows, v)
    rng = np.random.default_rng(1)
    for _ in range(10):
        g = rng.choice([-1.0, 1.0], size=(6, 3))
        expected = np.zeros(3)
        for x, vb in zip(rows, v):
            z = x / (x @ x) if x.any() else x
            expected += (vb - z @ g) ** 2
        np.testing.assert_allclose(qubo.energy(g), expected, rtol=1e-12)
        assert (qubo.energy(g) >= 0).all()


@pytest.mark.once
def test_rows_without_gradient_are_left_out():
    rows, v = tools.rows_and_gradients()
    v[3] = 0.0
    v[5, 0] = 0.0  # a row with a single zero entry is kept
    kept = np.delete(rows, 3, axis=0), np.delete(v, 3, axis=0)
    a, b = kq.Qubo.from_rows(rows, v), kq.Qubo.from_rows(*kept)
    np.testing.assert_allclose(a.couplings, b.couplings)
    np.testing.assert_allclose(a.fields, b.fields)


@pytest.mark.once
def test_graph_formulas_agree_with_numpy():
    """Some rows are zero, and one has no gradient."""
    rows, v = tools.rows_and_gradients(kind="sparse")
    v[2] = 0.0
    assert rows[2].any() and not rows.any(axis=1).all()
    qubo = kq.Qubo.from_rows(rows, v)
    z, v = statistics.normalized(tf.constant(rows), tf.constant(v))
    (problem,) = paper_rule.problems(
        tf.matmul(z, v, transpose_a=True),
        blocks.second_moments(z, (1, 6, 6)),
    )
    np.testing.assert_allclose(problem.fields, qubo.fields, atol=1e-5)
    np.testing.assert_allclose(problem.couplings, qubo.couplings, atol=1e-6)


@pytest.mark.once
def test_to_bqm_and_back():
    qubo = kq.Qubo.from_rows(*tools.rows_and_gradients())
    states = tools.all_states(6)
    for column in range(3):
        bqm = qubo.to_bqm(column)
        assert bqm.vartype is dimod.SPIN
        energies = bqm.energies((states.T, range(6)))
        one = kq.Qubo(
            qubo.couplings,
            np.repeat(qubo.fields[:, [column]], states.shape[1], axis=1),
            qubo.offset[column],
        )
        np.testing.assert_allclose(energies, one.energy(states), rtol=1e-10)
        for model in (bqm, bqm.change_vartype("BINARY", inplace=False)):
            back = kq.Qubo.from_bqm(model)
            for state in states.T[::9]:
                np.testing.assert_allclose(
                    back.energy(state), bqm.energy(dict(enumerate(state)))
                )


@pytest.mark.once
def test_random_energy_is_the_mean_over_all_states():
    qubo = kq.Qubo.from_rows(*tools.rows_and_gradients(m=1))
    energies = [qubo.energy(state)[0] for state in tools.all_states(6).T]
    np.testing.assert_allclose(qubo.random_energy()[0], np.mean(energies))


@pytest.mark.once
@pytest.mark.parametrize(
    "make, name",
    [
        (lambda: kq.Qubo(np.eye(2), np.ones(2)), "fields"),
        (lambda: kq.Qubo(np.eye(3), np.ones((2, 1))), "couplings"),
        (lambda: kq.Qubo(None, np.ones((2, 1))), "couplings"),
        (lambda: kq.Qubo.from_rows(np.ones((3, 2)), np.ones(4)), "rows"),
        (lambda: kq.Qubo.from_rows(np.ones(3), np.ones(3)), "rows"),
        (lambda: kq.Qubo(np.eye(2), np.eye(2)).energy(np.ones(3)), "states"),
    ],
)
def test_wrong_shapes(make, name):
    with pytest.raises(ValueError, match=f"`{name}`.*Received: "):
        make()


@pytest.mark.once
def test_binary_map():
    rows, v = tools.rows_and_gradients()
    best = kq.binary_map(rows, v)
    assert best.shape == (6, 3) and best.dtype == np.int8
    qubo = kq.Qubo.from_rows(rows, v)
    for column in range(3):
        one = kq.Qubo.from_rows(rows, v[:, column])
        lowest = min(one.energy(state)[0] for state in tools.all_states(6).T)
        np.testing.assert_allclose(qubo.energy(best)[column], lowest, rtol=1e-6)
        single = kq.binary_map(rows, v[:, column])
        assert single.shape == (6,)
    np.testing.assert_array_equal(kq.binary_map(rows, v.tolist()), best)
    with pytest.raises(kq.backends.BackendUnavailable, match="at most 20"):
        kq.binary_map(np.ones((2, 21)), np.ones(2))
