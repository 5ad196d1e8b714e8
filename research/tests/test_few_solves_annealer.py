"""Tests the part of the study of few solver calls about annealers."""

import pathlib

import pytest

from keras_qpsbgd.backends.dwave.qpu import DWaveBackend
from research import __main__ as research
from research.few_solves import annealer
from research.few_solves import annealer_page
from research.few_solves import records

pytestmark = pytest.mark.once
ROOT = pathlib.Path(__file__).parents[2]
FEW = ("columns-native", "columns-qpu", "columns-reads-qpu")


@pytest.mark.slow
def test_command_writes_a_section_and_resumes(tmp_path, monkeypatch):
    few = {name: annealer.VARIANTS[name] for name in FEW}
    monkeypatch.setattr(annealer, "VARIANTS", few)
    monkeypatch.setattr(annealer, "SEEDS", {"logistic": 2})
    arguments = ["few-solves", "--annealer", "--quick", "--out", str(tmp_path)]
    assert research.main(arguments) == 0
    found = records.read(tmp_path, annealer.NAME)
    assert len(found) == len(FEW)
    losses = [
        [run["results"]["2"]["train_loss"] for run in runs]
        for runs in found.values()
    ]
    # 12 inputs: all of them find the same optimum.
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[0] == pytest.approx(losses[2], abs=1e-5)
    # One call per update, with the time of the cost model.
    backend = DWaveBackend(mock=True, num_reads=annealer.NUM_READS)
    for run in found["logistic_columns-qpu"]:
        assert run["results"]["2"]["calls"] == 2
        seconds = 2 * backend.step_cost([(12, 1)]).seconds
        assert run["results"]["2"]["qpu_seconds"] == pytest.approx(
            seconds, abs=1e-5
        )
    text = (tmp_path / "RESULTS.md").read_text()
    assert annealer_page.TITLE in text
    packed = (tmp_path / "annealer.json.gz").read_bytes()
    monkeypatch.setattr(annealer, "_Trainer", None)
    assert research.main(arguments) == 0  # computes nothing again
    assert (tmp_path / "annealer.json.gz").read_bytes() == packed


def test_section(tmp_path):
    def runs(losses, calls):
        counts = {str(count): None for count in annealer.UPDATES}
        return [
            {
                "seed": seed,
                "results": {
                    count: {
                        "train_loss": loss,
                        "test_accuracy": 0.75,
                        "calls": calls,
                        "qpu_seconds": 0.25 * calls,
                    }
                    for count in counts
                },
            }
            for seed, loss in enumerate(losses)
        ]

    assert annealer_page.section(tmp_path) == []
    write = records.write
    write(tmp_path, "annealer", "logistic_newton-native", runs([0.5, 0.4], 0))
    write(tmp_path, "annealer", "logistic_newton-qpu", runs([0.5, 0.6], 3))
    write(tmp_path, "logistic", records.OPTIMUM, {0: 0.5, 1: 0.4})
    parts = annealer_page.section(tmp_path)
    lines = "\n".join(parts).splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert all(len(line) <= 80 for line in tables)
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in tables]
    assert ["Newton, native", *["0.4500"] * 6] in cells
    assert ["Newton, native", *["100%"] * 6] in cells
    assert ["Newton, QPU", *["50%"] * 6] in cells
    row = ["Newton, QPU", "0.5500 +- 0.0500", "75.0 +- 0.0", "3", "0.75"]
    assert row in cells
    assert "Newton, QPU: training loss +0.1000 (p = 0.500)" in " ".join(lines)


def test_committed_tables_fit_a_terminal():
    text = "\n".join(annealer_page.section(ROOT / "results/few-solves"))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows and all(len(row) <= 80 for row in rows)
