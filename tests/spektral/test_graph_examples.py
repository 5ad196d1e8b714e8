"""The examples on graphs."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"


def run_example(name, folder, **environment):
    path = ROOT / "examples" / name
    assert len(path.read_text().splitlines()) < 80
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_karate_example(tmp_path):
    pytest.importorskip("networkx")
    output = run_example("karate.py", tmp_path)
    assert (tmp_path / "karate.png").stat().st_size > 10_000
    right = int(re.search(r"training: (\d+) of 20", output)[1])
    assert right >= 14  # chance: 5


@pytest.mark.skipif(not DATA.exists(), reason="needs the files of Cora")
def test_spektral_cora_example(tmp_path):
    pytest.importorskip("spektral")
    output = run_example(
        "spektral_cora.py", tmp_path, KERAS_QPSBGD_DATA=str(DATA)
    )
    accuracy = float(re.search(r"test accuracy\s+([\d.]+)", output)[1])
    assert accuracy > 0.75
