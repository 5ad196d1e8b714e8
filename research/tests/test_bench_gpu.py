"""The tools for a GPU machine without TensorFlow, on a CPU."""

import gzip
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
def test_exported_steps(tmp_path):
    """Exports in a process, because `export` sets the device for good."""
    folder = tmp_path / "steps"
    subprocess.run(
        [
            *(sys.executable, "-m", "research.bench.gpu.export", folder),
            *("--only", "16-4-4-2", "adam", "sign", "--check"),
        ],
        check=True,
        cwd=ROOT,
    )

    def load(name):
        with gzip.open(folder / "arrays" / f"{name}.npy.gz") as file:
            return np.load(file)

    records = [
        json.loads((folder / "16-4-4-2" / f"{name}.json").read_text())
        for name in ("adam", "sign")
    ]
    for record in records:
        assert load(record["inputs"]).shape == (8, 32, 16)
        assert load(record["targets"]).shape == (8, 32, 1)
        kernels = [load(record["state"][i]).shape for i in (0, 2, 4)]
        assert kernels == [(16, 4), (4, 4), (4, 2)]
        name = f"{record['optimizer']}.hlo.gz"
        program = (folder / "16-4-4-2" / name).read_bytes()
        assert b"train_step" in gzip.decompress(program)
        assert set(np.unique(load(record["signs"]["0"]))) <= {-1, 0, 1}
    adam, sign = records
    assert adam["state"][:6] == sign["state"][:6]  # the same weights
    assert {"0", "2", "4"} == set(sign["signs"]) < set(adam["signs"])
    done = subprocess.run(
        [sys.executable, "research/bench/gpu/runner.py", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2  # not converted
    assert done.stderr.endswith(f"Received: {folder}\n")


@pytest.mark.slow
def test_converted_steps_run(tmp_path):
    pytest.importorskip("jax")
    only = ("--only", "16-4-4-2", "adam", "sign")
    for arguments in (
        ("-m", "research.bench.gpu.export", tmp_path, *only, "--check"),
        ("-m", "research.bench.gpu.convert", tmp_path),
        ("research/bench/gpu/runner.py", tmp_path, "--output", tmp_path, *only),
    ):
        subprocess.run([sys.executable, *arguments], check=True, cwd=ROOT)
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
