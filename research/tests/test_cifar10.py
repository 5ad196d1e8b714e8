"""The study of CIFAR-10, without a GPU."""

import json
import pathlib

import pytest

from research import code_version
from research.cifar10 import export
from research.cifar10 import records
from research.cifar10 import table

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
FIRST = ROOT / "results" / "cifar10" / "first"
NETWORK = {"width": 64, "activation": "relu"}


def new_run(program, rate, seed, validation, epochs=3, **others):
    others.setdefault("settings", {})
    return {
        "program": program,
        "epochs": epochs,
        "rate": rate,
        "seed": seed,
        "validation": validation,
        "test": validation - 0.01,
        "loss": 1 - validation,
        "validation_by_epoch": [
            validation - 0.1 / (i + 1) for i in range(epochs)
        ],
        "seconds_by_epoch": epochs * [2.0],
        "ms_per_step": 2.0,
        "images": {"train": 256},
        "batch": 128,
        **NETWORK,
        **others,
    }


def write(path, runs):
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))


def test_stored_runs_are_skipped(tmp_path):
    path = tmp_path / "runs.jsonl"
    runs = records.Runs("relu-64/adam", 3, (0.1, 0.2), (0, 1), {})
    assert len(records.missing(runs, NETWORK, path)) == 4
    others = [
        new_run("adam", 0.1, 0, 0.5, epochs=4),
        new_run("adam", 0.1, 0, 0.5, activation="binary"),
        new_run("adam", 0.1, 0, 0.5, settings={"threshold": 1.0}),
        new_run("sgd", 0.1, 0, 0.5),
    ]
    write(path, others)
    assert len(records.missing(runs, NETWORK, path)) == 4
    write(path, [*others, new_run("adam", 0.2, 1, 0.5)])
    found = [pair for *pair, _ in records.missing(runs, NETWORK, path)]
    assert found == [[0.1, 0], [0.1, 1], [0.2, 0]]


def test_jobs_of_the_study():
    """Adam has at least as many configurations, and the same seeds."""
    tries, seeds = {}, {}
    lines = (
        (ROOT / "research" / "cifar10" / "jobs.txt").read_text().splitlines()
    )
    for line in lines:
        if not line or line.startswith("#"):
            continue
        runs = records.parsed(line)
        key = *runs.program.split("/"), runs.epochs
        if runs.rates == records.BEST:
            seeds[key] = runs.seeds
        else:
            assert runs.seeds == records.TUNING
            tries[key] = tries.get(key, 0) + len(runs.rates)
    assert len(tries) == len(seeds) == 6
    for network, program, epochs in tries:
        ours, others = ((network, p, epochs) for p in ("averaged", program))
        assert tries[others] >= tries[ours] and seeds[others] == seeds[ours]


def test_table_of_the_first_runs():
    text = table.table(records.read(FIRST / "runs.jsonl"), 12)
    assert text.splitlines()[2:4] == [
        "| `QPSBGD()` | 4 | 0.002 | 8 | 0.8534 ± 0.0016 |  | "
        "0.4221 ± 0.0013 |  |",
        "| Adam | 5 | 0.002 | 8 | 0.8447 ± 0.0009 | 0.004 | "
        "0.4169 ± 0.0020 | 0.05 |",
    ]
    assert "| SGD with momentum | 6 | 3† | 6 | 0.8265 ± 0.0012 |" in text


def test_tables_and_figure(tmp_path):
    """Two networks, one of them with a method that fails."""
    runs = []
    for index, program in enumerate(("adam", "averaged", "bop")):
        for activation in ("relu", "binary"):
            for rate, seed in [(r, 100) for r in (1, 2, 3)] + [(2, 0), (2, 1)]:
                accuracy = 0.7 + 0.01 * (index + seed % 3 - (rate - 2) ** 2)
                runs.append(
                    new_run(
                        program, rate, seed, accuracy, activation=activation
                    )
                )
    runs[-1]["loss"] = None
    for run in runs:
        if run["program"] == "adam":
            run["code"] = code_version.version(*export.CODE)
    write(tmp_path / "runs.jsonl", runs)
    times = [{"program": "adam", "ms_per_step": 500.0, **NETWORK}]
    write(tmp_path / "times.jsonl", times)
    text = table.markdown(runs)
    assert "64 filters, ReLU, 3 epochs**\n\n| method | tries" in text
    assert "| Adam | 3 | 2 | 2 | 0.6950 ± 0.0050 |" in text
    assert "nan ± nan" in text
    assert text.startswith("*Older than the code: averaged, bop.*\n\n**")
    assert table.draw(tmp_path).stat().st_size > 10_000
    panels = table.figure(runs, times).axes
    assert len(panels) == 4
    ours, adam, bop = panels[1].get_lines()
    assert list(ours.get_xdata()) == [0.004, 0.008, 0.012]
    assert list(adam.get_xdata()) == [1.0, 2.0, 3.0]  # as timed
