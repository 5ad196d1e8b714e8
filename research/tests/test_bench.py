"""The benchmark command, and the suites that time layers and networks."""

import json
import os
import pathlib
import shutil
import subprocess
import types

import numpy as np
import pytest
import tensorflow as tf

from keras_qpsbgd.analysis import load_run
from research.__main__ import main
from research.bench import export
from research.bench import fit_steps
from research.bench import harness
from research.bench import inference
from research.bench import quantize
from research.bench import step
from research.bench import stored
from research.bench import timing
from research.bench.harness import Options

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]


class Machine:
    """A fake clock of a machine that slows down with every block of work."""

    def __init__(self):
        self.now = 0.0
        self.speed = 1.0

    def work(self, seconds):
        self.now += seconds / self.speed
        self.speed *= 0.9

    def process_time(self):
        return self.now

    def perf_counter(self):
        return 3 * self.now


def test_ratios_are_robust_against_a_slow_machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(timing, "time", machine)
    sides = {
        "double": timing.Side(lambda: machine.work(20), 10, 5),
        "fewer": timing.Side(lambda: machine.work(3), 1, 2),
    }
    yardstick = timing.Side(lambda: machine.work(4), 4, 0)
    base, times = timing.compare(yardstick, sides)
    # The geometric mean of the neighbors is 2 / (0.9 + 1 / 0.9) of their mean.
    drift = 2 / (0.9 + 1 / 0.9)
    assert times["double"].cpu_ratio == pytest.approx(2 * drift)
    assert times["fewer"].cpu_ratio == pytest.approx(3 * drift)
    assert times["double"].wall_ratio == pytest.approx(2 * drift)
    assert times["double"].wall == pytest.approx(3 * times["double"].cpu)
    assert len(times["double"].cpu_ratios) == 5
    assert base.cpu_ratio is None
    # The plain ratio of the times is not robust.
    assert times["double"].cpu / base.cpu != pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(
    ("ratios", "text"),
    [
        ([2.0, 1.0, 1.5], "1.50 (1.00 to 2.00)"),
        ([20.0, 30.0], "25.0 (20.0 to 30.0)"),
        ([200.4], "200 (200 to 200)"),
    ],
)
def test_text_of_ratios(ratios, text):
    assert timing.text(ratios) == text


