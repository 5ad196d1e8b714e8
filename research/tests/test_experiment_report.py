"""Tests of records, statistics, tables, figures, pages and blocks."""

import json
import math
import pathlib
import re
import shutil
import types

import numpy as np
import pytest
from scipy import stats

from keras_qpsbgd.compare import records
from keras_qpsbgd.compare.methods import METHODS
from keras_qpsbgd.compare.report import figures
from keras_qpsbgd.compare.report import protocol
from keras_qpsbgd.compare.report import statistics
from keras_qpsbgd.compare.report import tables
from research.experiments import command
from research.experiments import reproduce
from research.experiments.options import Options
from research.experiments.pages import blocks
from research.experiments.pages import overview
from research.experiments.pages import pooled
from research.experiments.pages import results_page
from research.experiments.pages import sentences
from research.experiments.pages.grids_table import ends_sentence
from research.experiments.pages.grids_table import grids_table

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
ACCURACY = protocol.TEST_ACCURACY
LOSS = protocol.TEST_LOSS
OURS = "QP-SBGD"


def make_run(
    seed=0, test=0.8, validation=0.7, method=OURS, stage="fresh", rate=0.02
):
    measured = {"validation_accuracy": validation}
    if stage == "fresh":
        measured |= {"test_accuracy": test, "test_loss": 1 - test}
    return {
        "task": "a",
        "method": method,
        "stage": stage,
        "configuration": {"rate": rate, "real_rate": 0.01},
        "seed": seed,
        "curves": {
            "epoch": [0, 1],
            **{key: [value / 2, value] for key, value in measured.items()},
        },
        "result": {"epoch": 1, **measured},
    }


def make_task(**changes):
    settings = {
        "name": "a",
        "title": "Task A",
        "measures": (ACCURACY, LOSS),
        "curves": (ACCURACY, LOSS),
        "paper": {OURS: 0.8, "SGD": "figure only"},
    }
    return protocol.TaskReport(**{**settings, **changes})


def of_method(method, values, **settings):
    return [
        make_run(seed, value, method=method, **settings)
        for seed, value in enumerate(values)
    ]


# Ours is about 0.80; the others are above, equal and below.
OUR_VALUES = (0.80, 0.81, 0.79, 0.80)
RUNS = [
    *of_method(OURS, OUR_VALUES),
    *of_method("Adam", (0.90, 0.92, 0.90, 0.91)),
    *of_method("SGD", (0.81, 0.80, 0.80, 0.79)),
    *of_method(
        "a method with a name that is far too long", (0.6, 0.7, 0.6, 0.7)
    ),
    *of_method("QP-SBGD (gurobi)", (0.80,)),
]


def save(folder, runs):
    for run in runs:
        path = records.path_of(folder, run["task"], run["method"])
        records.append(path, run)


# Records


def test_records_return_sorted_and_rounded(tmp_path):
    save(tmp_path / "one", RUNS)
    save(tmp_path / "two", RUNS[::-1])
    assert records.read(tmp_path / "one") == records.read(tmp_path / "two")
    path = tmp_path / "three" / "runs" / "a.jsonl"
    rate = 0.0123456789
    records.append(path, make_run(np.int64(3), np.float32(1 / 3), rate=rate))
    records.append(path, make_run(4, math.inf))
    run, diverged = records.read(tmp_path / "three")
    assert run["result"]["test_accuracy"] == 0.333333
    assert run["configuration"]["rate"] == rate
    assert math.isnan(diverged["result"]["test_accuracy"])
    keys = list(json.loads(path.read_text().splitlines()[0]))
    assert keys == sorted(keys)


