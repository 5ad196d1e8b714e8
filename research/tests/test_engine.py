"""Jobs, their records, and the runs of a task."""

import dataclasses
import json
import os
import types
import warnings

import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.backends import BackendUnavailable
from research.engine import engine
from research.engine import plan
from research.engine import records
from research.engine.methods import METHODS
from research.engine.statistics import VALIDATION_ACCURACY
from research.engine.task import Task

JOBS = [{"task": "t", "settings": {"rate": 1 / 3}, "seed": k} for k in range(5)]


def open_store(folder):
    return records.Store(folder / "found.jsonl", ("task", "settings", "seed"))


def work(job):
    return {"value": job["seed"] / 3}


# --- Jobs ---


@pytest.mark.once
def test_finished_jobs_are_not_repeated(tmp_path):
    made = []

    def stopped(job):
        made.append(job["seed"])
        if len(made) == 3:
            raise KeyboardInterrupt
        return work(job)

    with pytest.raises(KeyboardInterrupt):
        engine.perform([JOBS], stopped, open_store(tmp_path), verbose=0)
    assert len(open_store(tmp_path)) == 2
    engine.perform([JOBS], stopped, open_store(tmp_path), verbose=0)
    assert made == [0, 1, 2, 2, 3, 4]
    store = open_store(tmp_path)
    assert all(job in store for job in JOBS)
    # Results have six digits, and jobs all of them.
    assert store[JOBS[1]] == {**JOBS[1], "value": 0.333333}


# --- Records ---


@pytest.mark.once
def test_incomplete_last_line(tmp_path):
    store = open_store(tmp_path)
    engine.perform([JOBS[:2]], work, store, verbose=0)
    with open(store.path, "ab") as file:
        file.write(b'{"task": "t", "se')
    store = open_store(tmp_path)
    assert len(store) == 2
    engine.perform([JOBS], work, store, verbose=0)
    lines = store.path.read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [0, 1, 2, 3, 4]


@pytest.mark.once
def test_packed_records(tmp_path):
    store = open_store(tmp_path)
    engine.perform([JOBS], work, store, verbose=0)
    order = lambda record: record["seed"]
    store.pack(order)
    first = store.packed.read_bytes()
    assert not store.path.exists()
    again = open_store(tmp_path)
    assert again.records == store.records
    # A kill between packing and removing: the records are in both files.
    again.path.write_bytes(records.line_of({**JOBS[0], "value": 0.0}))
    again = open_store(tmp_path)
    again.pack(order)
    assert store.packed.read_bytes() == first
    again.path.write_bytes(records.line_of({**JOBS[0], "value": 1.0}))
    with pytest.raises(ValueError, match="two different runs"):
        open_store(tmp_path)
    again.path.unlink()
    store.packed.write_bytes(first[:-20])
    with pytest.raises(ValueError, match="is damaged. .*Received"):
        open_store(tmp_path)


class Killed(BaseException):
    """No code handles this exception."""


@pytest.mark.once
def test_nothing_is_lost_by_a_kill_while_packing(tmp_path, monkeypatch):
    """Kills before each call that changes the folder."""
    order = lambda record: record["seed"]
    for position in range(20):
        folder = tmp_path / str(position)
        store = open_store(folder)
        engine.perform([JOBS[:2]], work, store, verbose=0)
        store.pack(order)
        engine.perform([JOBS], work, store, verbose=0)
        left = iter(range(position, -1, -1))

        def killing(call, left=left):
            def run(*arguments, **named):
                if next(left, 1) == 0:
                    raise Killed
                return call(*arguments, **named)

            return run

        killed = False
        with monkeypatch.context() as patch:
            for name in ("replace", "unlink", "fsync"):
                patch.setattr(os, name, killing(getattr(os, name)))
            try:
                store.pack(order)
            except Killed:
                killed = True
        again = open_store(folder)
        assert sorted(again.records, key=order) == sorted(
            store.records, key=order
        )
        if not killed:
            break
    assert position >= 3


# --- Runs of a task ---


def conv_task():
    """Returns a task without `first_weights`, like those of the experiments."""

    def build(source, weights):
        return keras.Sequential(
            [
                keras.layers.InputLayer((3, 3, 1)),
                kq.layers.BinaryConv2D(2, 2),
                keras.layers.Flatten(),
                kq.layers.BinaryDense(2),
            ]
        )

    return Task(
        name="images",
        load=None,
        splits=None,
        batches=None,
        build=build,
    )


@pytest.mark.once
@pytest.mark.parametrize(
    "error, kind",
    [
        (KeyError("mine"), RuntimeError),
        (
            tf.errors.InvalidArgumentError(None, None, "no shape"),
            RuntimeError,
        ),
        (BackendUnavailable("no license"), BackendUnavailable),
    ],
)
def test_errors_name_method_and_task(error, kind):
    def fail(data_dir):
        raise error

    task = types.SimpleNamespace(name="mine", load=fail)
    item = types.SimpleNamespace(
        task=task, method=METHODS["adam"], data_dir=None
    )
    job = {"task": "mine", "method": METHODS["adam"].label, "configuration": {}}
    with pytest.raises(kind) as caught:
        plan.Work([item])(job)
    if kind is BackendUnavailable:
        assert caught.value is error
        return
    expected = 'Training failed for method "adam" in "mine": '
    assert str(caught.value) == f"{expected}{type(error).__name__}: {error}"
    assert caught.value.__cause__ is error


# --- The edges of a grid ---


def warnings_of(folder, name, scores):
    """Returns the warnings about a grid whose setting has these scores."""
    runs = records.Runs(folder)
    grid = [{"rate": 0.1, name: value} for value in scores]
    task = dataclasses.replace(conv_task(), chosen_by=VALIDATION_ACCURACY)
    item = plan.Item(
        task, METHODS["bop"], runs, grid, range(1_000, 1_001), range(1)
    )
    for job, score in zip(item.jobs("tuning"), scores.values()):
        runs.add({**job, "result": {"validation_accuracy": score}})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan.warn_about_edges([item])
    return [str(warning.message) for warning in caught]


@pytest.mark.once
@pytest.mark.parametrize(
    "name, scores, expected",
    [
        ("rate", {0.1: 0.7, 0.2: 0.8, 0.4: 0.9}, "`rate` 0.4 is the highest"),
        ("rate", {0.1: 0.9, 0.2: 0.8, 0.4: 0.7}, "`rate` 0.1 is the lowest"),
        ("threshold", {1: 0.7, 2: 0.8, 3: 0.9}, "`threshold` 3 is the highest"),
        ("rate", {0.1: 0.7, 0.2: 0.9, 0.4: 0.8}, None),
        # One between the ends is as good.
        ("rate", {0.1: 0.9, 0.2: 0.9, 0.4: 0.8}, None),
        ("rate", {0.1: 0.9, 0.2: 0.8}, None),  # too few values
    ],
)
def test_edge_of_a_grid(tmp_path, name, scores, expected):
    found = warnings_of(tmp_path, name, scores)
    if expected is None:
        assert not found
        return
    (text,) = found
    assert f'"bop": {expected} in its grid' in text
    assert f"'{name}': {max(scores)}" in text