def test_environment_sets_the_threads(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_user_flag=1")
    one, two = harness.environment(1), harness.environment(2)
    assert "--xla_user_flag=1 --xla_cpu_multi" in one["XLA_FLAGS"]
    assert two["XLA_FLAGS"] == "--xla_user_flag=1"
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
        assert (one[name], two[name]) == ("1", "2")
    assert one["CUDA_VISIBLE_DEVICES"] == "-1"


def test_only_selects_rows_or_columns():
    options = Options(only=("b", "x"))
    assert options.wanted("abc") == ["b"]
    assert options.wanted("xyz") == ["x"]
    assert options.wanted("pq") == ["p", "q"]


@pytest.fixture
def suite(monkeypatch):
    """A fake suite that takes no time."""

    suite = types.SimpleNamespace(
        names=list,
        HELP="a fake suite",
        THREADS=(1, 2),
        CODE=("research.bench.timing.compare",),
        table=lambda results: f"table of {sorted(results)}",
    )
    monkeypatch.setitem(harness.SUITES, "fake", suite)
    measured = []

    def measure(name, options, threads):
        measured.append((name, options, threads))
        return {"ok": not options.quick}

    monkeypatch.setattr(harness, "measure", measure)
    suite.measured = measured
    return suite


def test_run_reports(suite, capsys, tmp_path):
    output = tmp_path / "new"
    assert main(["bench", "fake", "--output", str(output)]) == 0
    out = capsys.readouterr().out
    assert "table of [1, 2]" in out
    record = json.loads((output / "fake.json").read_text())
    assert record["code"] == stored.code("fake")
    assert record["results"] == {"1": {"ok": True}, "2": {"ok": True}}
    assert [threads for _, _, threads in suite.measured] == [1, 2]


def test_run_reports_a_failed_process(suite, capsys, tmp_path, monkeypatch):
    def broken(name, options, threads):
        raise subprocess.CalledProcessError(3, [name], stderr="no data here")

    monkeypatch.setattr(harness, "measure", broken)
    assert main(["bench", "fake", "--output", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "FAIL  fake with 1 thread: " in captured.out
    assert "no data here" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message", "received"),
    [
        (["stp"], "`SUITE` must be one of step", "stp"),
        (
            ["step", "--only", "fast", "fsat"],
            "`--only` must be one or more of 16-4-4-2, ",
            "fsat",
        ),
        (["step", "--device", "gpu"], "requires a GPU", "device=gpu"),
        (
            ["solver", "--device", "gpu"],
            "must be one of step with `--device gpu`.",
            "solver",
        ),
        (
            ["--device", "gpu", "--only", "28x28-conv-bn"],
            "`--only` must be one or more of 16-4-4-2, ",
            "28x28-conv-bn",
        ),
    ],
)
def test_wrong_arguments(capsys, monkeypatch, arguments, message, received):
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind=None: []
    )
    monkeypatch.setattr(harness, "run", None)  # nothing is measured
    assert main(["bench", *arguments]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.endswith(f"Received: {received}\n")


def test_help_lists_the_suites_and_their_durations(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    for name, module in harness.SUITES.items():
        assert any(
            line.split() == [name, *module.HELP.split()] for line in lines
        )
        assert "minute" in module.HELP


def fake_python(tmp_path, monkeypatch, script):
    """Makes `run` start a shell script instead of Python."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    monkeypatch.setattr(harness.sys, "executable", str(path))


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_process_receives_threads_options_and_file(tmp_path, monkeypatch):
    cores = getattr(os, "sched_getaffinity", lambda _: None)(0)
    # Arguments: -m, the worker, the suite, its options, the file.
    script = """echo '{"threads": '$OMP_NUM_THREADS', "options": '$4'}' > $5"""
    fake_python(tmp_path, monkeypatch, script)
    result = harness.measure("step", Options(only=("x",)), 2)
    assert result["threads"] == 2
    assert result["options"]["only"] == ["x"]
    assert getattr(os, "sched_getaffinity", lambda _: None)(0) == cores


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_failed_process_raises_with_its_output(tmp_path, monkeypatch):
    fake_python(tmp_path, monkeypatch, "echo no such suite >&2; exit 3")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        harness.measure("step", Options(), 1)
    assert caught.value.returncode == 3
    assert "no such suite" in caught.value.stderr


def test_measure_recording(tmp_path, monkeypatch):
    """Steps of `fit` are in the slow test below."""
    monkeypatch.setattr(step, "RECORDED_SIZE", 12)
    monkeypatch.setattr(step, "ROWS", 8)
    options = {"quick": True, "only": [step.RECORDING]}
    path = tmp_path / "result.json"
    harness.main("step", json.dumps(options), str(path))
    result = json.loads(path.read_text())
    assert result["networks"] == {}
    assert list(result[step.RECORDING]["sides"]) == ["none", "file"]
    for side in result[step.RECORDING]["sides"].values():
        assert side["cpu_ratio"] > 0 and len(side["cpu_ratios"]) == 4
    assert fits(step.table({1: result}))


@pytest.fixture
def gpu(monkeypatch):
    """Makes the benchmarks take the CPU for a GPU."""
    (device, *_) = tf.config.list_physical_devices("CPU")
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind=None: [device]
    )


def test_device_selects_the_suites(gpu, monkeypatch):
    runs = []
    monkeypatch.setattr(harness, "run", lambda *given: runs.append(given))
    main(["bench", "--device", "gpu", "--only", "784-1024-1024-10"])
    main(["bench"])
    assert [names for names, *_ in runs] == [["step"], list(harness.SUITES)]
    assert [options.device for _, options, *_ in runs] == ["gpu", "cpu"]


def test_process_sees_the_gpu(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "CUDA_VISIBLE_DEVICES" not in harness._environment(2, "gpu")
    assert harness._environment(2, "cpu")["CUDA_VISIBLE_DEVICES"] == "-1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    values = harness._environment(2, "gpu")
    assert values["CUDA_VISIBLE_DEVICES"] == "3"
    assert values["OMP_NUM_THREADS"] == "2"


@pytest.mark.slow
def test_measure_step_on_a_gpu(gpu):
    options = Options(quick=True, only=("16-4-4-2", "sign"), device="gpu")
    result = step.measure(options)
    assert result["device"] == "GPU"
    (row,) = result["networks"].values()
    assert list(row["sides"]) == ["sign"]
    assert row["sides"]["sign"]["wall_ratio"] > 0
    assert fits(step.table({2: result}))


def times(ratio):
    return {
        "cpu": 1.23456,
        "wall": 1.23456,
        "cpu_ratio": ratio,
        "wall_ratio": ratio,
        "cpu_ratios": [ratio],
    }


def step_result(ratio):
    def row(*names):
        return {
            "yardstick": times(None),
            "sides": {name: times(ratio) for name in names},
        }

    return {
        "networks": {name: row(*step.SOLVERS) for name in fit_steps.NETWORKS},
        step.RECORDING: row(*step.RECORDERS),
    }


def fits(text):
    return all(len(line) <= 80 for line in text.splitlines())


def test_step_table():
    assert fits(step.table({1: step_result(1.0), 2: step_result(1.0)}))
    assert "1234.50" in step.table({2: step_result(1234.5)})
    assert step.table({2: {"networks": {}}}) == ""
    blocks = step.blocks(step_result(1.5))
    assert "| 16-4-4-2 | 1.50 (1.50 to 1.50) |" in blocks["step"]
    assert "to a file / without recording: 1.50 (" in blocks["recording"]


def test_step_on_a_gpu_table(tmp_path, monkeypatch, capsys):
    sides = dict.fromkeys(step.SOLVERS, times(1.5))
    row = {"yardstick": times(None), "sides": sides}
    networks = dict.fromkeys(step.GPU_NETWORKS, row)
    result = {"device": "NVIDIA H200", "networks": networks}
    monkeypatch.setattr(harness, "measure", lambda *given: result)
    options = Options(device="gpu")
    assert harness.run(["step"], options, output=tmp_path) == 0
    out = capsys.readouterr().out
    assert fits(out.split("Results written")[0]) and "NVIDIA H200" in out
    # Results on a CPU are not overwritten.
    names = [path.name for path in tmp_path.iterdir()]
    assert names == ["step-gpu.json"]


def test_recording_records_every_tenth_step(tmp_path):
    side = step._recorded("sign", "file", str(tmp_path), 11, 1)
    side.block()
    run = load_run(tmp_path / "sign")
    assert [update.step for update in run.updates] == [0, 10]
    assert run.updates[0].qubo.fields.shape == (128, 128)


# Export, inference, quantization


def test_graph_network_in_every_installed_runtime():
    """The outputs of all formats are compared with those of Keras."""
    pytest.importorskip("tf2onnx")
    results = {1: export.measure(Options(only=("graph",)))}
    found = results[1]["graph"]["formats"]
    assert list(found) == [name for name, *_ in export.FORMATS]
    for name, each in found.items():
        problem = each["problem"]
        assert problem is None or problem.startswith("not installed"), name
    assert found["`export.packed`"]["difference"] == 0
    assert found["`export.onnx`"]["size"] * 8 < results[1]["graph"]["floats"]
    assert "| `export.packed` |" in export.table(results)


def test_record_has_all_networks_and_formats():
    record = json.loads((ROOT / stored.FOLDER / "export.json").read_text())
    (networks,) = record["results"].values()
    assert list(networks) == export.names()
    for network in networks.values():
        assert list(network["formats"]) == [n for n, *_ in export.FORMATS]


def test_sizes_are_relative_to_the_floats():
    """Smaller, larger, and about the same."""
    sizes = {"a": 100, "b": 375, "c": 1040, "d": 2000}
    formats = {
        name: {"size": size, "difference": 0.0, "problem": None}
        for name, size in sizes.items()
    }
    text = export.markdown({"net": {"floats": 1000, "formats": formats}})
    for expected in (
        "| a | 0 (10x smaller) |",
        "| b | 0 (2.7x smaller) |",
        "| c | 1 (about the same) |",
        "| d | 2 (2.0x larger) |",
    ):
        assert expected in text


def test_measure_inference(monkeypatch):
    monkeypatch.setattr(inference, "SIZES", (20, 30, 3))
    monkeypatch.setattr(inference, "BATCHES", (1, 2))
    monkeypatch.setattr(inference, "SECONDS", 1e-4)
    monkeypatch.setattr(inference, "QUICK_BLOCKS", 1)
    options = Options(quick=True, only=("binary", "keras", "numpy"))
    results = {1: inference.measure(options)}
    assert set(results[1]) == {"binary"}
    text = inference.table(results)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert text.count("binary  ") == 2


@pytest.mark.parametrize("activation", ["binary", "hard_tanh"])
def test_network_in_onnx_runtime(activation):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    shapes = [(5, 4), (4, 3)]
    weights = [
        (
            rng.normal(size=shape).astype("float32"),
            rng.normal(size=shape[1]).astype("float32"),
        )
        for shape in shapes
    ]
    x = rng.normal(size=(6, 5)).astype("float32")
    hidden = x @ weights[0][0] + weights[0][1]
    if activation == "binary":
        hidden = np.where(hidden >= 0, 1, -1)
    else:
        hidden = np.clip(hidden, -1, 1)
    expected = hidden @ weights[1][0] + weights[1][1]
    found = inference.onnx_runner(weights, activation)(x)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_quantize_processes(capsys):
    quantize.main("wide", "40", "6", "100", "gptq+scales")
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["error"] < 1 and found["cpu"] > 0 and found["peak"] > 0


@pytest.mark.slow  # builds a network of 160 layers
def test_quantize_a_network_of_keras():
    found = quantize.network("MobileNetV2", 2, "nearest")
    assert 0 < found["forward"] < found["cpu"] and found["predict"] > 0
    assert found["compression"] > 8


def test_quantize_table():
    network = {
        "predict": 2.0,
        "forward": 5.0,
        "cpu": 100.0,
        "peak": 2**30,
        "memory": 3.9,
        "compression": 26.4,
    }
    layer = {"cpu": 120.0, "peak": 2**30, "memory": 4.0, "error": 0.1}
    result = {
        "ResNet50": {"images": 4, "methods": {"gptq": network}},
        "wide": {"size": [*quantize.WIDE], "methods": {"qubo": layer}},
    }
    text = quantize.table({1: result})
    for part in (
        "ResNet50        gptq            2.5       50      100   1.00   3.9"
        "    26.4x",
        "qubo               0.1000    120.0   1.00   4.0",
    ):
        assert part in text, text


def test_records_of_the_repository(tmp_path):
    """They are whole, and the picture can be drawn."""
    for path in (ROOT / stored.FOLDER).glob("*.json"):
        name = path.stem
        if name.startswith("gpu-"):
            continue
        record = stored.read(ROOT, name)
        assert record["suite"] == name and not record["options"]["quick"]
        assert len(record["code"]) == 16
    pytest.importorskip("matplotlib")
    shutil.copytree(ROOT / stored.FOLDER, tmp_path / stored.FOLDER)
    (tmp_path / stored.PICTURE).parent.mkdir(parents=True)
    assert stored.draw(tmp_path).read_bytes().startswith(b"\x89PNG")


def test_blocks_say_that_a_record_is_older(monkeypatch):
    found = {
        name: text.startswith(f"*{stored.OLDER}")
        for name, text in stored.blocks(ROOT).items()
    }
    assert found["bench-gpu"]  # from before records had fingerprints
    monkeypatch.setattr(stored, "code", lambda name: "other")
    found = stored.blocks(ROOT)
    older = f"*{stored.OLDER}: this table.*\n"
    assert found["bench-inference"].startswith(older)


def test_blocks_without_a_record(tmp_path, monkeypatch):
    monkeypatch.setattr(stored.gpu, "read", lambda folder: [])
    monkeypatch.setattr(stored.gpu, "markdown", lambda records: "")
    monkeypatch.setattr(stored.gpu, "cifar10", lambda path: "")
    found = stored.blocks(tmp_path)
    assert set(found) == set(stored.blocks(ROOT))
    assert found["bench-recording"].startswith("Not measured yet")