def test_a_cut_line_is_dropped_and_overwritten(tmp_path):
    save(tmp_path, of_method(OURS, (0.1, 0.2)))
    path = records.path_of(tmp_path, "a", OURS)
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    assert [run["seed"] for run in records.read(tmp_path)] == [0]
    records.append(path, make_run(1, 0.2))
    assert path.read_bytes() == content
    # A repeated run counts once; a different one with the same key is an error.
    records.append(path, make_run(1, 0.2))
    assert len(records.read(tmp_path)) == 2
    records.append(path, make_run(1, 0.3))
    with pytest.raises(ValueError, match="two different runs"):
        records.read(tmp_path)
    path.write_bytes(b"{\n" + content)
    with pytest.raises(ValueError, match="Line 1 .* Received: "):
        records.read(tmp_path)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"stage": "test"}, "`stage` .* Received: test"),
        ({"stage": "tuning"}, "test data. Received: test_acc.*, test_loss"),
        ({"seed": "0"}, "`seed` .* Received: 0"),
        ({"curves": {"a": [1], "b": []}}, "`curves` .* Received: "),
    ],
)
def test_bad_records(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        records.append(tmp_path / "a.jsonl", {**make_run(), **change})
    with pytest.raises(ValueError, match="`record` .* Received: no task"):
        records.validate({})


# Statistics


def test_mean_and_error():
    mean, error = statistics.mean_and_error([1.0, 2.0, 6.0])
    assert mean == 3.0
    assert error == pytest.approx(math.sqrt(14 / 2 / 3))
    mean, error = statistics.mean_and_error([[1.0, 2.0]])
    assert list(mean) == [1.0, 2.0] and np.isnan(error).all()


def test_paired_test():
    ours = {0: 3.0, 1: 5.0, 2: 4.0, 7: 100.0}
    theirs = {2: 1.0, 1: 4.0, 0: 1.0, 9: -100.0}
    found = statistics.paired_test(ours, theirs)
    assert (found.difference, found.pairs) == (2.0, 3)
    assert found.p == pytest.approx(stats.ttest_rel([3, 5, 4], [1, 4, 1])[1])
    # Differences 2, 1, 3 have mean 2 and error 1 / sqrt(3).
    t = 2 * math.sqrt(3)
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t**2))
    assert statistics.paired_test(ours, ours).p == 1.0
    shifted = {seed: value + 0.1 for seed, value in ours.items()}
    assert math.isnan(statistics.paired_test(ours, shifted).p)
    assert math.isnan(statistics.paired_test({0: 1.0}, {0: 2.0}).p)
    assert math.isnan(statistics.paired_test({0: 1.0, 1: math.nan}, ours).p)
    assert statistics.paired_test({0: 1.0}, {1: 1.0}).pairs == 0


@pytest.mark.parametrize(
    "difference, p, accuracy, loss",
    [
        (-0.1, 0.01, "better", "worse"),
        (0.1, 0.01, "worse", "better"),
        (-0.1, 0.05, "tie", "tie"),
        (0.1, math.nan, "not tested", "not tested"),
    ],
)
def test_verdicts(difference, p, accuracy, loss):
    comparison = statistics.PairedTest(difference, p, 5)
    assert statistics.verdict(comparison, ACCURACY) == accuracy
    assert statistics.verdict(comparison, LOSS) == loss


def test_choice_uses_only_validation_data_of_tuning_runs():
    measure = protocol.VALIDATION_ACCURACY

    def tuning(rate, *values):
        return [
            make_run(seed, validation=value, stage="tuning", rate=rate)
            for seed, value in enumerate(values)
        ]

    runs = [
        *tuning(0.1, 0.5, 0.9),
        *tuning(0.2, 0.8, 0.8),
        *tuning(0.3, 0.7, 0.9),
        *tuning(0.4, 1.0, math.nan),
        # Better, but a fresh run.
        make_run(0, test=0.99, validation=0.99, rate=0.1),
    ]
    assert statistics.choose(runs, measure)["rate"] == 0.2
    grid = [{"rate": rate, "real_rate": 0.01} for rate in (0.4, 0.3, 0.2, 0.1)]
    assert statistics.choose(runs, measure, grid)["rate"] == 0.3
    # The lowest is best for a loss.
    loss = protocol.Measure(measure.key, "", higher_is_better=False)
    assert statistics.choose(runs, loss)["rate"] == 0.1
    with pytest.raises(ValueError, match="`runs` must have the same"):
        statistics.choose(runs[1:], measure)
    with pytest.raises(ValueError, match="`measure` .* test_accuracy"):
        statistics.choose(runs, ACCURACY)


# Tables


