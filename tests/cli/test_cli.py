"""The command line interface."""

import importlib
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import backends
from keras_qpsbgd import cli
from keras_qpsbgd.cli import demo
from keras_qpsbgd.optimizers.averaged_rule import Averaged


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


def test_accuracy_of_the_demo():
    assert demo.accuracy_text([0.9]) == "90.0 %"
    assert demo.accuracy_text([0.9, 0.91]) == "90.5 +- 0.5 %"


def test_demo_without_scikit_learn(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert cli.main(["demo"]) == 1
    captured = capsys.readouterr()
    assert 'python -m pip install "keras_qpsbgd[demo]"' in captured.err
    assert not captured.out


@pytest.mark.slow
@pytest.mark.once
def test_demo(capsys, monkeypatch, tmp_path):
    """Every seed starts from new weights and an optimizer without history."""
    pytest.importorskip("sklearn")
    picture = tmp_path / "digits.png"
    found = []
    train = demo.train
    monkeypatch.setattr(
        demo, "train", lambda *a: found.append(train(*a)) or found[-1]
    )
    for seeds in ("1", "2"):
        command = ["demo", "--epochs", "1", "--seeds", seeds]
        assert cli.main([*command, "--output", str(picture)]) == 0
        out = capsys.readouterr().out.replace(str(picture), "FILE")
        assert "Accuracies after each epoch: FILE" in out
        for method in demo.RATES:
            assert f"\n{method}  " in out  # the row in the table
        assert max(map(len, out.splitlines())) <= 80
    assert found[0] == found[2][:1] and found[2][0] != found[2][1]
    assert picture.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    assert cli.main([*command, "--output", str(picture)]) == 0
    assert "No picture was drawn. This tool needs matplot" in (
        capsys.readouterr().out
    )


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize(
    "topology",
    ["pegasus", pytest.param("zephyr", marks=pytest.mark.exhaustive)],
)
def test_qpu_cost(capsys, monkeypatch, topology):
    monkeypatch.delenv("DWAVE_API_TOKEN", raising=False)
    arguments = ["--steps", "1000", "--topology", topology]
    assert cli.main(["qpu-cost", "16-64-4-2", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    # 64 columns of 16 inputs: chains of 3, one call, 43 or 53 ms.
    (row,) = [line.split() for line in lines if line.startswith("16 x 64")]
    ms = {"pegasus": "42.7", "zephyr": "52.8"}[topology]
    assert row[3:] == ["16", "64", "16", "3", "1", ms]
    # Three layers share two calls.
    (last,) = [line.split() for line in lines if line.startswith("all")]
    assert last[-2] == "2"
    out = " ".join(lines)
    solver = {"pegasus": "_system4.1, August 2022", "zephyr": "2_system1.7"}
    assert f"Timing data: Advantage{solver[topology]}" in out
    total = re.search(r"1,000 steps: ([\d.]+) s of QPU access time", out)[1]
    assert total == last[-1]
    ratios = re.search(r"take ([\d.]+) times .* layer, ([\d.]+) times", out)
    assert float(ratios[1]) > 1.2 and float(ratios[2]) > 20


@pytest.mark.once
@pytest.mark.slow
def test_qpu_cost_is_what_the_optimizer_estimates(
    capsys, tmp_path, monkeypatch
):
    """Also for a layer with several QUBOs, with a picture and a budget."""
    monkeypatch.setattr(Averaged, "widest", 8)
    from matplotlib import colors
    from matplotlib import image

    from keras_qpsbgd.backends.dwave import drawing

    plot = tmp_path / "new" / "chip.png"
    arguments = ["--steps", "10", "--budget-seconds", "60"]
    arguments += ["--output", str(plot)]
    assert cli.main(["qpu-cost", "10-2", *arguments]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^10 x 2 +2 x 5 +2 +5 ", out, re.M)
    model = keras.Sequential([keras.Input((10,)), kq.layers.BinaryDense(2)])
    optimizer = kq.QPSBGD(backend={"name": "dwave", "mock": True})
    estimate = optimizer.estimate(model, 10)
    calls, ms = re.search(r"shared calls +(\d+) +([\d.]+)\n", out).groups()
    assert int(calls) == estimate.calls_per_update
    assert float(ms) == pytest.approx(1e3 * estimate.seconds / 10, abs=0.051)
    steps = re.search(r"60 s is enough for ([\d,]+) steps", out)[1]
    assert int(steps.replace(",", "")) == int(600 / estimate.seconds)
    pixels = image.imread(plot)[..., :3].reshape(-1, 3)
    for color in map(colors.to_rgb, drawing.COLORS[:2]):
        assert (abs(pixels - color) < 0.02).all(axis=1).any()


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
def test_qpu_cost_of_sweeps_is_what_they_take(capsys):
    """The estimate equals the QPU time of `fit_columns` on the mock QPU."""
    model, dampings = dense_network(), (1.0, 4.0)
    arguments = ["--sweeps", "1", "--dampings", "2"]
    arguments += ["--num-reads", "20", "--budget-seconds", "60"]
    assert cli.main(["qpu-cost", "6-3-2", *arguments]) == 0
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
        r"1 sweep: ([\d.]+) s .* enough for (\d+) sweeps.* 2 QUBOs per",
        " ".join(lines),
    )
    assert float(found[1]) == pytest.approx(history.qpu_seconds, rel=0.01)
    assert int(found[2]) == math.floor(60 / history.qpu_seconds)


@pytest.mark.once
@pytest.mark.parametrize(
    "arguments, message",
    [
        (["16"], "network: must be layer sizes.*Received: 16"),
        (["16-0"], "of at least 1.*Received: 16-0"),
        (["8-2", "--output", "a.txt"], "'txt' is not supported"),
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
        (["demo", "--help"], 0),
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
        (["demo", "--seeds", "0"], "must be at least 1"),
        (["report", "missing.run"], "RUN: must be an existing file"),
        (["export", "no.keras", "--to", "onnx"], "MODEL: must be an existing"),
        (["demoo"], "choose from"),
    ],
)
def test_inputs_are_checked_before_the_work(
    command, message, capsys, monkeypatch
):
    monkeypatch.setattr(
        importlib, "import_module", lambda name: pytest.fail("work begins")
    )
    with pytest.raises(SystemExit):
        cli.main(command)
    error = " ".join(capsys.readouterr().err.split())
    assert message in error
