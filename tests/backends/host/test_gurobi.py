"""Gurobi, with the license that comes with pip."""

import gurobipy
import numpy as np
import pytest
import tools
from tensorflow import keras

import keras_qpsbgd as kq

pytestmark = pytest.mark.once


def qubo(n, m, seed=0, scale=1.0):
    rows, v = tools.rows_and_gradients(seed, batch=24, n=n, m=m)
    return kq.Qubo.from_rows(rows, scale * v)


@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_equals_enumeration(scale):
    gurobi = kq.backends.get("gurobi")
    for n in (2, 9, 16):
        problem = qubo(n, 8, seed=n, scale=scale)
        best = kq.backends.get("exact").solve(problem).energies
        solution = gurobi.solve(problem)
        np.testing.assert_allclose(
            solution.energies, best, atol=1e-6 * problem.random_energy().min()
        )
        assert solution.info["proven_optimal"].all()
        assert solution.info["work"] > 0


def test_close_releases_the_license():
    gurobi = kq.backends.get("gurobi")
    problem = qubo(6, 2)
    before = gurobi.solve(problem).states
    env, _ = gurobi._handle
    gurobi.close()
    gurobi.close()  # closing twice is allowed
    with pytest.raises(gurobipy.GurobiError):
        gurobipy.Model(env=env)
    np.testing.assert_array_equal(gurobi.solve(problem).states, before)


def test_work_limit_is_deterministic_and_reported():
    problem = qubo(40, 2, scale=0.05)
    config = {"name": "gurobi", "work_limit": 0.05}
    first, second = (kq.backends.get(config).solve(problem) for _ in range(2))
    assert not first.info["proven_optimal"].any()
    np.testing.assert_array_equal(first.states, second.states)
    assert first.info["work"] == second.info["work"]
    assert (first.energies < problem.random_energy()).all()


def test_large_column_does_not_affect_the_others():
    problem = qubo(8, 3)
    fields = problem.fields * [1.0, 1e7, 1.0]
    problem = kq.Qubo(problem.couplings, fields)
    best = kq.backends.get("exact").solve(problem.columns(0, 1)).energies
    found = kq.backends.get("gurobi").solve(problem).energies[:1]
    np.testing.assert_allclose(found, best, rtol=1e-6)


@pytest.mark.slow
def test_layer_too_wide_for_the_license():
    """Raises before training starts."""
    model = keras.Sequential(
        [keras.layers.InputLayer((201,)), kq.layers.BinaryDense(2)]
    )
    message = "(?s)200 inputs.*block_size.*native.*Received"
    opt = kq.QPSBGD(backend="gurobi", rule="paper")
    opt.build(model.trainable_variables)
    model.compile(opt, "mse")
    before = model.get_weights()
    with pytest.raises(kq.backends.BackendUnavailable, match=message):
        model.fit(np.ones((4, 201)), np.ones((4, 2)), verbose=0)
    tools.assert_equal(model.get_weights(), before)
    # The fix that the message proposes works.
    backend = {"name": "gurobi", "block_size": 200, "block_sweeps": 1}
    opt = kq.QPSBGD(backend=backend, rule="paper")
    opt.build(model.trainable_variables)
    model.compile(opt, "mse")
    model.fit(np.ones((4, 201)), np.ones((4, 2)), verbose=0)
    assert not np.array_equal(model.get_weights()[0], before[0])


@pytest.mark.parametrize(
    "code, expected",
    [
        ("NO_LICENSE", kq.backends.BackendUnavailable),
        ("SIZE_LIMIT_EXCEEDED", kq.backends.BackendUnavailable),
        ("NETWORK", kq.backends.TransientError),
        ("OUT_OF_MEMORY", kq.backends.SolverError),
    ],
)
def test_gurobi_errors_are_translated(code, expected, monkeypatch):
    number = getattr(gurobipy.GRB.Error, code)

    def fails(*args, **kwargs):
        raise gurobipy.GurobiError(number, "no")

    monkeypatch.setattr(gurobipy, "Env", fails)
    gurobi = kq.backends.get({"name": "gurobi", "retries": 0})
    with pytest.raises(expected, match=f"Gurobi error {number}") as raised:
        gurobi.solve(qubo(3, 1))
    assert type(raised.value) is expected