def test_a_diverged_run_is_not_chosen_from_its_file(tmp_path):
    path = tmp_path / "runs.jsonl"
    for rate, values in ((0.1, (0.9, math.nan)), (0.2, (0.5, 0.5))):
        for seed, value in enumerate(values):
            run = make_run(seed, validation=value, stage="tuning", rate=rate)
            records.append(path, run)
    found = statistics.choose(
        records.read_lines(path), protocol.VALIDATION_ACCURACY
    )
    assert found["rate"] == 0.2


def test_rows_and_verdicts():
    head, *rows = map(
        lambda line: [cell.strip() for cell in line.strip("|").split("|")],
        tables.markdown(RUNS, make_task(), OURS).splitlines(),
    )
    found = {row[0]: dict(zip(head, row)) for row in rows[1:]}
    assert list(found)[:3] == [OURS, "QP-SBGD (gurobi)", RUNS[12]["method"]]
    assert found[OURS]["test accuracy"] == "80.0 +- 0.4 %"
    assert found[OURS]["test loss"] == "0.2000 +- 0.0041"
    assert found[OURS]["paper"] == "80 %"
    words = {name: row["verdict"] for name, row in found.items()}
    assert list(words.values()) == [
        "reference",
        "not tested",
        "worse",
        "better",
        "tie",
    ]
    assert found["Adam"]["difference"] == "+10.7 pp"
    p = stats.ttest_rel(OUR_VALUES, (0.81, 0.80, 0.80, 0.79)).pvalue
    assert found["SGD"]["p"] == f"{p:.3f}"
    assert found["SGD"]["paper"] == "figure only"
    assert found["QP-SBGD (gurobi)"]["seeds"] == "1"
    assert found["SGD"]["configuration"] == "rate 0.02, real rate 0.01"


def test_text_fits_the_terminal():
    many = tuple(
        protocol.Measure("test_loss", f"measure {index}", False)
        for index in range(7)
    )
    text = tables.terminal(RUNS, make_task(measures=many), OURS)
    assert max(map(len, text.splitlines())) <= 80
    for measure in many:
        assert measure.label in text


def test_small_errors_have_two_decimals():
    texts = [tables.mean_text((0.9755, v), ACCURACY) for v in (0.9759, 0.98)]
    assert texts == ["97.57 +- 0.02 %", "97.8 +- 0.2 %"]
    assert tables.difference_text(-0.0013, ACCURACY) == "-0.13 pp"


def test_diverged_runs_are_counted():
    assert tables.mean_text([0.5, math.nan, 0.5], ACCURACY) == "1 of 3 diverged"
    runs = [*RUNS, make_run(4, math.nan, method="Adam")]
    rows = tables.rows_of([*runs, make_run(4, 0.8)], make_task(), OURS)
    assert {row.method: row.verdict for row in rows}["Adam"] == "not tested"


def test_several_fresh_configurations_are_an_error():
    runs = [*RUNS, make_run(9, rate=0.5)]
    with pytest.raises(ValueError, match="Received: 2 .*QP-SBGD"):
        tables.rows_of(runs, make_task(), OURS)


def test_grids():
    tuning = [
        make_run(seed, validation=value, stage="tuning", rate=rate)
        for seed in (5, 6, 7)
        for rate, value in ((0.02, 0.7), (0.1, 0.6))
    ]
    runs = [*RUNS[:4], *tuning, *of_method("frozen", (0.5, 0.5))]
    text = grids_table(runs, make_task(), OURS)
    assert text.splitlines() == [
        "| method | fresh seeds | tuning seeds | tried | configurations with "
        "their validation accuracy (chosen one in bold) |",
        "| --- | --- | --- | --- | --- |",
        "| QP-SBGD | 0 to 3 | 5 to 7 | 2 | **rate 0.02, real rate 0.01: 70.0 "
        "+- 0.0 %**; rate 0.1, real rate 0.01: 60.0 +- 0.0 % |",
        "| frozen | 0, 1 | - | - | not tuned |",
    ]
    for run in tuning:
        run["result"]["validation_accuracy"] *= -1
        run["seed"] -= 3
    text = grids_table([*RUNS[:4], *tuning], make_task(), OURS)
    assert "| 0 to 3 (also tuned on: 2, 3) |" in text
    assert re.search(r"0.02, .*\*\* \(run, but not the best\); rate 0.1", text)


