"""Tests the compressed file of all runs of an experiment."""

import dataclasses
import json
import os
import pathlib

import pytest

from keras_qpsbgd.compare import records
from keras_qpsbgd.compare.methods import METHODS
from research.experiments import plan
from research.experiments.catalogue import EXPERIMENTS
from research.experiments.options import Options

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[2]
METHOD = "QP-SBGD (gurobi)"


def make_run(seed, task="t", method=METHOD, score=0.5):
    return {
        "task": task,
        "method": method,
        "stage": "fresh",
        "configuration": {"rate": 0.0123456789},
        "seed": seed,
        "curves": {"epoch": [0, 1], "test_loss": [float("nan"), score]},
        "result": {"test_loss": score},
    }


RUNS = [make_run(seed, task) for task in ("t", "u") for seed in range(3)]


def save(folder, runs):
    for run in runs:
        path = records.path_of(folder, run["task"], run["method"])
        records.append(path, run)
        time = {"task": run["task"], "seed": run["seed"], "seconds": 0.25}
        records.append_time(folder, time)


def names(folder):
    """Returns the names of visible files; a kill may leave hidden ones."""
    return sorted(path.name for path in folder.glob("[!.]*"))


def state(folder):
    """Returns all records as text, since NaN does not equal NaN."""
    return records.text_of([records.read(folder), records.read_times(folder)])


def test_packed_runs_are_read_as_before(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    save(one, RUNS)
    save(two, RUNS[::-1])
    before = state(one)
    of_item = records.runs_of(one, "u", METHOD)
    assert [run["seed"] for run in of_item] == [0, 1, 2]
    for folder in (one, two):
        records.pack(folder)
        assert names(folder) == ["runs.jsonl.gz", "times.jsonl.gz"]
        assert state(folder) == before
    for name in names(one):
        content = (one / name).read_bytes()
        assert content == (two / name).read_bytes()
        assert content[3:10] == b"\0\0\0\0\0\2\xff"  # no name, no date
    found = records.runs_of(one, "u", METHOD)
    assert records.text_of(found) == records.text_of(of_item)
    assert not records.runs_of(one, "u", "QP-SBGD")
    status = (one / "runs.jsonl.gz").stat()
    records.pack(one)  # nothing to do
    assert (one / "runs.jsonl.gz").stat() == status
    assert state(tmp_path / "empty") == "[[], []]"
    records.pack(tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


def test_runs_are_added_to_packed_ones(tmp_path):
    save(tmp_path / "whole", RUNS)
    save(tmp_path / "parts", RUNS[:2])
    records.pack(tmp_path / "parts")
    # The first one exists already.
    save(tmp_path / "parts", RUNS[1:])
    kept = tmp_path / "parts" / "runs" / "t--a.npz"
    kept.touch()
    assert [r["seed"] for r in records.read(tmp_path / "parts")] == [
        0,
        1,
        2,
    ] * 2
    whole = records.runs_of(tmp_path / "whole", "t", METHOD)
    found = records.runs_of(tmp_path / "parts", "t", METHOD)
    assert records.text_of(sorted(found, key=lambda run: run["seed"])) == (
        records.text_of(whole)
    )
    for folder in ("whole", "parts"):
        records.pack(tmp_path / folder)
    assert state(tmp_path / "whole") == state(tmp_path / "parts")
    assert kept.exists()
    records.append(kept.with_suffix(".jsonl"), make_run(0, score=0.75))
    with pytest.raises(
        ValueError, match="two different .* Received: t QP-SBGD"
    ):
        records.read(tmp_path / "parts")
    before = (tmp_path / "parts" / "runs.jsonl.gz").read_bytes()
    with pytest.raises(ValueError, match="two different"):
        records.pack(tmp_path / "parts")
    assert (tmp_path / "parts" / "runs.jsonl.gz").read_bytes() == before


class Killed(BaseException):
    """No code handles this exception."""


def test_nothing_is_lost_by_a_kill_while_packing(tmp_path, monkeypatch):
    """Kills before and after each call that changes the folder."""
    save(tmp_path / "whole", RUNS)
    whole = state(tmp_path / "whole")
    records.pack(tmp_path / "whole")
    kills = 0
    for late in (False, True):
        for position in range(100):
            folder = tmp_path / f"killed-{late}-{position}"
            save(folder, RUNS[:2])
            records.pack(folder)
            save(folder, RUNS[2:])
            left = iter(range(position, -1, -1))

            def killing(call, left=left, late=late):
                def run(*args, **kwargs):
                    now = next(left) == 0
                    if now and not late:
                        raise Killed
                    call(*args, **kwargs)
                    if now:
                        raise Killed

                return run

            with monkeypatch.context() as patch:
                for name in ("replace", "unlink", "rmdir", "fsync"):
                    patch.setattr(os, name, killing(getattr(os, name)))
                try:
                    records.pack(folder)
                except (Killed, StopIteration):
                    kills += 1
                    done = False
                else:
                    done = True
            assert state(folder) == whole
            records.pack(folder)
            assert names(folder) == ["runs.jsonl.gz", "times.jsonl.gz"]
            for name in names(folder):
                expected = (tmp_path / "whole" / name).read_bytes()
                assert (folder / name).read_bytes() == expected
            if done:
                break
    assert kills >= 12


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:60],
        lambda content: content[:50] + b"\0\0" + content[52:],
        lambda content: content + b"more",
        lambda content: b'{"task": "t"}\n',
    ],
)
def test_damaged_packed_file(tmp_path, damage):
    save(tmp_path, RUNS)
    records.pack(tmp_path)
    path = tmp_path / "runs.jsonl.gz"
    content = path.read_bytes()
    save(tmp_path, [make_run(9)])
    assert len(records.read(tmp_path)) == len(RUNS) + 1
    path.write_bytes(damage(content))
    for call in (records.read, records.pack):
        with pytest.raises(ValueError, match=r"gz is damaged.* Received: b'"):
            call(tmp_path)
    assert records.path_of(tmp_path, "t", METHOD).exists()
    path.write_bytes(content)
    assert len(records.read(tmp_path)) == len(RUNS) + 1


