"""Tests the command `verify`, and that the code gives the stored results."""

import json

import numpy as np
import pytest

from research.__main__ import main
from research.experiments import provenance
from research.experiments import results
from research.experiments import verify
from research.experiments.options import Options

pytestmark = pytest.mark.once

METHODS = {"native": "QP-SBGD", "adam": "BinaryConnect (Adam)"}
OURS, OTHER = METHODS.values()


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
