"""The benchmarks of a step on a GPU, on a CPU."""

import gzip
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from research.__main__ import main
from research.bench import command
from research.bench import run
from research.bench import worker
from research.bench.gpu import runner
from research.bench.options import Options
from research.bench.steps import fit_steps
from research.bench.steps import gpu_step
from research.bench.suites import GPU_SUITES
from research.bench.suites import SUITES

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def gpu(monkeypatch):
    """Makes the benchmarks take the CPU for a GPU."""
    (device, *_) = tf.config.list_physical_devices("CPU")
    monkeypatch.setattr(
        command.tf.config, "list_physical_devices", lambda kind=None: [device]
    )


@pytest.fixture
def runs(monkeypatch):
    """Records the arguments of `run` instead of measuring."""
    found = []

    def record(*arguments):
        found.append(arguments)
        return 0

    monkeypatch.setattr(command, "run", record)
    return found


def fits(text):
    return all(len(line) <= 80 for line in text.splitlines())


def test_gpu_is_required(monkeypatch, capsys, runs):
    monkeypatch.setattr(
        command.tf.config, "list_physical_devices", lambda kind=None: []
    )
    assert main(["bench", "step", "--device", "gpu"]) == 1
    err = capsys.readouterr().err
    assert "`--device gpu` requires a GPU" in err
    assert err.endswith("Received: device=gpu\n")
    assert not runs
    assert main(["bench", "step"]) == 0  # the CPU needs none


def test_device_selects_the_suites(gpu, capsys, runs):
    assert main(["bench", "--device", "gpu", "--only", "784-1024-1024-10"]) == 0
    ((names, options, _, _),) = runs
    assert names == list(GPU_SUITES) == ["step"]
    assert options.device == "gpu"
    assert main(["bench"]) == 0
    names, options, _, _ = runs[-1]
    assert names == list(SUITES) and options.device == "cpu"
    # Other suites and the networks of the CPU.
    assert main(["bench", "solver", "--device", "gpu"]) == 1
    err = capsys.readouterr().err
    assert "must be one of step with `--device gpu`. Received: solver" in err
    arguments = ["--device", "gpu", "--only", "784-512-512-10"]
    assert main(["bench", *arguments]) == 1
    assert capsys.readouterr().err.endswith("Received: 784-512-512-10\n")
    with pytest.raises(SystemExit):
        main(["bench", "--device", "tpu"])


def test_process_sees_the_gpu(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "CUDA_VISIBLE_DEVICES" not in run._environment(2, "gpu")
    assert run._environment(2, "cpu")["CUDA_VISIBLE_DEVICES"] == "-1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    values = run._environment(2, "gpu")
    assert values["CUDA_VISIBLE_DEVICES"] == "3"
    assert values["OMP_NUM_THREADS"] == "2"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"


def test_measure_step(gpu, tmp_path):
    options = {
        "quick": True,
        "only": ["16-4-4-2", "sign"],
        "device": "gpu",
    }
    path = tmp_path / "result.json"
    worker.main("step", json.dumps(options), str(path))
    result = json.loads(path.read_text())
    assert result["device"] == "GPU"
    (row,) = result["networks"].values()
    assert list(row["sides"]) == ["sign"]
    assert row["sides"]["sign"]["wall_ratio"] > 0
    assert gpu_step.verdicts({2: result}) == []  # only for the default
    text = gpu_step.table({2: result})
    assert fits(text) and "16-4-4-2" in text


def gpu_result(ratio):
    times = {
        "cpu": 1.0,
        "wall": 1.0,
        "cpu_ratio": ratio,
        "wall_ratio": ratio,
    }
    row = {"yardstick": times, "sides": dict.fromkeys(gpu_step.SOLVERS, times)}
    return {
        "device": "NVIDIA H200",
        "networks": dict.fromkeys(gpu_step.GPU_NETWORKS, row),
    }


def test_table_and_verdicts(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    assert set(gpu_step.SOLVERS) == {*fit_steps.SOLVERS} - {"once"}
    good, bad = gpu_result(1.5), gpu_result(1.51)
    for result, expected in ((good, True), (bad, False)):
        verdicts = gpu_step.verdicts({4: result})
        assert [passed for passed, _ in verdicts] == [expected] * 5
        assert all(len(line) <= 74 for _, line in verdicts)
    assert fits(gpu_step.table({4: good}))
    monkeypatch.setattr(run, "measure", lambda *arguments: bad)
    assert run.run(["step"], Options(device="gpu"), output=tmp_path) == 1
    assert "NVIDIA H200" in capsys.readouterr().out
    # Results on a CPU are not overwritten.
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"bench-step-gpu.json", "bench-step-gpu.png"}


# Without TensorFlow on the GPU machine


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
