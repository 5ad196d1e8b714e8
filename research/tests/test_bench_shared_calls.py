"""The suite `shared-calls`."""

import numpy as np
import pytest
from scipy import special

from research.bench.annealer import call_cpu
from research.bench.annealer import shared_calls
from research.bench.harness import Options

pytestmark = pytest.mark.once


@pytest.mark.parametrize("shift", [-0.001, 0.0, 0.0015, 0.004])
def test_non_inferiority(shift):
    """The p-value of Student's t, by its incomplete beta function."""
    rng = np.random.default_rng(0)
    own = rng.normal(0.01, 0.003, 30)
    shared = own + shift + rng.normal(0.0, 0.003, 30)
    mean, error, p = shared_calls.compare(shared, own, 0.002)
    pairs = shared - own
    assert mean == pytest.approx(pairs.mean())
    assert error == pytest.approx(
        np.sqrt(((pairs - pairs.mean()) ** 2).sum() / 29 / 30)
    )
    t = (mean - 0.002) / error
    tail = 0.5 * special.betainc(29 / 2, 1 / 2, 29 / (29 + t**2))
    assert p == pytest.approx(tail if t < 0 else 1 - tail)


def test_differences_without_noise():
    same = [0.25, 0.5]
    assert shared_calls.compare(same, same, 0.001)[2] == 0.0
    assert shared_calls.compare([0.5, 0.75], same, 0.25)[2] == 1.0


def test_noise_does_not_pass():
    own = np.zeros(4)
    noisy = [0.1, -0.1, 0.1, -0.1]  # no difference in the mean
    assert shared_calls.compare(noisy, own, 0.002)[2] > shared_calls.LEVEL


def test_cpu_time_of_a_call(monkeypatch):
    monkeypatch.setattr(call_cpu, "NETWORKS", {"4-3-2": (4, 3, 2)})
    monkeypatch.setattr(call_cpu, "BLOCKS", {"4-3-2": (2, 3)})
    (row,) = call_cpu.measure(Options(quick=True))
    assert (row["network"], row["chip"], row["calls"]) == ("4-3-2", "P16", 1)
    assert 0 < row["sample_ms"] and 0 < row["backend_ms"]
    assert row["ratio"] > 0


def test_table_and_verdicts():
    rng = np.random.default_rng(0)
    own = {
        "gap": rng.uniform(0.0, 0.01, 30).tolist(),
        "breaks": rng.uniform(0.0, 0.001, 30).tolist(),
        "seconds": 30 * [0.0924],
    }
    shared = {
        "gap": (np.array(own["gap"]) + 0.003).tolist(),
        "breaks": own["breaks"],
        "seconds": 30 * [0.0368],
    }
    row = {
        "network": "64-64-10",
        "chip": "Z12",
        "calls": 11,
        "sample_ms": 800.0,
        "backend_ms": 1000.0,
        "ratio": 1.25,
    }
    results = {1: {"own": own, "shared": shared, "cpu": [row]}}
    text = shared_calls.table(results)
    assert all(len(line) <= 80 for line in text.splitlines())
    found = {t.split(":")[0]: ok for ok, t in shared_calls.verdicts(results)}
    assert found == {
        "gap": False,
        "breaks": True,
        "QPU time": True,
        "CPU time of a call, 64-64-10 on Z12": False,
    }
