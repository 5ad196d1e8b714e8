"""`Comparison` and the table of a folder, from made-up records."""

import numpy as np
import pytest

from keras_qpsbgd.comparison import plan
from keras_qpsbgd.comparison import records
from keras_qpsbgd.comparison import tables
from keras_qpsbgd.comparison.methods import METHODS
from keras_qpsbgd.comparison.result import Comparison
from keras_qpsbgd.comparison.statistics import TEST_ACCURACY
from keras_qpsbgd.comparison.statistics import TEST_LOSS
from keras_qpsbgd.comparison.statistics import VALIDATION_ACCURACY

pytestmark = pytest.mark.once


def make_run(key, value, seed=0, stage="fresh", rate=0.1):
    scores = {"validation_accuracy": value, "train_loss": 1.0 - value}
    if stage == "fresh":
        scores |= {"test_accuracy": value, "test_loss": 1.0 - value}
    return {
        "task": "wine",
        "method": METHODS[key].label,
        "stage": stage,
        "configuration": {"rate": rate},
        "seed": seed,
        "curves": {
            "epoch": [0, 1],
            **{name: [0.5, score] for name, score in scores.items()},
        },
        "result": {"epoch": 1, **scores},
    }


def make_runs(key, values, **settings):
    return [
        make_run(key, value, seed, **settings)
        for seed, value in enumerate(values)
    ]


@pytest.fixture
def comparison():
    runs = [
        *make_runs("native", (0.80, 0.81, 0.79)),
        *make_runs("adam", (0.84, 0.86, 0.83)),
        *make_runs("real", (0.79, 0.81, 0.7999)),
    ]
    return Comparison("wine", runs, "native", is_class=True)


def test_all_attributes_use_the_keys_of_methods(comparison):
    keys = {"native", "adam", "real"}
    assert {*comparison.results} == {*comparison.chosen} == keys
    assert {run["method"] for run in comparison.runs} == keys
    assert {*comparison.p_values} == keys - {comparison.reference}
    of_adam = [run for run in comparison.runs if run["method"] == "adam"]
    assert comparison.results["adam"] == {
        run["seed"]: run["result"]["test_accuracy"] for run in of_adam
    }


def test_columns_of_the_table(comparison):
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in comparison.markdown().splitlines()
    )
    found = {row[0]: dict(zip(head, row)) for row in rows}
    assert head[-5:] == ["seeds", "difference", "p", "verdict", "configuration"]
    assert "paper" not in head
    ours, adam, real = (
        found[METHODS[key].label] for key in ("native", "adam", "real")
    )
    assert (ours["difference"], ours["verdict"]) == ("", "reference")
    # The method minus the reference: positive accuracies are better.
    assert (adam["difference"], adam["verdict"]) == ("+4.3 pp", "better")
    assert (real["difference"], real["verdict"]) == ("+0.00 pp", "tie")
    for name in head:
        assert name in comparison.table()


def test_zero_difference_has_no_minus():
    for value in (-0.0, -1e-9, 0.0, 1e-9):
        assert tables.difference_text(value, TEST_ACCURACY) == "+0.00 pp"
        assert tables.difference_text(value, TEST_LOSS) == "+0.0000"
    assert tables.difference_text(-0.00005, TEST_ACCURACY) == "-0.01 pp"
    assert tables.difference_text(-0.1234, TEST_ACCURACY) == "-12.3 pp"
    assert tables.difference_text(-12.345, TEST_LOSS) == "-12.35"


# --- Runs of several calls in one folder ---


def reported(folder, runs, chosen):
    store = records.Runs(folder)
    for run in runs:
        store.add(run)
    found = plan.reported_runs(folder, chosen, VALIDATION_ACCURACY)
    assert {run["stage"] for run in found} == {"fresh"}
    return {
        (run["method"], run["configuration"]["rate"], run["seed"])
        for run in found
    }


def test_runs_of_earlier_calls_are_reported(tmp_path):
    runs = [
        *make_runs("native", (0.8, 0.8)),
        *make_runs("adam", (0.9, 0.9, 0.9), stage="tuning"),  # no fresh runs
        *make_runs("real", (0.7,)),
    ]
    assert reported(tmp_path, runs, {"real": {"rate": 0.1}}) == {
        ("QP-SBGD", 0.1, 0),
        ("QP-SBGD", 0.1, 1),
        ("real weights", 0.1, 0),
    }


def test_one_configuration_is_reported_after_the_grid_grew(tmp_path):
    runs = [
        # The second call found a better rate.
        *make_runs("native", (0.8,), stage="tuning", rate=0.1),
        *make_runs("native", (0.9,), stage="tuning", rate=0.2),
        *make_runs("native", (0.8, 0.8), rate=0.1),
        *make_runs("native", (0.9,), rate=0.2),
        # It uses the configuration of `native`.
        *make_runs("gurobi", (0.8,), rate=0.1),
        *make_runs("gurobi", (0.9,), rate=0.2),
        *make_runs("adam", (0.7,), rate=0.1),
        *make_runs("adam", (0.8,), rate=0.2),
    ]
    assert reported(tmp_path, runs, {"adam": {"rate": 0.1}}) == {
        ("QP-SBGD", 0.2, 0),
        ("QP-SBGD (gurobi)", 0.2, 0),
        ("BinaryConnect (Adam)", 0.1, 0),
    }


def test_curves_on_given_axes(comparison):
    figures = pytest.importorskip("matplotlib.figure")
    axes = figures.Figure().subplots()
    assert comparison.plot(axes) is axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    np.testing.assert_allclose(
        lines["BinaryConnect (Adam)"].get_ydata(), [50.0, 84.333333]
    )
