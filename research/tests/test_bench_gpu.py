"""The tools for a GPU machine without TensorFlow, on a CPU."""

import pytest

from research.bench.gpu import runner

pytestmark = pytest.mark.once


def fits(text):
    return all(len(line) <= 80 for line in text.splitlines())


def timed(us, profile=None, signs=None):
    times = {"us": us, "rounds_us": [us, 2 * us, us]}
    kinds = {kind: times for kind in runner.COLUMNS}
    return {**kinds, "profile": profile, "wrong_signs": signs}


def test_runner_table():
    kernel = {"name": "loop_fusion_" + 80 * "x", "us": 12.3, "launches": 2.5}
    profile = {"launches": 7387.0, "kernels": 9 * [kernel]}
    result = {
        "network": "784-1024-1024-10",
        "device": "NVIDIA H200",
        "jax": "0.11.2",
        "optimizers": {
            "adam": timed(100.0, signs=0.0),
            "accurate": timed(562_000.0, profile, 0.0123),
            "ridge": {"error": "too large\nfor the GPU" + 80 * "."},
            "sign": timed(150.0),
        },
    }
    text = runner.table(result)
    lines = text.splitlines()
    assert fits(text) and len(lines) == 7
    assert lines[3].split()[-4:] == ["100.0", "1.00", "-", "0.0000"]
    assert lines[4].split()[:3] == ["accurate", "562,000.0", "5620.00"]
    assert lines[4].split()[-2:] == ["7,387", "0.0123"]
    assert lines[5].split()[:2] == ["ridge", "failed:"]
    text = runner.kernels(result)
    assert fits(text)
    assert len(text.splitlines()) == 1 + runner.LISTED_KERNELS
    result["optimizers"] = {"adam": timed(1.0)}
    assert "no kernels" in runner.kernels(result)
