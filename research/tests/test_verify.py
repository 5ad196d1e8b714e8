"""Tests the command `verify`, and that the code gives the stored results."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from research.__main__ import main
from research.engine import engine
from research.engine import records
from research.experiments import provenance
from research.experiments import results
from research.experiments import verify
from research.experiments.options import Options

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
DATA = pathlib.Path(
    os.environ.get("KERAS_QPSBGD_DATA") or ROOT.parent / "shared" / "data"
)
RESULTS = ROOT / "results"
METHODS = {"native": "QP-SBGD", "adam": "BinaryConnect (Adam)"}
OURS, OTHER = METHODS.values()
# MNIST takes minutes.
CHEAP = (
    "logistic",
    "adult-2layer",
    "adult-10layer",
    "adult-small",
    "mnist-pairs",
    "karate",
    "cora",
    "pubmed",
    "direction",
)


@pytest.mark.slow
def test_code_gives_the_stored_results(tmp_path):
    """One seed of each task, by QP-SBGD and by one other method."""
    if not (DATA / "mnist.npz").is_file():
        pytest.skip("the data are not on this machine")
    names = [name for name in CHEAP if copy_rows(name, tmp_path)]
    if not names:
        pytest.skip("all records are of an earlier version")
    # In a process with one thread, as the stored runs.
    words = [sys.executable, "-m", "research", "verify", *names]
    words += ["--methods", *METHODS, "--processes", "1"]
    words += ["--results", str(tmp_path), "--data-dir", str(DATA)]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=engine.environment(1),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def copy_rows(name, out):
    """Copies the records of one configuration of each task and method."""
    runs = records.read(RESULTS / name)
    if not any("code" in run for run in runs):
        return False
    rows = {}
    for run in verify.rows(runs, METHODS.values()):
        rows.setdefault((run["task"], run["method"]), run["configuration"])
    kept = [
        records.line_of(records.plain(run))
        for run in runs
        if rows.get((run["task"], run["method"])) == run["configuration"]
        and run["stage"] == "fresh"
    ]
    (out / name).mkdir()
    (out / name / "runs.jsonl").write_bytes(b"".join(kept))
    for file in ("meta.json", "settings.json"):
        shutil.copy(RESULTS / name / file, out / name)
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results of two short runs."""
    out = tmp_path_factory.mktemp("results")
    words = f"reproduce logistic --quick --processes 1 --output {out}"
    words += " --methods signum frozen"
    assert main(words.split()) == 0
    return out


def note_of(folder):
    text = (folder / "logistic" / "table.md").read_text()
    lines = [line for line in text.splitlines() if provenance.OLDER in line]
    assert provenance.without_notes(text).count("\n\n") == text.count(
        "\n\n"
    ) - len(lines)
    return lines[0] if lines else ""


def test_verify(folder, monkeypatch, capsys):
    def run(*words):
        words = ["verify", *words, "--processes", "1"]
        code = main([*words, "--results", str(folder)])
        results.Folder(folder, Options()).write_tables()
        return code

    path = folder / "logistic" / "meta.json"
    assert len(json.loads(path.read_text())["platform"]) == 16
    # Nothing is older.
    assert note_of(folder) == ""
    assert run() == 0
    assert "No run to repeat." in capsys.readouterr().out
    assert "verified" not in json.loads(path.read_text())
    # The code of a method changes, and gives the same results.
    codes = {"BinaryConnect (Signum)": "changed"}
    before = provenance.code
    monkeypatch.setattr(
        provenance,
        "code",
        lambda name, label: codes.get(label) or before(name, label),
    )
    results.Folder(folder, Options()).write_tables()
    assert note_of(folder).startswith(
        "*Older than the code: BinaryConnect (Signum). "
        "`python -m research verify logistic --results "
    )
    assert run("logistic") == 0
    assert capsys.readouterr().out.count("agrees") == 1
    assert note_of(folder) == ""
    verified = json.loads(path.read_text())["verified"]
    assert list(verified) == ["BinaryConnect (Signum)"]
    assert verified["BinaryConnect (Signum)"]["code"] == "changed"
    # It changes again, and gives other results.
    codes["BinaryConnect (Signum)"] = "changed again"
    again = verify.run_again

    def changed(*args):
        for run in again(*args):
            run["curves"]["test_loss"][1] += 1e-4
            yield run

    monkeypatch.setattr(verify, "run_again", changed)
    assert run() == 1
    assert "gives other results: logistic" in capsys.readouterr().out
    assert "Signum" in note_of(folder)
    assert json.loads(path.read_text())["verified"] == verified


def test_unknown_names(folder, capsys):
    words = ["verify", "cora", "--results", str(folder)]
    assert main(words) == 1
    assert "one of logistic. Received: cora" in capsys.readouterr().err


def test_records_without_a_code_are_older():
    run = {"method": OURS, "stage": "fresh"}
    code = provenance.code("cora", OURS)
    assert provenance.is_older("cora", run, {})
    assert not provenance.is_older("cora", {**run, "code": code}, {})
    verified = {"verified": {OURS: {"code": code}}}
    assert not provenance.is_older("cora", run, verified)
    assert provenance.is_older("cora", {"method": "removed"}, verified)


def make_run(seed, loss, curve=()):
    return {
        "task": "a",
        "method": OURS,
        "stage": "fresh",
        "configuration": {},
        "seed": seed,
        "curves": {"loss": [*curve, loss]} if curve else {},
        "result": {"epoch": 1.0, "loss": loss},
    }


def test_comparison():
    run = make_run(0, 0.5, [0.9])
    runs = [run, make_run(1, 0.6, [0.9]), make_run(2, 0.4, [0.9])]

    def check(*values, is_same=True):
        return verify.compare(run, make_run(0, *values), runs, is_same)

    assert check(0.5, [0.9]).agrees
    assert check(0.500001, [0.9]).agrees
    found = check(0.5, [0.91])
    assert not found.agrees
    assert (found.measure, found.stored, found.again) == ("loss", 0.9, 0.91)
    assert not check(np.nan, [0.9]).agrees
    assert not check(0.5, [0.9, 0.7]).agrees
    # On another platform, the mean +- 4 standard deviations of 0.1.
    assert check(0.89, [0.1], is_same=False).agrees
    assert not check(0.91, [0.9], is_same=False).agrees
    assert not check(np.nan, [0.9], is_same=False).agrees
    diverged = make_run(0, np.nan)
    assert verify.compare(diverged, diverged, [diverged], True).agrees


def test_long_runs_are_not_repeated():
    short, long = make_run(0, 0.5), {**make_run(0, 0.5), "task": "b"}
    only = {**long, "method": OTHER}
    times = [
        {"task": run["task"], "method": run["method"], "seconds": seconds}
        for run, seconds in ((short, 10.0), (long, 500.0), (only, 500.0))
    ]
    kept = verify._without_long([short, long, only], times, 300)
    assert kept == [short, only]
