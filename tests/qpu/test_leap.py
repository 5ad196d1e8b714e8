"""Tests on a real QPU and the hybrid solver; they use about 0.2 s of QPU time.

Skipped unless `KERAS_QPSBGD_QPU_TESTS=1` is set and a token is configured.
"""

import numpy as np
import pytest

import keras_qpsbgd as kq

pytestmark = pytest.mark.once


@pytest.fixture(params=["dwave", "leap_hybrid"])
def backend(request):
    pytest.importorskip("dwave.system")
    row = {r.name: r for r in kq.backends.available()}[request.param]
    if not row.available:
        pytest.skip(row.missing)
    config = {"name": request.param}
    if request.param == "dwave":
        config["qpu_budget_seconds"] = 0.3
    backend = kq.backends.get(config)
    try:
        backend.check(8, 4)
    except kq.backends.BackendUnavailable as error:
        pytest.skip(str(error))
    return backend


def test_small_columns_are_solved_exactly(backend):
    rng = np.random.default_rng(0)
    rows, v = rng.normal(size=(12, 8)), rng.normal(size=(12, 4))
    problem = kq.Qubo.from_rows(rows, v)
    solution = backend.solve(problem)
    best = kq.backends.get("exact").solve(problem).energies
    np.testing.assert_allclose(solution.energies, best, rtol=1e-5)
    assert solution.info["calls"] == 1
    assert solution.info["qpu_access_time"] > 0


def test_estimate_is_close_to_the_charged_time(backend):
    if backend.name != "dwave":
        pytest.skip("the hybrid solver has no estimate")
    rng = np.random.default_rng(1)
    rows, v = rng.normal(size=(12, 8)), rng.normal(size=(12, 4))
    solution = backend.solve(kq.Qubo.from_rows(rows, v))
    charged = 1e-6 * solution.info["qpu_access_time"]
    assert charged == pytest.approx(backend.estimate(8, 4), rel=0.3)
