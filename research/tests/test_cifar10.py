"""The study of CIFAR-10, without a GPU."""

import json
import pathlib

import pytest

from research.cifar10 import records
from research.cifar10 import table

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
NETWORK = {"width": 64, "activation": "relu"}


def new_run(program, rate, seed, epochs=3, settings=None, **others):
    return {
        "program": program,
        "epochs": epochs,
        "rate": rate,
        "seed": seed,
        "settings": settings or {},
        "validation": rate,
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
        new_run("adam", 0.1, 0, epochs=4),
        new_run("adam", 0.1, 0, activation="binary"),
        new_run("adam", 0.1, 0, settings={"threshold": 1.0}),
        new_run("sgd", 0.1, 0),
    ]
    write(path, others)
    assert len(records.missing(runs, NETWORK, path)) == 4
    write(path, [*others, new_run("adam", 0.2, 1)])
    found = [pair for *pair, _ in records.missing(runs, NETWORK, path)]
    assert found == [[0.1, 0], [0.1, 1], [0.2, 0]]


def test_best_rate_has_the_best_mean_of_the_tuning_seeds(tmp_path):
    path = tmp_path / "runs.jsonl"
    accuracies = {0.1: (0.5, 0.5), 0.2: (0.9, 0.2), 0.3: (0.4, 0.5)}
    write(
        path,
        [
            new_run("adam", rate, seed, validation=value)
            for rate, values in accuracies.items()
            for seed, value in zip((*records.TUNING, 0), (*values, 1.0))
        ],
    )
    runs = records.Runs("relu-64/adam", 3, records.BEST, (7,), {})
    assert records.missing(runs, NETWORK, path) == [(0.2, 7, {})]


def test_the_validation_loss_breaks_ties():
    runs = [
        new_run("adam", rate, seed, validation=0.5, validation_loss=loss)
        for rate, loss in ((0.1, 2.0), (0.2, 1.0), (0.3, 3.0))
        for seed in records.TUNING
    ]
    assert records.best(runs)["rate"] == 0.2
    runs[-1]["validation"] = 0.6
    assert records.best(runs)["rate"] == 0.3


def test_sentence_names_methods_without_runs():
    runs = [
        new_run("adam", 0.1, seed, test=0.5, network="vgg")
        for seed in (0, *records.TUNING)
    ]
    runs += [new_run("averaged", 0.1, 100, network="vgg")]
    assert table.sentence(runs, " with decay") == (
        "Test accuracy after 3 epochs with decay. Binary weights and ReLU: "
        "`QPSBGD()` not run, Adam 50.00 % (1 seed)."
    )


def test_curves_leave_out_epochs_without_an_accuracy():
    pytest.importorskip("matplotlib")
    accuracies = [None if epoch % 5 else epoch / 60 for epoch in range(1, 61)]
    runs = [
        new_run(
            "averaged",
            0.1,
            seed,
            epochs=60,
            test_by_epoch=accuracies,
            images={"train": 1280},
            batch=128,
            ms_per_step=100.0,
        )
        for seed in (0, 1, *records.TUNING)
    ]
    drawn = table.figure(runs, [])
    (curve,) = drawn.axes[0].get_lines()
    assert list(curve.get_xdata()) == list(range(5, 61, 5))
    assert list(curve.get_ydata()) == accuracies[4::5]
    assert drawn.axes[1].get_lines()[0].get_xdata()[-1] == 60  # seconds


def jobs(name):
    text = (ROOT / "research" / "cifar10" / name).read_text()
    return [
        records.parsed(line)
        for line in text.splitlines()
        if line and not line.startswith("#")
    ]


@pytest.mark.parametrize(("name", "count"), [("vgg", 72), ("vgg-decay", 27)])
def test_stored_runs_of_vgg_are_those_of_the_list(name, count):
    folder = ROOT / "results" / "cifar10" / name
    found = records.read(folder / "runs.jsonl")
    expected = 0
    for runs in jobs(f"jobs-{name}.txt"):
        activation = runs.program.split("/")[0].removeprefix("vgg-")
        network = {"activation": activation, "width": 128, "network": "vgg"}
        assert not records.missing(runs, network, folder / "runs.jsonl")
        rates = 1 if runs.rates == records.BEST else len(runs.rates)
        expected += rates * len(runs.seeds)
    assert len(found) == expected == count


def test_settings_tuned_after_the_reported_runs_do_not_count():
    runs = [
        new_run("adam", rate, seed, validation=rate)
        for rate in (0.1, 0.2, 0.3)
        for seed in records.TUNING
    ]
    assert table.tuned(runs, "adam", 9)[0]["rate"] == 0.3
    runs.append(new_run("adam", 0.2, 0, epochs=9))
    tuning = table.tuned(runs, "adam", 9)
    assert len(tuning) == 6 and tuning[0]["rate"] == 0.2
    assert table.chosen(runs, "adam", 9) == {0: runs[-1]}
    assert table.settings_text(tuning) == "0.2"


def test_jobs_of_the_study():
    """Adam has at least as many configurations, and the same seeds."""
    tries, seeds = {}, {}
    for runs in jobs("jobs.txt"):
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
