"""Runs all methods on all tasks and stores the records.

First, all configurations of a method run with the tuning seeds. Then those that
are the best after one of the numbers of updates run with the other seeds. The
records of a task are lines of JSON in `OUT/TASK.jsonl`, or `OUT/TASK.jsonl.gz`
once it is complete:

    {"key": "adam_0.1", "seed": 0, "results": {"1": {"train_loss": 0.5}}}

The results are those by number of updates.
"""

import gzip
import json
import pathlib

import numpy as np

from keras_qpsbgd.comparison import engine
from keras_qpsbgd.comparison.records import Store
from research.few_solves.tasks import TASKS
from research.few_solves.tasks import enumerated_loss
from research.few_solves.training import Trainer
from research.fingerprint import fingerprint
from research.fingerprint import stamp

# Seeds of the choice of a configuration. Those of the results start at zero.
FIRST_TUNING_SEED = 1000
# Updates of quick runs.
QUICK_UPDATES = 5
# The key of the smallest losses, found by enumeration.
OPTIMUM = "optimum"
# What determines a run, see `fingerprint`.
CODE = (
    "research.few_solves.study.Work",
    "research.few_solves.tasks.TASKS",
    "keras_qpsbgd.backends.graph.native.NativeBackend",
)


# Records


def key(method, configuration):
    """Returns the key of the runs of one configuration."""
    return f"{method}_" + "-".join(f"{number:g}" for number in configuration)


def open_store(out, task):
    """Returns the `Store` of the records of a task."""
    store = Store(pathlib.Path(out, f"{task}.jsonl"), ("key", "seed"))
    # Version 0.1 wrote one dictionary of all keys.
    older = pathlib.Path(out, f"{task}.json.gz")
    if older.exists():
        found = json.loads(gzip.decompress(older.read_bytes()))
        for name, runs in found.items():
            if name == OPTIMUM:
                runs = [
                    {"seed": int(seed), "loss": loss}
                    for seed, loss in runs.items()
                ]
            for run in runs:
                store.insert({"key": name, **run}, older)
    return store


def read(out, task):
    """Returns a dictionary of the runs of a task, by their keys."""
    return by_key(open_store(out, task))


def by_key(store):
    """Returns a dictionary of lists of records."""
    found = {}
    for record in store.records:
        found.setdefault(record["key"], []).append(record)
    return found


def best_position(runs, count):
    """Returns the position of the configuration with the best tuning runs.

    It has the lowest mean validation loss.

    Args:
        runs: List of the runs of each configuration.
        count: Integer. Number of updates.
    """

    def loss(position):
        losses = [
            run["results"][str(count)]["validation_loss"]
            for run in runs[position]
            if run["seed"] >= FIRST_TUNING_SEED
        ]
        mean = np.mean(losses)
        return mean if np.isfinite(mean) else np.inf

    return min(range(len(runs)), key=loss)


def best_positions(runs, chosen_at=None):
    """Returns a set of the best positions for all numbers of updates.

    Args:
        runs: List of the runs of each configuration.
        chosen_at: Integer (optional). The only number of updates that counts.
    """
    counts = runs[0][0]["results"]
    if str(chosen_at) in counts:
        counts = [chosen_at]
    return {best_position(runs, count) for count in counts}


# Runs


def run(names, out, data_dir, quick=False):
    """Runs the tasks, and skips runs whose records exist.

    Args:
        names: List of the names of tasks.
        out: Folder of the records.
        data_dir: Folder of the data, or `None`.
        quick: Boolean. Whether to use few seeds, samples and updates.

    Raises:
        ValueError: If a task needs another task that was not run.
    """
    for name in names:
        _run_task(TASKS[name], out, data_dir, quick)


def _run_task(task, out, data_dir, quick):
    methods = [name for name in task.methods if task.methods[name].can_run]
    store = stamp(open_store(out, task.name), fingerprint(CODE))
    tuned = open_store(out, task.tuned_on) if task.tuned_on else store
    num_tuning, num_fresh = (1, 2) if quick else (task.tuning, task.fresh)
    tuning = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + num_tuning)
    fresh = range(num_fresh)
    work = Work(task, data_dir, [*tuning, *fresh], quick)
    jobs = []
    if not task.tuned_on:
        jobs = [
            job
            for method in methods
            for configuration in task.methods[method].grid
            for job in _jobs(method, configuration, tuning)
        ]
    if task.is_enumerated:
        jobs += [{"key": OPTIMUM, "seed": s} for s in (*tuning, *fresh)]
    print(f"\n{task.name}: tuning", flush=True)
    engine.perform([jobs], work, store)
    print(f"\n{task.name}: results", flush=True)
    jobs = []
    for method in methods:
        grid = task.methods[method].grid
        wanted = _best(method, grid, by_key(tuned), task)
        for position in sorted(wanted):
            jobs += _jobs(method, grid[position], fresh)
    engine.perform([jobs], work, store)
    store.pack()


def _jobs(method, configuration, seeds):
    return [
        {
            "key": key(method, configuration),
            "method": method,
            "configuration": configuration,
            "seed": seed,
        }
        for seed in seeds
    ]


def _best(method, grid, tuned, task):
    """Returns the positions of the configurations to run with fresh seeds."""
    keys = [key(method, configuration) for configuration in grid]
    missing = [one for one in keys if one not in tuned]
    if missing:
        raise ValueError(
            f"Run the task {task.tuned_on} first, which chooses the "
            f"configurations of {task.name}. Missing: {missing}"
        )
    return best_positions([tuned[one] for one in keys], task.chosen_at)


class Work:
    """Performs runs of one task. Keeps the data and the last network.

    Args:
        task: A `Task`.
        data_dir: Folder of the data, or `None`.
        seeds: List of all seeds.
        quick: Boolean.
        trainer: The class that trains a network.
    """

    def __init__(self, task, data_dir, seeds, quick, trainer=Trainer):
        self._task = task
        self._make_trainer = trainer
        self._load = lambda: task.load(data_dir, seeds, quick)
        self._counts = task.counts
        if quick:
            counts = [c for c in task.counts if c <= QUICK_UPDATES]
            self._counts = counts or [QUICK_UPDATES]
        self._data = None
        self._key = self._trainer = None

    def __call__(self, job):
        if self._data is None:
            self._data = self._load()
        splits = self._data[job["seed"]]
        if job["key"] == OPTIMUM:
            return {"loss": enumerated_loss(splits["train"])}
        if job["key"] != self._key:
            method = self._task.methods[job["method"]]
            self._trainer = self._make_trainer(
                self._task, method, job["configuration"], splits
            )
            self._key = job["key"]
        found = self._trainer.run(job["seed"], splits, self._counts)
        return {"results": {str(k): result for k, result in found.items()}}
