"""Jobs, their records, and the runs of a task."""

import json
import types
import warnings

import pytest

from research.engine import engine
from research.engine import plan
from research.engine import records
from research.engine.methods import METHODS
from research.engine.statistics import VALIDATION_ACCURACY

pytestmark = pytest.mark.once
JOBS = [{"task": "t", "settings": {"rate": 1 / 3}, "seed": k} for k in range(5)]


def open_store(folder):
    return records.Store(folder / "found.jsonl", ("task", "settings", "seed"))


def work(job):
    return {"value": job["seed"] / 3}


# --- Jobs ---


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


def test_processes_take_several_jobs_at_once(tmp_path):
    store = open_store(tmp_path)
    engine.perform([JOBS], work, store, processes=2, verbose=0, together=2)
    assert [store[job]["value"] for job in JOBS[:2]] == [0.0, 0.333333]
    assert len(store) == len(JOBS)


# --- Records ---


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


# --- Runs of a task ---


def test_errors_name_method_and_task():
    def fail(data_dir):
        raise KeyError("mine")

    task = types.SimpleNamespace(name="mine", load=fail)
    item = types.SimpleNamespace(
        task=task, method=METHODS["adam"], data_dir=None
    )
    job = {"task": "mine", "method": METHODS["adam"].label, "configuration": {}}
    expected = 'Training failed for method "adam" in "mine": KeyError'
    with pytest.raises(RuntimeError, match=expected):
        plan.Work([item])(job)


# --- The edges of a grid ---


@pytest.mark.parametrize(
    "name, scores, expected",
    [
        ("rate", {0.1: 0.7, 0.2: 0.8, 0.4: 0.9}, "`rate` 0.4 is the highest"),
        ("threshold", {1: 0.9, 2: 0.8, 3: 0.7}, "`threshold` 1 is the lowest"),
        ("rate", {0.1: 0.7, 0.2: 0.9, 0.4: 0.8}, None),
        # One between the ends is as good.
        ("rate", {0.1: 0.9, 0.2: 0.9, 0.4: 0.8}, None),
        ("rate", {0.1: 0.9, 0.2: 0.8}, None),  # too few values
    ],
)
def test_edge_of_a_grid(tmp_path, name, scores, expected):
    runs = records.Runs(tmp_path)
    grid = [{"rate": 0.1, name: value} for value in scores]
    task = types.SimpleNamespace(
        name="a", ablation=False, chosen_by=VALIDATION_ACCURACY
    )
    item = plan.Item(
        task, METHODS["bop"], runs, grid, range(1_000, 1_001), range(1)
    )
    for job, score in zip(item.jobs("tuning"), scores.values()):
        runs.add({**job, "result": {"validation_accuracy": score}})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan.warn_about_edges([item])
    found = [str(warning.message) for warning in caught]
    assert len(found) == (expected is not None)
    assert not found or f'"bop": {expected} in its grid' in found[0]
