"""Records of runs, statistics and tables."""

import dataclasses
import math

import numpy as np
import pytest
from made_runs import make_run
from scipy import stats

from research.engine import records
from research.engine import statistics
from research.engine import tables

pytestmark = pytest.mark.once

ACCURACY = statistics.TEST_ACCURACY
LOSS = statistics.TEST_LOSS
OURS = "QP-SBGD"


def make_task(**changes):
    settings = {
        "name": "a",
        "title": "Task A",
        "measures": (ACCURACY, LOSS),
        "curves": (ACCURACY, LOSS),
    }
    return tables.TaskReport(**{**settings, **changes})


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


def table_of(runs, task):
    return tables.table_of(tables.rows_of(runs, task, OURS), task)


# --- Records ---


def test_records_return_sorted_and_rounded(tmp_path):
    for name, order in (("one", 1), ("two", -1)):
        store = records.Runs(tmp_path / name)
        for run in RUNS[::order]:
            store.add(run)
    assert records.read(tmp_path / "one") == records.read(tmp_path / "two")
    store = records.Runs(tmp_path / "three")
    rate = 0.0123456789
    store.add(make_run(np.int64(3), np.float32(1 / 3), rate=rate), 0.25)
    store.add(make_run(4, math.inf), 0.25)
    run, diverged = records.read(tmp_path / "three")
    assert run["result"]["test_accuracy"] == 0.333333
    assert run["configuration"]["rate"] == rate
    assert math.isnan(diverged["result"]["test_accuracy"])
    seconds = [t["seconds"] for t in records.read_times(tmp_path / "three")]
    assert seconds == [0.25, 0.25]
    records.pack(tmp_path / "three")
    names = sorted(path.name for path in (tmp_path / "three").iterdir())
    assert names == ["runs.jsonl.gz", "times.jsonl.gz"]
    found = records.read(tmp_path / "three")
    assert records.text_of(found) == records.text_of([run, diverged])
    assert len(records.read_times(tmp_path / "three")) == 2


def test_tuning_runs_have_no_results_on_test_data(tmp_path):
    message = "test data. Received: test_acc.*, test_loss"
    with pytest.raises(ValueError, match=message):
        records.Runs(tmp_path).add({**make_run(), "stage": "tuning"})


# --- Statistics ---


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
    interval = stats.t.interval(0.95, 2, loc=2, scale=1 / math.sqrt(3))
    assert (found.low, found.high) == pytest.approx(interval)
    other = statistics.paired_test(theirs, ours)
    assert other == dataclasses.replace(found.reversed(), p=other.p)
    assert statistics.paired_test(ours, ours).p == 1.0
    shifted = {seed: value + 0.1 for seed, value in ours.items()}
    assert math.isnan(statistics.paired_test(ours, shifted).p)
    assert math.isnan(statistics.paired_test({0: 1.0}, {0: 2.0}).p)
    assert math.isnan(statistics.paired_test({0: 1.0, 1: math.nan}, ours).p)
    assert statistics.paired_test({0: 1.0}, {1: 1.0}).pairs == 0


def test_holm():
    """With four tests, the p-values are multiplied by 4, 3, 2 and 1."""
    tests = [
        statistics.PairedTest(1.0, p, 5)
        for p in (0.01, 0.04, math.nan, 0.03, 0.005)
    ]
    found = [test.p for test in statistics.holm(tests)]
    assert found == pytest.approx(
        [0.03, 0.06, math.nan, 0.06, 0.02], nan_ok=True
    )
    assert statistics.holm([]) == []
    large = statistics.PairedTest(1.0, 0.9, 5)
    assert statistics.holm([large, large])[0].p == 1.0


@pytest.mark.parametrize(
    "difference, p, accuracy, loss",
    [
        (-0.1, 0.01, "better", "worse"),
        (0.1, 0.01, "worse", "better"),
        (-0.1, 0.05, *["no significant difference"] * 2),
        (0.1, math.nan, "not tested", "not tested"),
    ],
)
def test_verdicts(difference, p, accuracy, loss):
    comparison = statistics.PairedTest(difference, p, 5)
    assert statistics.verdict(comparison, ACCURACY) == accuracy
    assert statistics.verdict(comparison, LOSS) == loss


def test_choice():
    measure = statistics.VALIDATION_ACCURACY

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
    ]
    grid = [{"rate": rate, "real_rate": 0.01} for rate in (0.4, 0.3, 0.2, 0.1)]
    assert statistics.choose(runs, measure, grid)["rate"] == 0.3
    assert statistics.choose(runs, measure, grid[::-1])["rate"] == 0.2
    # The lowest is best for a loss.
    loss = statistics.Measure(measure.key, "", higher_is_better=False)
    assert statistics.choose(runs, loss, grid)["rate"] == 0.1


# --- Tables ---


def test_rows_and_verdicts():
    head, *rows = map(
        lambda line: [cell.strip() for cell in line.strip("|").split("|")],
        tables.markdown_table(*table_of(RUNS, make_task())).splitlines(),
    )
    found = {row[0]: dict(zip(head, row)) for row in rows[1:]}
    assert list(found)[:3] == [OURS, "QP-SBGD (gurobi)", RUNS[12]["method"]]
    assert found[OURS]["test accuracy"] == "80.0 +- 0.4 %"
    assert found[OURS]["test loss"] == "0.2000 +- 0.0041"
    words = {name: row["verdict"] for name, row in found.items()}
    assert list(words.values()) == [
        "reference",
        "not tested",
        "worse",
        "better",
        "no significant difference",
    ]
    adam = np.subtract((0.90, 0.92, 0.90, 0.91), OUR_VALUES)
    low, high = 100 * np.array(
        stats.t.interval(0.95, 3, loc=adam.mean(), scale=stats.sem(adam))
    )
    difference = found["Adam"]["difference, 95 % interval"]
    assert difference == f"+10.7 pp ({low:+.1f} to {high:+.1f})"
    p = stats.ttest_rel(OUR_VALUES, (0.81, 0.80, 0.80, 0.79)).pvalue
    # The highest of three p-values is not corrected.
    assert found["SGD"]["p (Holm)"] == f"{p:.3f}"
    third = stats.ttest_rel(OUR_VALUES, (0.6, 0.7, 0.6, 0.7)).pvalue
    assert found[RUNS[12]["method"]]["p (Holm)"] == f"{2 * third:.3f}"
    assert found["QP-SBGD (gurobi)"]["seeds"] == "1"
    assert found["SGD"]["configuration"] == "rate 0.02, real rate 0.01"


def test_text_fits_the_terminal():
    many = tuple(
        statistics.Measure("test_loss", f"measure {index}", False)
        for index in range(7)
    )
    text = tables.text_table(*table_of(RUNS, make_task(measures=many)))
    assert max(map(len, text.splitlines())) <= 80
    for measure in many:
        assert measure.label in text


def test_diverged_runs_are_counted():
    assert tables.mean_text([0.5, math.nan, 0.5], ACCURACY) == "1 of 3 diverged"
    runs = [*RUNS, make_run(4, math.nan, method="Adam")]
    rows = tables.rows_of([*runs, make_run(4, 0.8)], make_task(), OURS)
    tests = {row.method: row.comparison for row in rows}
    assert statistics.verdict(tests["Adam"], ACCURACY) == "not tested"