def test_ends_of_a_grid_are_marked():
    tuning = [
        make_run(5, validation=rate, stage="tuning", rate=rate)
        for rate in (0.1, 0.2, 0.3)
    ]
    for rate, note in ((0.2, ""), (0.3, " (the highest rate of the grid)")):
        runs = [make_run(0, rate=rate), *tuning]
        sentence = ends_sentence(runs, make_task(), OURS)
        expected = "Chosen at an end of the grid: QP-SBGD (highest rate)."
        assert sentence.startswith(expected if note else "")
        assert bool(sentence) == bool(note)
        text = grids_table(runs, make_task(), OURS)
        best = " (run, but not the best)" if rate == 0.2 else ""
        value = f"{100 * rate:.1f} %**{best}{note}"
        assert f"**rate {rate:g}, real rate 0.01: {value}" in text


# Tasks compared at once


def test_pooled_over_tasks():
    """Ours minus theirs: 1, 2, 3 on one task, 1, 0, 5 on the other."""
    values = {
        ("a", OURS): (5.0, 5.0, 5.0),
        ("b", OURS): (9.0, 9.0, 9.0),
        ("a", "Adam"): (4.0, 3.0, 2.0),
        ("b", "Adam"): (8.0, 9.0, 4.0),
        ("a", "SGD"): (5.0, 5.0),
        ("b", "SGD"): (9.0, 9.0, 9.0),
        ("a", "run on one task"): (1.0, 1.0, 1.0),
    }
    runs = [
        {**run, "task": task}
        for (task, method), of_method_ in values.items()
        for run in of_method(method, of_method_)
    ]
    adam, sgd = pooled.compare(runs, ["a", "b"], ACCURACY, OURS)
    assert adam.method == "Adam" and adam.differences == (-2.0, -2.0)
    # Averages of the seeds are 1, 1, 4, with mean 2 and standard error 1. With
    # two degrees of freedom p is 1 - t / sqrt(2 + t^2).
    assert (adam.comparison.difference, adam.comparison.pairs) == (2.0, 3)
    assert adam.comparison.p == pytest.approx(1 - 2 / math.sqrt(6))
    assert adam.verdict == "tie"
    # All six have mean 2 and variance 16 / 5.
    expected = stats.t.sf(2 / math.sqrt(16 / 5 / 6), df=5) * 2
    assert adam.independent.p == pytest.approx(expected)
    assert adam.independent.pairs == 6
    # The third seed is missing on one task.
    assert (sgd.comparison.p, sgd.comparison.pairs) == (1.0, 2)
    assert sgd.independent.pairs == 5


def test_pooled_table():
    tasks = (make_task(title="A"), make_task(name="b", title="B"))
    runs = [*RUNS, *({**run, "task": "b"} for run in RUNS)]
    report = pooled.PooledReport("e", "E", "", (), tasks, pooled="both")
    found = pooled.compare(runs, ["a", "b"], ACCURACY, OURS)
    head, _, *rows = pooled.table(found, report, ACCURACY).splitlines()
    assert head.startswith("| method: difference in test accuracy | A | B | me")
    assert "| Adam | +10.7 pp | +10.7 pp | +10.7 pp | 4 | <0.001 |" in rows[-2]
    parts = results_page._pooled(report, runs)
    assert parts[0] == "### Pooled over both"
    assert len(parts) == 6
    assert parts[3].startswith("Test accuracy: QP-SBGD is ahead of a method")
    assert parts[5].startswith("Test loss: QP-SBGD is ahead of a method")
    assert not results_page._pooled(report, RUNS)


# The page


@pytest.mark.parametrize(
    "paper, words",
    [
        (0.80, "80.0 .- 0.4 %. This agrees with the paper's 80 %"),
        (0.809, "is below the paper's 80.9 %"),
        (0.791, "is above the paper's 79.1 %"),
        ((0.7, 0.795), "agrees with the paper's 70 to 79.5 %"),
        ((0.7, 0.79), "is above the paper's 70 to 79 %"),
        ("figure only", "shows its results in a figure only"),
    ],
)
def test_agreement_with_the_paper(paper, words):
    task = make_task(paper={OURS: paper})
    rows = tables.rows_of(RUNS, task, OURS)
    assert re.search(words, sentences.paper_sentence(rows, task, OURS))


