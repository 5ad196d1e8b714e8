"""The paper's experiments in four readings, and the verdicts on its claims."""

import types

import pytest

from research.engine import statistics
from research.experiments import claims
from research.experiments import readings
from research.experiments.claims import Claim

pytestmark = pytest.mark.once

ACCURACY = statistics.TEST_ACCURACY
OURS = "QP-SBGD"
SGD = "BinaryConnect (SGD)"


def make_run(method, seed, last, best):
    """A run whose second evaluation is best in training."""
    return {
        "task": "a",
        "method": method,
        "stage": "fresh",
        "configuration": {"rate": 0.1},
        "seed": seed,
        "curves": {
            "epoch": [0, 1, 2],
            "train_accuracy": [1.0, 0.9, 0.8],
            "train_loss": [0.0, 0.2, 0.2],
            "test_accuracy": [0.1, best, last],
        },
        "result": {"test_accuracy": last},
    }


def make_readings(**values):
    """Runs for each loss: pairs of the last and the best accuracy."""
    task = types.SimpleNamespace(
        name="a", reported=(), measures=(ACCURACY,), kind="curves"
    )
    folders = {}
    for loss in ("mean", "sum"):
        runs = [
            make_run(method, seed, last + 0.01 * seed, best + 0.01 * seed)
            for method, (last, best) in values.get(loss, {}).items()
            for seed in range(3)
        ]
        # Pairs must differ.
        for run in runs[:1]:
            run["curves"]["test_accuracy"][1] += 0.001
            run["curves"]["test_accuracy"][2] += 0.001
        description = types.SimpleNamespace(tasks=(task,))
        folders[loss] = types.SimpleNamespace(described=[(description, runs)])
    return readings.Readings(folders)


FOUND = make_readings(
    mean={OURS: (0.5, 0.6), SGD: (0.7, 0.7)},
    sum={OURS: (0.6, 0.8), SGD: (0.7, 0.7)},
)


def test_best_iterate():
    """It is chosen on training data, and not before training."""
    task = types.SimpleNamespace(reported=())
    run = make_run(OURS, 0, 0.5, 0.6)
    assert readings.value_of(run, task, ACCURACY, "last") == 0.5
    assert readings.value_of(run, task, ACCURACY, "best") == 0.6
    lowest = types.SimpleNamespace(reported=(statistics.TRAIN_LOSS,))
    run["curves"]["train_loss"] = [0.0, 0.2, 0.1]
    assert readings.value_of(run, lowest, ACCURACY, "best") == 0.5


def test_table_of_readings():
    head, _, ours, sgd = readings.table(FOUND, "a").splitlines()
    assert head.split(" | ")[1:3] == [
        *("mean, last (3 seeds)", "mean, best (3 seeds)")
    ]
    assert [cell[:4] for cell in ours.split(" | ")[1:]] == [
        *("51.0", "61.0", "61.0", "81.0")
    ]
    assert sgd.startswith(f"| {SGD} | 71.0")
    assert readings.blocks({}) == {}


@pytest.mark.parametrize(
    "check, verdict",
    [
        (
            claims.against("a", ("sgd",), ACCURACY, claims.ahead),
            "reproduced (sum, best)",
        ),
        (
            claims.against("a", ("sgd",), ACCURACY, claims.level),
            "reproduced (sum, best)",
        ),
        (
            claims.reaches("a", 0.62, ACCURACY),
            "reproduced (mean, best; sum, last; sum, best)",
        ),
        (
            claims.reaches("a", 0.4, ACCURACY, high=0.6),
            "reproduced (mean, last; mean, best; sum, last)",
        ),
        (claims.reaches("a", 0.4, ACCURACY), "reproduced in all readings"),
        (claims.reaches("a", 0.95, ACCURACY), "not reproduced: why"),
        (claims.untested("no QPU"), "not testable here: why"),
    ],
)
def test_verdicts(check, verdict):
    claim = Claim("text", "number", check, "why")
    assert claims.verdict(claim, check(FOUND)).startswith(verdict)


@pytest.mark.parametrize("other, agrees", [(0.6, True), (0.8, False)])
def test_a_method_fails_alone(other, agrees):
    losses = {"ProxQuant": {0: 0.8, 1: 0.9}, OURS: {0: other, 1: other}}
    known = types.SimpleNamespace(
        of_task=lambda name: [("mean", "last")],
        fresh=lambda loss, name: True,
        values=lambda reading, name, measure: losses,
    )
    ((_, text, found),) = claims.fails("a", "proxquant", ("native",))(known)
    assert text.startswith("training loss 0.8500 +- 0.0500 against QP-SBGD")
    assert found == agrees
    ((_, text, found),) = claims.fails("a", "proxquant", ("sgd",))(known)
    assert (text, found) == ("not all methods were run", None)


def test_readings_without_runs_have_no_verdict():
    check = claims.reaches("a", 0.6, ACCURACY)
    one = make_readings(sum={OURS: (0.6, 0.8)})
    claim = Claim("text", "number", check)
    found = check(one)
    assert found[-1] == (("mean", "last"), "not run", None)
    assert claims.verdict(claim, found) == "reproduced (sum, last; sum, best)"