def test_equal_times_are_not_one(tmp_path):
    time = {"task": "t", "seconds": 0.5}
    for _ in range(2):
        records.append_time(tmp_path, time)
    loose = (tmp_path / "times.jsonl").read_bytes()
    records.pack(tmp_path)
    assert names(tmp_path) == ["times.jsonl.gz"]
    assert records.read_times(tmp_path) == [time, time]
    # Killed before the first file was removed; then one more run.
    (tmp_path / "times.jsonl").write_bytes(loose)
    assert records.read_times(tmp_path) == [time, time]
    records.append_time(tmp_path, {**time, "seconds": 0.25})
    found = [time["seconds"] for time in records.read_times(tmp_path)]
    assert found == [0.25, 0.5, 0.5]


def test_missing_runs_of_a_packed_experiment(tmp_path):
    options = Options(quick=True, seeds=2, methods=("sgd", "adam"))

    def items(options):
        tasks = EXPERIMENTS["logistic"].tasks(options)
        return plan.items(tasks, options, tmp_path)

    sgd, adam = items(options)
    for stage in ("tuning", "fresh"):
        for configuration, seed in sgd.missing(stage):
            run = make_run(seed, "logistic", METHODS["sgd"].label)
            change = {"configuration": configuration, "stage": stage}
            curves = {"validation_accuracy": [0.5]}
            result = {"validation_accuracy": 0.5, "validation_loss": 0.5}
            records.append(
                sgd.path, {**run, **change, "curves": curves, "result": result}
            )
    assert sgd.num_missing() == 0
    records.pack(tmp_path)
    assert not sgd.path.exists()
    assert sgd.num_missing() == 0 and not sgd.missing("fresh")
    sgd.check()
    assert adam.num_missing() == adam.size()
    more, _ = items(dataclasses.replace(options, seeds=3))
    assert [seed for _, seed in more.missing("fresh")] == [more.fresh_seeds[-1]]
    other = make_run(7, "logistic", METHODS["adam"].label)
    records.append(adam.path, other)
    records.pack(tmp_path)
    with pytest.raises(
        ValueError, match="outside of the grid.* Received: .*rate"
    ):
        adam.check()


@pytest.mark.parametrize("folder", ["results", "results/paper"])
def test_runs_of_the_repository_are_packed_and_complete(folder):
    folders = [path.parent for path in (ROOT / folder).glob("*/meta.json")]
    assert folders
    for path in folders:
        assert not list(path.glob("**/*.jsonl"))
        if path.name not in EXPERIMENTS:  # `quantize` has its own test
            continue
        settings = json.loads((path / "settings.json").read_text())
        keys = ("native", "sgd", "signsgd", "adam", "proxquant")
        options = Options(**settings, methods=keys)
        tasks = EXPERIMENTS[path.name].tasks(options)
        for item in plan.items(tasks, options, path):
            item.check()
            assert item.num_missing() == 0, (path, item.method.key)
