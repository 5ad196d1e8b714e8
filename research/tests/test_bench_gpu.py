"""The tools for a GPU machine without TensorFlow, on a CPU."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from research.bench.gpu import runner

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]


def fits(text):
    return all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.slow
def test_exported_steps_run(tmp_path):
    """Exports in a process, because `export` sets the device for good."""

    def run(module, *arguments):
        command = [sys.executable, "-m", f"research.bench.gpu.{module}"]
        command += [tmp_path, "--only", "16-4-4-2", "adam", "sign", *arguments]
        subprocess.run(command, check=True, cwd=ROOT)

    run("export", "--check")
    steps = []
    for name in ("adam", "sign"):
        with np.load(tmp_path / "16-4-4-2" / f"{name}.npz") as file:
            steps.append(dict(file))
    adam, sign = steps
    for arrays in steps:
        assert arrays["inputs"].shape == (8, 32, 16)
        assert arrays["targets"].shape == (8, 32, 1)
        kernels = [arrays[f"state{i}"].shape for i in (0, 2, 4)]
        assert kernels == [(16, 4), (4, 4), (4, 2)]
        # Only kernels have signs, not the averages of the optimizers.
        signs = [name for name in arrays if name.startswith("signs")]
        assert signs == ["signs0", "signs2", "signs4"]
        assert set(np.unique(arrays["signs0"])) <= {-1, 0, 1}
    for index in range(6):  # the same weights
        np.testing.assert_array_equal(
            adam[f"state{index}"], sign[f"state{index}"]
        )
    pytest.importorskip("jax")
    run("runner", "--output", tmp_path)
    result = json.loads((tmp_path / "gpu-16-4-4-2.json").read_text())
    assert list(result["optimizers"]) == ["adam", "sign"]
    for row in result["optimizers"].values():
        assert row["wrong_signs"] == 0.0
        assert row["loop"]["us"] > 0 and np.isfinite(row["loss"])


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
