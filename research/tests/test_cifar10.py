"""The study of CIFAR-10, without a GPU."""

import json
import pathlib

import pytest

from research.cifar10 import parallel
from research.cifar10 import records
from research.cifar10 import table

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
NETWORK = {
    **{"width": 64, "activation": "relu", "network": "pooled"},
    **{"batch": 128, "dtype": "float32"},
}


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
        new_run("adam", 0.1, 0, batch=64),
        new_run("adam", 0.1, 0, dtype="mixed_bfloat16"),
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
        "Test accuracy with decay. Binary weights and ReLU, 3 epochs: "
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
        )
        for seed in (0, 1, *records.TUNING)
    ]
    times = [new_run("averaged", 0.1, 0, ms_per_step=100.0)]
    drawn = table.figure(runs, times)
    (curve,) = drawn.axes[0].get_lines()
    assert list(curve.get_xdata()) == list(range(5, 61, 5))
    assert list(curve.get_ydata()) == accuracies[4::5]
    assert drawn.axes[1].get_lines()[0].get_xdata()[-1] == 60  # seconds
    (panel,) = table.figure(runs, []).axes
    assert len(panel.get_lines()) == 1


def jobs(name):
    text = (ROOT / "research" / "cifar10" / name).read_text()
    return [
        records.parsed(line)
        for line in text.splitlines()
        if line and not line.startswith("#")
    ]


# Activation, width and kind of the network of each folder of programs.
NETWORKS = {
    "vgg-relu": ("relu", 128, "vgg"),
    "vgg-binary": ("binary", 128, "vgg"),
    "vgg-all": ("binary", 128, "vgg-binary"),
    "vgg-float": ("relu", 128, "vgg-float"),
    "relu-64": ("relu", 64, "pooled"),
    "binary-64": ("binary", 64, "pooled"),
}


@pytest.mark.parametrize(
    ("name", "count"),
    [("vgg", 72), ("vgg-decay", 68), ("study", 149)],
)
def test_stored_runs_are_those_of_the_list(name, count):
    folder = ROOT / "results" / "cifar10" / name
    found = records.read(folder / "runs.jsonl")
    expected = 0
    for runs in jobs(f"jobs-{name}.txt"):
        shape = NETWORKS[runs.program.split("/")[0]]
        network = dict(zip(("activation", "width", "network"), shape))
        network |= {"batch": found[0]["batch"], "dtype": found[0]["dtype"]}
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


def test_a_method_that_was_not_tuned():
    """Older runs have no test loss, so the table has none either."""
    runs = [new_run("float", 0.1, 1, test=0.5, loss=1.0, network="vgg-float")]
    assert table.tuned(runs, "float", 3) == []
    assert table.chosen(runs, "float", 3) == {1: runs[0]}
    text = table.table(runs, 3)
    assert "| SGD with weight decay | 0 | 0.1 | 1 |" in text
    assert "test accuracy" in text and "test loss" not in text


def test_the_best_rate_waits_for_the_runs_that_choose_it(capsys):
    jobs = [
        records.parsed(text)
        for text in (
            *("a/x:1:1:100", "a/x:1:best:0", "a/y:1:1:100"),
            *("a/x:1:2:0", "a/y:1:best:0", "a/x:1:best:1"),
        )
    ]
    started, ended = [], []

    class Process:
        """Ends when it was asked twice, as those of `subprocess` do."""

        def __init__(self, number):
            self.number, self.left = number, 2
            self.returncode = int(number == 2)
            started.append((number, tuple(ended)))

        def poll(self):
            self.left -= 1
            if not self.left:
                ended.append(self.number)
            return None if self.left else self.returncode

        def terminate(self):
            raise AssertionError("All processes have ended.")

    assert parallel.run(jobs, Process, processes=2) == [2, 4]
    assert [number for number, _ in started] == [0, 2, 1, 3, 5]
    assert 0 in dict(started)[1]
    # A line with the best rate does not wait for another one.
    assert 3 in dict(started)[5] and 1 not in dict(started)[3]
    assert "a/y: failed" in capsys.readouterr().out


def test_arguments_of_a_parallel_training(tmp_path, capsys):
    """Everything is checked before the first process starts."""
    data, listed = tmp_path / "data", tmp_path / "list.txt"
    words = [data, tmp_path / "programs", listed, tmp_path / "out"]

    def message():
        with pytest.raises(SystemExit):
            parallel.main(list(map(str, words)))
        return capsys.readouterr().err

    assert f"research.cifar10.pack`. Received: {data}" in message()
    data.mkdir()
    for name in ("images-0.npz", "images-1.npz"):
        (data / name).touch()
    assert f"LIST must be a file. Received: {listed}" in message()
    listed.write_text("# nothing\n\n")
    assert "LIST must have runs" in message()
    listed.write_text("# one\nrelu-64/adam:twelve\n")
    assert "list.txt, line 2: " in message()
    listed.write_text("relu-64/adamw:12\n")
    assert "list.txt, line 1: " in message()
    assert not (tmp_path / "out").exists()


def test_methods_of_the_study_have_equal_tries():
    """Each network has one grid of rates of batch normalization."""
    tries, rates = {}, {}
    for runs in jobs("jobs-study.txt"):
        if runs.rates != records.BEST:
            assert runs.seeds == records.TUNING
            network, program = runs.program.split("/")
            key = network, program, runs.epochs
            tries[key] = tries.get(key, 0) + len(runs.rates)
            rates.setdefault(key, set()).add(runs.settings[records.REAL_RATE])
    for network, epochs, count in (
        *(("relu-64", 12, 3), ("relu-64", 60, 2)),
        ("binary-64", 30, 2),
    ):
        of = [
            (name, program, length)
            for name, program, length in tries
            if (name, length) == (network, epochs)
            and program not in table.VARIANTS
        ]
        assert len(of) >= 3
        assert {tries[key] for key in of} == {count}
        assert len({tuple(sorted(rates[key])) for key in of}) == 1
    variants = [key for key in tries if key[1] in table.VARIANTS]
    assert len(variants) == 5 and {tries[key] for key in variants} == {2}


def test_variants_have_a_table_of_their_own():
    runs = [
        new_run(program, 0.1, seed, epochs, test=0.5, test_loss=1.0, loss=1.0)
        for program, epochs in (
            *(("averaged", 3), ("kappa-3", 3), ("adam", 3)),
            ("averaged", 9),
        )
        for seed in (0, 1, *records.TUNING)
    ]
    methods, variants = table.of_methods(runs), table.of_variants(runs)
    assert {run["program"] for run in methods} == {"averaged", "adam"}
    assert {run["program"] for run in variants} == {"averaged", "kappa-3"}
    assert {run["epochs"] for run in variants} == {3}
    text = table.table(variants, 3)
    assert "| kappa 3 | 1 | 0.1† | 2 | 50.0 +- 0.0 % | +0.00 pp" in text
