"""The benchmark command, and the suites that time layers and networks."""

import json
import pathlib
import shutil
import types

import pytest

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


@pytest.fixture
def suite(monkeypatch):
    """A fake suite that takes no time."""

    suite = types.SimpleNamespace(
        names=list,
        HELP="a fake suite",
        THREADS=(1, 2),
        table=lambda results: f"table of {sorted(results)}",
    )
    monkeypatch.setitem(harness.SUITES, "fake", suite)
    monkeypatch.setattr(stored, "code", lambda name: f"code of {name}")
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
    assert record["code"] == "code of fake"
    assert record["results"] == {"1": {"ok": True}, "2": {"ok": True}}
    assert [threads for _, _, threads in suite.measured] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "message", "received"),
    [
        (["stp"], "`SUITE` must be one of step", "stp"),
        (
            ["step", "--only", "fast", "fsat"],
            "`--only` must be one or more of 16-4-4-2, ",
            "fsat",
        ),
    ],
)
def test_wrong_arguments(capsys, monkeypatch, arguments, message, received):
    monkeypatch.setattr(harness, "run", None)  # nothing is measured
    assert main(["bench", *arguments]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.endswith(f"Received: {received}\n")


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
