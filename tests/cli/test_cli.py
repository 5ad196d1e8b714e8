"""The command line interface."""

import importlib
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import backends
from keras_qpsbgd import cli
from keras_qpsbgd.cli import demo


def test_backends_table(capsys):
    assert cli.main(["backends"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    for row in backends.available():
        ready = "yes" if row.available else "no"
        assert any(line.split()[:2] == [row.name, ready] for line in lines)


def test_backends_table_shows_what_is_missing(capsys, monkeypatch):
    command = '`python -m pip install "keras_qpsbgd[dwave]"`'
    row = backends.available()[0]._replace(
        name="tabu",
        available=False,
        missing=f"dwave.samplers is not installed ({command})",
    )
    monkeypatch.setattr(backends, "available", lambda: [row])
    assert cli.main(["backends"]) == 0
    out = capsys.readouterr().out
    assert "tabu     no " in out
    assert command in out  # on one line


@pytest.mark.slow
@pytest.mark.once
def test_demo(capsys, tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    path = tmp_path / "curves.png"
    arguments = ["demo", "--epochs", "1", "--seeds", "1"]
    assert cli.main([*arguments, "--output", str(path)]) == 0
    out = capsys.readouterr().out
    for method in demo.RATES:
        assert f"\n{method}  " in out  # the row in the table
    assert max(map(len, out.splitlines()[:-4])) <= 80
    assert str(path) in out
    assert path.read_bytes().startswith(b"\x89PNG")


def results():
    return [
        demo.Run(method, seed, [0.5, 0.8 + seed / 10], 0.9 + seed / 100, 1234.5)
        for method in demo.RATES
        for seed in range(2)
    ]


def test_table_of_the_demo():
    lines = demo.table(results()).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "90.5 +- 0.5 %" in lines[2]


@pytest.mark.once
def test_figure_of_the_demo(monkeypatch, tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    monkeypatch.setattr(demo.common, "new_axes", lambda **_: axes)
    demo.plot(results(), tmp_path / "a.png")
    for line, band in zip(axes.get_lines(), axes.collections, strict=True):
        np.testing.assert_allclose(line.get_ydata(), [50, 85])
        heights = band.get_paths()[0].vertices[:, 1]
        assert heights.max() == pytest.approx(90)  # 85 and 5 of two seeds


def test_demo_without_scikit_learn(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert cli.main(["demo"]) == 1
    captured = capsys.readouterr()
    assert 'python -m pip install "keras_qpsbgd[demo]"' in captured.err
    assert not captured.out


@pytest.mark.slow
@pytest.mark.once
def test_training_restarts_for_every_seed():
    pytest.importorskip("sklearn")
    digits = demo.load()
    first, second = (
        demo.train(demo.QPSBGD, digits, 1, seeds) for seeds in (1, 2)
    )
    assert [run.test_accuracy for run in first] == [second[0].test_accuracy]
    assert first[0].validation_curve == second[0].validation_curve
    assert first[0].validation_curve != second[1].validation_curve


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize(
    "topology", ["pegasus", pytest.param("zephyr", marks=pytest.mark.slow)]
)
def test_qpu_cost(capsys, monkeypatch, topology):
    monkeypatch.delenv("DWAVE_API_TOKEN", raising=False)
    arguments = ["--steps", "1000", "--topology", topology]
    assert cli.main(["qpu-cost", "16-64-4-2", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    # 64 columns of 16 inputs: chains of 3, one call, 43 or 53 ms.
    row, *calls = [line.split() for line in lines if "16 x 64" in line]
    ms = {"pegasus": "42.7", "zephyr": "52.8"}[topology]
    assert row[3:] == ["16", "64", "16", "3", "1", ms]
    # Three layers share two calls, which together have all columns.
    (last,) = [line.split() for line in lines if " all " in line]
    assert last[0] == "2" and len(calls) == 2
    assert sum(int(call[-4]) for call in calls) == 64 + 4 + 2
    assert sum(float(call[-1]) for call in calls) == pytest.approx(
        float(last[-1]), abs=0.11
    )
    out = " ".join(lines)
    solver = {"pegasus": "_system4.1, August 2022", "zephyr": "2_system1.7"}
    assert f"Timing data: Advantage{solver[topology]}" in out
    total = re.search(r"1,000 steps: ([\d.]+) s of QPU access time", out)[1]
    assert total == last[-1]
    ratios = re.search(r"take ([\d.]+) times .* layer, ([\d.]+) times", out)
    assert float(ratios[1]) > 1.2 and float(ratios[2]) > 20


@pytest.mark.once
def test_qpu_cost_counts_the_blocks_of_wide_layers(capsys):
    """The command and `estimate` agree on a layer with several QUBOs."""
    assert cli.main(["qpu-cost", "300-2", "--steps", "10"]) == 0
    out = capsys.readouterr().out
    assert "300 x 2[0]" in out and "300 x 2[1]" in out
    model = keras.Sequential([keras.Input((300,)), kq.layers.BinaryDense(2)])
    optimizer = kq.QPSBGD(backend={"name": "dwave", "mock": True})
    estimate = optimizer.estimate(model, 10)
    calls, ms = re.search(r"(\d+)  all +([\d.]+)\n", out).groups()
    assert int(calls) == estimate.calls_per_update
    assert float(ms) == pytest.approx(1e3 * estimate.seconds / 10, abs=0.051)


@pytest.mark.once
def test_qpu_cost_of_a_saved_model(capsys, tmp_path):
    from matplotlib import colors
    from matplotlib import image

    from keras_qpsbgd.backends.dwave import drawing

    path = str(tmp_path / "model.keras")
    tools.small_model().save(path)
    plot = tmp_path / "new" / "chip.png"
    arguments = ["--block-size", "2", "--output", str(plot)]
    assert cli.main(["qpu-cost", path, *arguments]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    pixels = image.imread(plot)[..., :3].reshape(-1, 3)
    for color in map(colors.to_rgb, drawing.COLORS[:2]):
        assert (abs(pixels - color) < 0.02).all(axis=1).any()
    out = capsys.readouterr().out
    assert str(plot) in out
    # Both tables have a row for each layer.
    assert out.count("binary_dense") == 4
    assert "in blocks" in out


def dense_network():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            kq.layers.BinaryDense(3, activation="tanh"),
            kq.layers.BinaryDense(2),
        ]
    )
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize(
    "dampings", [pytest.param((1.0,), marks=pytest.mark.slow), (1.0, 4.0)]
)
def test_qpu_cost_of_sweeps_is_what_they_take(dampings, capsys, tmp_path):
    """The estimate equals the QPU time of `fit_columns` on the mock QPU."""
    model = dense_network()
    path = str(tmp_path / "model.keras")
    model.save(path)
    arguments = ["--sweeps", "1", "--dampings", str(len(dampings))]
    arguments += ["--num-reads", "20", "--budget-seconds", "60"]
    assert cli.main(["qpu-cost", path, *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    x = np.random.default_rng(0).normal(size=(40, 6)).astype("float32")
    history = kq.fit_columns(
        model,
        x,
        (x[:, 0] > 0).astype(int),
        sweeps=1,
        dampings=dampings,
        backend={"name": "dwave", "mock": True, "num_reads": 20},
        verbose=0,
    )
    (last,) = [line.split() for line in lines if line.startswith("all ")]
    assert int(last[1]) == history.calls == 5
    assert float(last[2]) == pytest.approx(1e3 * history.qpu_seconds, abs=0.051)
    found = re.search(
        r"1 sweep: 5 calls, ([\d.]+) s .* enough for (\d+) sweeps",
        " ".join(lines),
    )
    assert float(found[1]) == pytest.approx(history.qpu_seconds, rel=0.01)
    assert int(found[2]) == math.floor(60 / history.qpu_seconds)


@pytest.mark.slow
@pytest.mark.once
def test_qpu_cost_of_sweeps_counts_dense_layers_only(capsys, tmp_path):
    path = str(tmp_path / "model.keras")
    keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            kq.layers.BinaryConv2D(2, 3),
            keras.layers.Flatten(),
            kq.layers.BinaryDense(2, name="last"),
        ]
    ).save(path)
    assert cli.main(["qpu-cost", path, "--sweeps", "2"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^last +32 +2 .*\nall +2 ", out, re.M)
    assert "3 QUBOs per column" in out and "2 sweeps: 4 calls" in out


@pytest.mark.once
def test_qpu_cost_of_a_budget(capsys):
    arguments = ["--steps", "20", "--budget-seconds", "60"]
    assert cli.main(["qpu-cost", "8-2", *arguments]) == 0
    out = capsys.readouterr().out
    ms = float(re.search(r" all +([\d.]+)\n", out)[1])
    steps = int(
        re.search(r"60 s is enough for ([\d,]+) steps", out)[1].replace(",", "")
    )
    assert steps == pytest.approx(60e3 / ms, rel=0.01)
    total = float(re.search(r"20 steps: ([\d.]+) s", out)[1])
    assert total == pytest.approx(20e-3 * ms, rel=0.01)


@pytest.mark.once
@pytest.mark.parametrize(
    "arguments, message",
    [
        (["16"], "network: must be layer sizes.*Received: 16"),
        (["16-0"], "at least one unit.*Received: 16-0"),
        (["missing.keras"], "existing file.*Received: missing.keras"),
        (["8-2", "--dampings", "2"], "requires `--sweeps`.*--dampings 2"),
        (["8-2", "--sweeps", "2", "--output", "a.png"], "--output a.png"),
        (["8-2", "--budget-seconds", "0"], "Received: 0"),
        (["8-2", "--budget-seconds", "inf"], "Received: inf"),
    ],
)
def test_qpu_cost_of_invalid_arguments(arguments, message, capsys):
    try:
        assert cli.main(["qpu-cost", *arguments]) == 1
    except SystemExit as error:  # of the parser
        assert error.code == 2
    error = " ".join(capsys.readouterr().err.split())
    assert re.search(message, error)


@pytest.mark.once
@pytest.mark.parametrize(
    "command, code",
    [
        (["--help"], 0),
        (["demo", "--help"], 0),
        (["qpu-cost", "abc"], 2),
        (["export", "missing.keras", "--to", "packed"], 2),
    ],
    ids=str,
)
def test_answers_without_tensorflow(command, code):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "keras_qpsbgd", *command],
        capture_output=True,
        text=True,
    )
    assert done.returncode == code
    assert "argparse" in done.stderr  # the list of imported modules
    assert not re.search(r"\| +(tensorflow|numpy)\n", done.stderr)


@pytest.mark.parametrize(
    "command, message",
    [
        (["demo", "--output", "{folder}/a.txt"], "must end with one of .png"),
        (["demo", "--output", "{folder}/file/a.png"], "file is not a folder"),
        (["demo", "--output", ""], "the path is empty"),
        (["qpu-cost", "4-2", "--output", "{folder}"], "must end with one of"),
        (["report", "{folder}/a", "--output", "{folder}/file/b"], "a folder"),
        (["export", "{folder}/a", "--to", "onnx", "--output", ""], "is empty"),
        (["report", "missing.run"], "RUN: must be an existing file"),
        (["export", "no.keras", "--to", "onnx"], "MODEL: must be an existing"),
        (["demoo"], "choose from"),
    ],
)
def test_outputs_are_checked_before_the_work(
    command, message, tmp_path, capsys, monkeypatch
):
    for name in ("file", "a"):
        (tmp_path / name).write_text("")
    monkeypatch.setattr(
        importlib, "import_module", lambda name: pytest.fail("work begins")
    )
    with pytest.raises(SystemExit):
        cli.main([word.format(folder=tmp_path) for word in command])
    error = " ".join(capsys.readouterr().err.split())
    assert message in error


@pytest.mark.parametrize("command", ["demo", "backends"])
def test_missing_tensorflow_is_named(command, capsys, monkeypatch):
    def import_module(name):
        raise ModuleNotFoundError("No module", name="tensorflow")

    monkeypatch.setattr(importlib, "import_module", import_module)
    assert cli.main([command]) == 1
    error = capsys.readouterr().err
    assert "requires tensorflow" in error and error.count("\n") == 1
