"""The checks of `research.qpu_check` on a QPU; they use about 1 s of QPU time.

Skipped unless `KERAS_QPSBGD_QPU_TESTS=1` is set and a token is configured.
"""

import pytest

import keras_qpsbgd as kq

pytestmark = pytest.mark.once

pytest.importorskip("dwave.system")

from research.qpu_check import checks  # noqa: E402

BUDGET_SECONDS = 5.0


@pytest.fixture(scope="module")
def runner():
    row = {r.name: r for r in kq.backends.available()}["dwave"]
    if not row.available:
        pytest.skip(row.missing)
    backend = kq.backends.get("dwave")
    try:
        sampler = backend.open().sampler
    except kq.backends.BackendUnavailable as error:
        pytest.skip(str(error))
    yield checks.Runner(sampler, BUDGET_SECONDS)
    backend.close()


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda c: c.name)
def test_check_passes(runner, check):
    outcome = runner.run(check)
    assert outcome.passed, (outcome.error, outcome.findings)


def test_budget_holds(runner):
    assert runner.charged <= BUDGET_SECONDS
