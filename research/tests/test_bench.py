"""The benchmark command, and the suites `step`, `scaling` and `recording`."""

import json
import os
import subprocess
import sys
import types

import numpy as np
import pytest

from keras_qpsbgd.analysis import load_run
from research.__main__ import main
from research.bench import run
from research.bench import timing
from research.bench import worker
from research.bench.options import Options
from research.bench.steps import peak_memory
from research.bench.steps import recording
from research.bench.steps import scaling
from research.bench.steps import step
from research.bench.suites import SUITES

pytestmark = pytest.mark.once


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
    assert base.cpu_ratio is None
    # The plain ratio of the times is not robust.
    assert times["double"].cpu / base.cpu != pytest.approx(2, rel=0.05)


def test_environment_sets_the_threads(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_user_flag=1")
    one, two = run.environment(1), run.environment(2)
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

    def draw(results, path):
        import matplotlib

        path.write_text(matplotlib.__name__ + str(sorted(results)))

    suite = types.SimpleNamespace(
        names=list,
        HELP="a fake suite",
        THREADS=(1, 2),
        table=lambda results: f"table of {sorted(results)}",
        verdicts=lambda results: [(True, "good"), (results[1]["ok"], "one")],
        draw=draw,
    )
    monkeypatch.setitem(SUITES, "fake", suite)
    measured = []

    def measure(name, options, threads):
        measured.append((name, options, threads))
        return {"ok": not options.quick}

    monkeypatch.setattr(run, "measure", measure)
    suite.measured = measured
    return suite


def test_run_reports(suite, capsys, tmp_path):
    output = tmp_path / "new"
    assert main(["bench", "fake", "--output", str(output)]) == 0
    out = capsys.readouterr().out
    assert "table of [1, 2]" in out
    assert "PASS  good\nPASS  one" in out
    record = json.loads((output / "bench-fake.json").read_text())
    assert record["results"] == {"1": {"ok": True}, "2": {"ok": True}}
    assert record["verdicts"] == [[True, "good"], [True, "one"]]
    assert [threads for _, _, threads in suite.measured] == [1, 2]
    assert suite.measured[0][1].output == str(output)


def test_run_fails_if_a_target_is_missed(suite, capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    arguments = ["--quick", "--threads", "1", "--output", str(tmp_path)]
    assert main(["bench", "fake", *arguments]) == 1
    out = capsys.readouterr().out
    assert "FAIL  one" in out
    assert 'python -m pip install "keras_qpsbgd[research]"' in out
    assert len(suite.measured) == 1


def test_run_reports_a_failed_process(suite, capsys, tmp_path, monkeypatch):
    def broken(name, options, threads):
        raise subprocess.CalledProcessError(3, [name], stderr="no data here")

    monkeypatch.setattr(run, "measure", broken)
    assert main(["bench", "fake", "--output", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "FAIL  fake with 1 thread: " in captured.out
    assert "no data here" in captured.err


def test_unknown_suite(capsys):
    assert main(["bench", "stp"]) == 1
    assert "`SUITE` must be one of step" in (err := capsys.readouterr().err)
    assert err.endswith("Received: stp\n")


def test_unknown_row(capsys):
    assert main(["bench", "step", "--only", "fast", "fsat"]) == 1
    err = capsys.readouterr().err
    assert "`--only` must be one or more of 16-4-4-2, " in err
    assert err.endswith("Received: fsat\n")


def test_help_lists_the_suites_and_their_durations(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    for name, module in SUITES.items():
        assert any(
            line.split() == [name, *module.HELP.split()] for line in lines
        )
        assert "minute" in module.HELP


def fake_python(tmp_path, monkeypatch, script):
    """Makes `run` start a shell script instead of Python."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    monkeypatch.setattr(run.sys, "executable", str(path))


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_process_receives_threads_options_and_file(tmp_path, monkeypatch):
    cores = getattr(os, "sched_getaffinity", lambda _: None)(0)
    # Arguments: -m, the worker, the suite, its options, the file.
    script = """echo '{"threads": '$OMP_NUM_THREADS', "options": '$4'}' > $5"""
    fake_python(tmp_path, monkeypatch, script)
    result = run.measure("step", Options(only=("x",)), 2)
    assert result["threads"] == 2
    assert result["options"]["only"] == ["x"]
    assert getattr(os, "sched_getaffinity", lambda _: None)(0) == cores


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_failed_process_raises_with_its_output(tmp_path, monkeypatch):
    fake_python(tmp_path, monkeypatch, "echo no such suite >&2; exit 3")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run.measure("step", Options(), 1)
    assert caught.value.returncode == 3
    assert "no such suite" in caught.value.stderr


@pytest.mark.slow
def test_measure_step(tmp_path):
    """Runs `fit` with both optimizers, and solvers in a graph."""
    options = {"quick": True, "only": ["16-4-4-2", step.SOLVE, "ridge", "sign"]}
    path = tmp_path / "result.json"
    worker.main("step", json.dumps(options), str(path))
    result = json.loads(path.read_text())
    assert list(result["networks"]) == ["16-4-4-2"]
    for row in (result["networks"]["16-4-4-2"], result[step.SOLVE]):
        assert row["yardstick"]["cpu"] > 0
        for side in row["sides"].values():
            assert set(side) == {"cpu", "wall", "cpu_ratio", "wall_ratio"}
            assert side["cpu_ratio"] > 0
    names = [*result[step.SOLVE]["sides"]]
    assert names[:2] == ["ridge", "ridge, problem given"]
    assert names[2:] == ["sign", "sign, problem given"]
    assert fits(step.table({1: result}))


def test_peak_memory(capsys, monkeypatch):
    readings = iter([5000, 7000])
    fields = []

    def resident(field):
        fields.append(field)
        return next(readings)

    monkeypatch.setattr(peak_memory, "_resident", resident)
    peak_memory.main("16", "4", "8", "adam")
    assert capsys.readouterr().out == "2000\n"
    assert fields == ["VmRSS", "VmHWM"]


def test_resident_memory_grows_with_an_array():
    before = peak_memory._resident("VmRSS")
    held = np.ones(2**26, np.uint8)
    peak = peak_memory._resident("VmHWM")
    assert peak >= before > held.nbytes  # TensorFlow itself takes more
    if os.path.exists("/proc/self/status"):
        assert peak_memory._resident("VmRSS") > before + held.nbytes // 2


def times(ratio):
    return {
        "cpu": 1.23456,
        "wall": 1.23456,
        "cpu_ratio": ratio,
        "wall_ratio": ratio,
    }


def step_result(ratio):
    def row(*names):
        return {
            "yardstick": times(None),
            "sides": {name: times(ratio) for name in names},
        }

    return {
        "networks": {
            name: row(*step.SOLVERS) for name in step.step_networks.NETWORKS
        },
        step.LAYER: row("BinaryDense"),
        step.SOLVE: row(*(name + step.GIVEN for name in step.SOLVERS)),
    }


def fits(text):
    return all(len(line) <= 80 for line in text.splitlines())


def test_step_table_and_verdicts(tmp_path):
    pytest.importorskip("matplotlib")
    good = {1: step_result(1.0), 2: step_result(1.0)}
    assert fits(step.table(good))
    assert fits("\n".join(text for _, text in step.verdicts(good)))
    assert len(step.verdicts(good)) == 3 + 3 + 2 + 1
    assert all(passed for passed, _ in step.verdicts(good))
    # The layer is measured with one thread, everything else with two.
    mixed = {1: step_result(1.0), 2: step_result(1234.5)}
    assert [p for p, _ in step.verdicts(mixed)] == [False] * 8 + [True]
    assert "1234.50" in step.table(mixed)
    # There is no verdict without a measurement.
    few = {2: {"networks": {}}}
    assert step.verdicts(few) == []
    path = tmp_path / "step.png"
    step.draw(mixed, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    step.draw(few, tmp_path / "few.png")


def test_exponents():
    values = [64, 128, 256, 512]
    grown = [5.0, 4.0, 0.1 * 256**1.5, 0.1 * 512**1.5]
    assert scaling.exponent(values, grown) == pytest.approx(1.5)
    assert np.isnan(scaling.exponent([64], [1.0]))


def scaling_result(more):
    series = {
        name: [
            {"value": value, **{what: times(1.0) for what in scaling.TIMED}}
            for value in values
        ]
        for name, values in scaling.RANGES.items()
    }
    memory = [
        {"size": size, "qpsbgd": 2**28 + more, "adam": 2**28}
        for size in (scaling.BASE, scaling.WIDE_LAYER)
    ]
    return {"series": series, scaling.MEMORY: memory}


def test_scaling_table_and_verdicts(tmp_path):
    pytest.importorskip("matplotlib")
    results = {1: scaling_result(2**20), 2: scaling_result(2**31)}
    text = scaling.table(results)
    assert fits(text)
    assert "1235" in text  # milliseconds
    verdicts = scaling.verdicts(results)
    assert [passed for passed, _ in verdicts] == [True, False]
    assert "2048 MiB more" in verdicts[1][1]
    path = tmp_path / "scaling.png"
    scaling.draw(results, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    few = {1: {"series": {"m": results[1]["series"]["m"][:1]}}}
    assert fits(scaling.table(few)) and scaling.verdicts(few) == []
    scaling.draw(few, tmp_path / "few.png")


def test_recording_table_and_verdicts(tmp_path):
    pytest.importorskip("matplotlib")

    def row(ratio):
        sides = {side: times(1.0) for side in recording.SIDES}
        sides["file"] = {**sides["file"], "cpu_ratio": ratio}
        return {"yardstick": times(None), "sides": sides}

    results = {2: {"native": row(1.05), "ridge": row(1.2)}}
    text = recording.table(results)
    assert fits(text) and "1.200" in text
    verdicts = recording.verdicts(results)
    assert [passed for passed, _ in verdicts] == [True, True, True, False]
    assert "ridge, file" in verdicts[3][1]
    path = tmp_path / "recording.png"
    recording.draw(results, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_recording_records_every_tenth_step(tmp_path):
    side = recording._side("sign", "file", str(tmp_path), 11, 1)
    side.block()
    run = load_run(tmp_path / "sign")
    assert [update.step for update in run.updates] == [0, 10]
    assert run.updates[0].qubo.fields.shape == (128, 128)
