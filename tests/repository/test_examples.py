"""Runs the examples."""

import importlib.util
import os
import pathlib
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest

import keras_qpsbgd as kq
from keras_qpsbgd.backends import remote

# Tests of the package run the same on smaller networks.
pytestmark = [pytest.mark.once, pytest.mark.slow]

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DATA = ROOT.parent / "shared" / "data"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs an example in this process, which has imported TensorFlow."""
    monkeypatch.chdir(tmp_path)
    # Tests must not use QPU time, and examples must not if there is a token.
    monkeypatch.setenv("DWAVE_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("DWAVE_API_TOKEN", "invalid")

    def run(*words):
        name, *_ = words
        monkeypatch.setattr(sys, "argv", list(words))
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def number(pattern, output):
    return float(re.search(pattern + r" +([\d.]+)", output)[1])


def test_quickstart(run):
    pytest.importorskip("sklearn")
    assert number("test accuracy:", run("quickstart.py")) > 0.85


def test_quantize(run):
    pytest.importorskip("sklearn")
    output = run("quantize.py")
    real = number("float network: accuracy", output)
    assert real > 0.95
    assert number("bits=4, qubo: accuracy", output) > real - 0.02
    assert number("bits=1, qubo: accuracy", output) > real - 0.08
    assert "Compression: 15.9x" in output


def test_deploy(run):
    output = run("deploy.py").replace(",", "")
    assert "predicts exactly the same: True" in output
    assert number("model.kq", output) * 5 < number("model.keras", output)
    assert number("Predictor:", output) < number("model.kq", output)
    assert number("same classes:", output) > 0.99


def test_predict(run, tmp_path, capsys):
    image = pytest.importorskip("PIL.Image")
    model = ROOT / "models" / "mnist-relu.kq"
    lines = run("predict.py", str(model)).splitlines()
    assert len(lines) == 10
    for digit, line in enumerate(lines):  # the stored pictures
        assert line.startswith(f"mnist-{digit}.png: {digit} (")
    # A larger picture, in colors.
    seven = ROOT / "models" / "pictures" / "mnist-7.png"
    with image.open(seven) as picture:
        picture.convert("RGB").resize((56, 56)).save(tmp_path / "photo.png")
    output = run("predict.py", str(model), "photo.png")
    assert output.startswith("photo.png: 7 (")
    # Two test images, one of them with a wrong label.
    with image.open(seven) as picture:
        x = np.stack([np.asarray(picture)] * 2)
    np.savez(tmp_path / "mnist.npz", x_test=x, y_test=[7, 1])
    output = run("predict.py", str(model), "--test", "mnist.npz")
    assert output == "accuracy on 2 test images: 0.5000\n"
    with pytest.raises(SystemExit):
        run("predict.py", str(model), "eight.png")
    message = "there is no such file. Received: eight.png"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["cifar10-vgg-relu", "cifar10-vgg-binary"])
def test_predict_photographs(run, name, tmp_path, capsys):
    pytest.importorskip("PIL.Image")
    model = str(ROOT / "models" / f"{name}.kq")
    lines = run("predict.py", model).splitlines()
    assert len(lines) == 10
    for line in lines:  # the files have the names of the classes
        file, found = line.split(": ")
        assert file == f"cifar10-{found.partition(' ')[0]}.png"
    np.savez(
        tmp_path / "digits.npz", x_test=np.ones((2, 28, 28)), y_test=[7, 1]
    )
    with pytest.raises(SystemExit):
        run("predict.py", model, "--test", "digits.npz")
    assert "(32, 32, 3). Received: (28, 28)" in capsys.readouterr().err


def test_predict_imports_numpy_and_pillow_alone():
    pytest.importorskip("PIL.Image")
    script = f"""
import runpy, sys
sys.argv = ["predict.py"]
runpy.run_path({str(EXAMPLES / "predict.py")!r}, run_name="__main__")
assert not {{"tensorflow", "keras", "dimod"}} & set(sys.modules)
"""
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_annealer(run):
    pytest.importorskip("sklearn")
    output = run("annealer.py")
    assert "mock QPU" in output
    assert number("test accuracy:", output) > 0.85
    assert number("\ntotal", output) == 90  # one call per step


@pytest.mark.parametrize("name", ["annealer.py", "few_solves.py"])
def test_chip_is_used_on_request_only(run, monkeypatch, name):
    def connect(*args, **options):
        raise kq.backends.BackendUnavailable("a connection")

    pytest.importorskip("sklearn")
    monkeypatch.setattr(remote, "connect", connect)
    with pytest.raises(kq.backends.BackendUnavailable, match="a connection"):
        run(name, "--qpu")


@pytest.mark.exhaustive
def test_few_solves(run):
    pytest.importorskip("sklearn")
    output = run("few_solves.py")
    assert "mock QPU" in output
    losses = re.findall(r"training loss ([\d.]+)", output)
    start, columns, gradient, adam, _ = map(float, losses)
    assert columns < adam < start
    assert gradient < start
    assert number("fit_columns:", output) == number("\ntotal", output) == 20
    # The guide shows the same numbers.
    guide = (ROOT / "docs" / "guides" / "few-solves.md").read_text()
    for line in output.splitlines():
        if re.search("training loss|Estimate|calls,", line):
            assert line in guide, line
    assert number("Budget:", output) > 58


def test_custom_loop(run, recwarn):
    assert number("new points:", run("custom_loop.py")) > 0.9
    assert not [w for w in recwarn if "couplings" in str(w.message)]


def test_karate(run, tmp_path):
    pytest.importorskip("networkx")
    pytest.importorskip("matplotlib")
    correct = number("training:", run("karate.py"))
    assert correct >= 14  # of 20; chance: 5
    assert (tmp_path / "karate.png").stat().st_size > 10_000


@pytest.mark.skipif(
    importlib.util.find_spec("tf_keras") is None,
    reason="Keras 3 does not train on several workers",
)
def test_distributed(tmp_path):
    pytest.importorskip("dwave.samplers")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "distributed.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,  # longer than the timeout of the example's processes
    )
    assert done.returncode == 0, done.stdout + done.stderr
    equal = [line for line in done.stdout.splitlines() if "equal" in line]
    assert len(equal) == 3 and all(line.endswith(": True") for line in equal)
    # Only the first worker calls the solver.
    (calls,) = re.findall(r"solver by worker: \[(.*)\]$", done.stdout, re.M)
    first, second = map(int, calls.split(", "))
    assert first > 0
    assert second == 0


@pytest.mark.skipif(not DATA.exists(), reason="requires the files of Cora")
def test_spektral_cora(run, monkeypatch):
    pytest.importorskip("spektral")
    monkeypatch.setattr("spektral.datasets.citation.DATASET_FOLDER", str(DATA))
    with kq.spektral.enable_keras3():  # restores Spektral afterwards
        assert number("test accuracy", run("spektral_cora.py")) > 0.75