def test_sentence_on_verdicts():
    _, *others = tables.rows_of(RUNS, make_task(), OURS)
    sentence = sentences.verdicts_sentence(others, OURS, ACCURACY)
    name = RUNS[12]["method"]
    assert f"Test accuracy: QP-SBGD is ahead of {name} (p = 0.0" in sentence
    assert "; behind Adam (p < 0.001, 4 seeds); tied with SGD (" in sentence
    # With few seeds a tie says little, so it has its difference and p.
    assert re.search(r"SGD \(\+0.00 pp, p = 1.000, 4 seeds\)", sentence)
    assert sentence.endswith("not tested against QP-SBGD (gurobi).")


def test_ties_of_many_seeds_are_counted():
    values = [0.80 + 0.01 * (seed % 3) for seed in range(9)]
    runs = of_method(OURS, values)
    for number in range(5):
        runs += of_method(f"method {number}", values[::-1])
    _, *others = tables.rows_of(runs, make_task(), OURS)
    sentence = sentences.verdicts_sentence(others, OURS, ACCURACY)
    assert sentence == (
        "Test accuracy: QP-SBGD is ahead of no method; behind no method; tied "
        "with the other 5 methods."
    )
    others = [row for row in others if row.method[-1] not in "01"]
    sentence = sentences.verdicts_sentence(others, OURS, ACCURACY)
    assert sentence.endswith("tied with method 2, method 3, method 4.")


def page(folder, runs):
    """Writes records of three kinds of tasks and the page."""
    cells = [
        {**run, "task": "cells", "configuration": {"rate": rate, "batch": 4}}
        for rate in (0.1, 0.2)
        for run in RUNS[:4]
    ]
    bars = [{**run, "task": "bars", "curves": {}} for run in RUNS]
    save(folder / "e", [*runs, *cells, *bars])
    meta = {
        "command": "python -m x",
        "date": "2026-11-15\n2026-11-16",
        "notes": ["Run twice."],
    }
    (folder / "e" / "meta.json").write_text(json.dumps(meta))
    for seconds in (75.0, 120.0):
        records.append_line(
            folder / "e" / "times.jsonl",
            {"task": "x", "method": "y", "stage": "z", "seconds": seconds},
        )
    report = protocol.ExperimentReport(
        name="e",
        title="An experiment",
        setting="Some data. " * 20,
        open_choices=("The rate: " + "chosen " * 20,),
        tasks=(
            make_task(literature={"others": 0.7}),
            make_task(name="cells", kind="cells"),
            make_task(name="bars", kind="bars", paper={OURS: (0.7, 0.8)}),
            make_task(name="never run"),
        ),
    )
    absent = protocol.ExperimentReport("f", "Absent", "", (), ())
    return results_page.write(folder, (report, absent))


def test_methods_without_runs_are_named():
    text = results_page._not_run(make_task(methods=(OURS, "Lion")), RUNS)
    assert text == "Not run: Lion."
    assert not results_page._not_run(make_task(methods=(OURS, "Adam")), RUNS)


def test_mean_over_fewer_seeds_is_not_the_best():
    lucky = make_run(0, 0.99, method="QP-SBGD (lucky)")
    report = protocol.ExperimentReport("e", "E", "", (), (make_task(),))
    table = results_page._summary([(report, [*RUNS, lucky])])
    assert "| Adam: 90.8 +- 0.5 % |" in table


