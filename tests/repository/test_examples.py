"""The examples run as they are."""

import os
import pathlib
import re
import runpy

import pytest

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DATA = ROOT.parent / "shared" / "data"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs an example in this process, which has imported TensorFlow."""
    monkeypatch.chdir(tmp_path)

    def run(name):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def number(pattern, output):
    return float(re.search(pattern + r" +([\d.]+)", output)[1])


def test_quickstart_is_short_and_runs(run):
    pytest.importorskip("sklearn")
    assert len((EXAMPLES / "quickstart.py").read_text().splitlines()) < 40
    assert number("test accuracy:", run("quickstart.py")) > 0.85


@pytest.mark.slow  # 180 calls; `test_qpu.py` trains for a few steps
def test_annealer(run, monkeypatch):
    pytest.importorskip("sklearn")
    # No QPU time for tests.
    monkeypatch.setenv("DWAVE_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("DWAVE_API_TOKEN", raising=False)
    output = run("annealer.py")
    assert "mock QPU" in output
    assert number("test accuracy:", output) > 0.85
    assert number("\ntotal", output) == 2 * 90  # one call per layer and step


def test_custom_loop(run, recwarn):
    assert number("new points:", run("custom_loop.py")) > 0.9
    assert not [w for w in recwarn if "not updated" in str(w.message)]


@pytest.mark.slow  # `reproduce karate` is tested in short
def test_karate(run, tmp_path):
    pytest.importorskip("networkx")
    pytest.importorskip("matplotlib")
    assert len((EXAMPLES / "karate.py").read_text().splitlines()) < 80
    right = number("training:", run("karate.py"))
    assert right >= 14  # of 20; chance: 5
    assert (tmp_path / "karate.png").stat().st_size > 10_000


@pytest.mark.slow  # `test_spektral.py` fits small graphs in this way
@pytest.mark.skipif(not DATA.exists(), reason="needs the files of Cora")
def test_spektral_cora(run, monkeypatch):
    pytest.importorskip("spektral")
    monkeypatch.setenv("KERAS_QPSBGD_DATA", str(DATA))
    path = EXAMPLES / "spektral_cora.py"
    assert len(path.read_text().splitlines()) < 80
    assert number("test accuracy", run("spektral_cora.py")) > 0.75