def test_page_does_not_depend_on_the_order_of_records(tmp_path):
    one = page(tmp_path / "one", RUNS)
    two = page(tmp_path / "two", RUNS[::-1])
    files = sorted(
        path.relative_to(one.parent) for path in one.parent.rglob("*.[pm][nd]*")
    )
    assert [str(path) for path in files] == [
        "RESULTS.md",
        "e/a.png",
        "e/bars.png",
        "e/cells.png",
    ]
    for path in files:
        same = (one.parent / path).read_bytes() == (
            two.parent / path
        ).read_bytes()
        assert same, path
    text = one.read_text()
    for words in (
        "```bash\npython -m x\n```",
        "Run on 2026-11-15 and 2026-11-16. The runs took 3.2 minutes of CPU "
        "time.\n\nRun twice.",
        "| [Task A](#an-experiment) | test accuracy | 80.0 +- 0.4 % | Adam: 90",
        "| 1 / 1 / 1 | 80 % | agrees |",
        "(e/a.png)",
        "Published elsewhere: others: 70 %.",
        "The best of the 2 cells is batch 4, rate 0.1: test accuracy",
        "Rosenbrock",
        "Runs on a real QPU: none of these records",
    ):
        assert words in text, words
    assert "Absent" not in text and "never run" not in text
    for line in text.splitlines():
        assert len(line) <= 100 or line.startswith("|")


@pytest.mark.parametrize(
    "key, backend, words",
    [
        ("native", None, "none of these records comes from one"),
        ("dwave", None, "on a mock QPU only"),
        ("native", "dwave", None),
    ],
)
def test_only_real_qpu_runs_count_as_such(key, backend, words):
    report = types.SimpleNamespace(backend=backend)
    found = [(report, [make_run(method=METHODS[key].label)])]
    (text,) = results_page._not_reproduced(found)
    assert (words in text) if words else ("QPU" not in text)


def test_page_uses_the_options_of_each_folder(tmp_path):
    names = ("adult-2layer", "adult-small")
    for name, paper in zip(names, (False, True)):
        (tmp_path / name).mkdir()
        backend = "ridge" if paper else None
        settings = {"quick": not paper, "paper": paper, "backend": backend}
        path = tmp_path / name / "settings.json"
        path.write_text(json.dumps(settings))
    quick, paper = (
        reproduce.report_of(name, Options(paper=True), tmp_path)
        for name in names
    )
    assert "closest to one half" in quick.open_choices[0]
    assert "`--quick`" in quick.setting
    assert "at random" in paper.open_choices[0]
    assert "`--quick`" not in paper.setting
    assert (quick.backend, paper.backend) == (None, "ridge")
    assert METHODS["bop"].label in quick.tasks[0].methods


def test_missing_packages_raise_before_the_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(reproduce, "NEEDED", {"no_such_module": "such"})
    with pytest.raises(ImportError, match="need such. Install"):
        reproduce.reproduce(["logistic"], Options(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_all_commands_and_dates_of_a_folder_are_kept(tmp_path):
    before = {"date": "2020-01-01", "notes": ["A note."]}
    (tmp_path / "meta.json").write_text(json.dumps(before))
    for line in ("first", "second", "first"):
        reproduce.write_meta(tmp_path, line)
    meta = records.read_meta(tmp_path)
    assert meta["command"] == "first\nsecond"
    first, today = meta["date"].splitlines()
    assert first == "2020-01-01" < today
    assert meta["notes"] == ["A note."]


def test_iterate_of_the_karate_club():
    """On held-out members, training accuracy is a better choice than loss."""
    gains = {}
    for run in records.read(ROOT / "results" / "karate"):
        if run["stage"] != "tuning":
            continue
        curves = run["curves"]
        losses = curves["train_loss"]
        by_loss = int(np.argmin(losses))
        by_both = int(
            np.lexsort((losses, -np.array(curves["train_accuracy"])))[0]
        )
        found = curves["validation_accuracy"]
        gain = found[by_both] - found[by_loss]
        gains.setdefault(run["method"], []).append(gain)
    assert len(gains) == 9
    for method, values in gains.items():
        assert np.mean(values) > 0 or method == protocol.REAL_WEIGHTS


@pytest.mark.parametrize(
    "folder, name",
    [("results", "RESULTS.md"), ("results/paper", "results/paper/RESULTS.md")],
)
def test_page_of_the_repository_is_generated(
    folder, name, tmp_path, monkeypatch
):
    """RESULTS.md is exactly what its records give."""
    shutil.copytree(ROOT / folder, tmp_path / folder)
    tables_of = sorted(
        path.relative_to(ROOT)
        for path in (ROOT / folder).glob("*/table.md")
        if (path.parent / "runs.jsonl.gz").exists()  # not a study of analysis
    )
    assert len(tables_of) >= 9
    for path in tables_of:
        (tmp_path / path).unlink()
    # Drawing takes long.
    monkeypatch.setattr(figures, "draw", lambda *_: None)
    monkeypatch.setattr(overview, "draw", lambda *_: None)
    page = reproduce.write_pages(
        Options(paper="paper" in folder), tmp_path / folder, tmp_path / name
    )
    assert page.read_text() == (ROOT / name).read_text()
    for path in tables_of:
        assert (tmp_path / path).read_text() == (ROOT / path).read_text()
    for link in re.findall(r"!\[[^]]*\]\(([^)]*)\)", page.read_text()):
        assert ((ROOT / name).parent / link).is_file()


# Blocks in README.md and docs/


def test_blocks_are_filled():
    text = "a\n<!-- results:x -->\nold\n<!-- /results -->\nb\n"
    filled = blocks.fill(text, lambda name: f"new {name}")
    assert filled == (
        "a\n<!-- results:x -->\n\nnew x\n\n<!-- /results -->\nb\n"
    )
    assert blocks.fill(filled, lambda name: f"new {name}") == filled
    assert blocks.fill("no block\n", None) == "no block\n"
    start, end = "<!-- results:x -->\n", "<!-- /results -->\n"
    for bad in (start, end, start + start + end, start + end + end):
        with pytest.raises(ValueError, match="`<!-- /results -->` .* Received"):
            blocks.fill(bad, str)


@pytest.fixture(scope="module")
def summary():
    return command.summary_of(ROOT)


def test_blocks_of_the_repository_are_generated(summary):
    """README.md and docs/ have what `python -m research pages` writes."""
    for path in blocks.files(ROOT):
        text = path.read_text(encoding="utf-8")
        filled = blocks.fill(
            text,
            lambda name, folder=path.parent: summary.block(name, folder),
        )
        assert filled == text, f"{path}: run `python -m research pages`"


def test_summary_table(summary):
    text = summary.block("summary-table", ROOT)
    table, note = text.split("\n\n")
    head, _, *rows = table.splitlines()
    assert head == (
        "| task | measure | QP-SBGD | best other binary method | verdict | "
        "real weights |"
    )
    assert len(rows) == 15
    cells = [cell.strip() for cell in rows[2].strip("|").split("|")]
    # As in the table of this task.
    runs = records.read(ROOT / "results" / "adult-10layer")
    loss = protocol.TRAIN_LOSS
    ours, best, real = (
        [
            run["result"]["train_loss"]
            for run in tables.select(runs, method=method, stage="fresh")
        ]
        for method in (OURS, METHODS["signsgd"].label, METHODS["real"].label)
    )
    p = stats.ttest_rel(ours, best).pvalue
    assert p < 0.001
    assert cells == [
        "Adult, ten layers",
        "training loss",
        tables.mean_text(ours, loss),
        f"BinaryConnect with signSGD: {tables.mean_text(best, loss)}",
        "ahead (p < 0.001)",
        tables.mean_text(real, loss),
    ]
    assert note.startswith("Verdict: QP-SBGD against the best other")


def test_summary_sentences(summary):
    text = summary.block("summary-sentences", ROOT)
    bullets = text.split("\n- ")
    assert len(bullets) == 14
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "(results/paper/RESULTS.md)" in text
    # In docs/ the links are those of the documentation site.
    assert text == summary.block("summary-sentences", ROOT / "docs")
    deeper = summary.block("summary-sentences", ROOT / "docs" / "guides")
    assert "(../results/paper/RESULTS.md)" in deeper
    with pytest.raises(ValueError, match="summary-table.* Received: other"):
        summary.block("other", ROOT)


def test_overview(tmp_path):
    report = protocol.ExperimentReport(
        "e", "E", "", (), (make_task(literature={"others": 0.7}),)
    )
    path = tmp_path / overview.FILE
    overview.draw(RUNS, report, path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    # Width and height are in the header.
    sizes = [int.from_bytes(content[i : i + 4], "big") for i in (16, 20)]
    assert sizes == [1200, 600]
