"""Runs all methods on all tasks and stores the records.

First, all configurations of a method run with the tuning seeds. The best one
for each number of sweeps or updates then runs for this number with the other
seeds. The records of a task are lines of JSON in `OUT/TASK.jsonl`, or
`OUT/TASK.jsonl.gz` once it is complete:

    {"key": "adam_0.1", "seed": 0, "results": {"10": {"train_loss": 0.5}}}

The results are those by number of sweeps or updates, with what they cost. Each
number of updates is a run of its own, whose learning rates fall to zero at its
end.
"""

import os
import pathlib

import numpy as np

from research import code_version
from research.engine import engine
from research.engine.records import Store
from research.few_solves import costs
from research.few_solves.methods import COLUMNS
from research.few_solves.tasks import TASKS
from research.few_solves.tasks import enumerated_loss
from research.few_solves.training import Trainer

# Seeds of the choice of a configuration, and those of the results.
FIRST_TUNING_SEED = 1000
FIRST_FRESH_SEED = 2000
# The key of the smallest losses, found by enumeration.
OPTIMUM = "optimum"
CODE = (
    *code_version.TRAINING,
    "keras_qpsbgd/columns",
    "research/few_solves/training.py",
)


# Records


def key(method, configuration):
    """Returns the key of the runs of one configuration."""
    return f"{method}_" + "-".join(f"{number:g}" for number in configuration)


def open_store(out, task, code=None):
    """Returns the `Store` of the records of a task."""
    path = pathlib.Path(out, f"{task}.jsonl")
    return Store(path, ("key", "seed"), code=code)


def read(out, task):
    """Returns a dictionary of the runs of a task, by their keys."""
    return by_key(open_store(out, task))


def is_older(out, task):
    """Returns whether a task has records of other code than the present."""
    now = code_version.version(*CODE)
    return any(r.get("code") != now for r in open_store(out, task).records)


def by_key(store):
    """Returns a dictionary of lists of records."""
    found = {}
    for record in store.records:
        found.setdefault(record["key"], []).append(record)
    return found


def is_fresh(record):
    """Returns whether a record is one of the results."""
    return record["seed"] >= FIRST_FRESH_SEED


def validation_loss(runs, count):
    """Returns the mean validation loss of the tuning seeds."""
    losses = [
        run["results"][str(count)]["validation_loss"]
        for run in runs
        if not is_fresh(run)
    ]
    mean = np.mean(losses)
    return mean if np.isfinite(mean) else np.inf


def best_positions(runs):
    """Returns the positions of the best configurations of a method.

    They have the lowest mean validation loss of the tuning seeds.

    Args:
        runs: List of the runs of each configuration.

    Returns:
        A dictionary by number of sweeps or updates.
    """
    counts = sorted(int(count) for count in runs[0][0]["results"])
    return {
        count: min(
            range(len(runs)),
            key=lambda k, count=count: validation_loss(runs[k], count),
        )
        for count in counts
    }


# Runs


def run(names, out, data_dir, quick=False):
    """Runs the tasks, and skips runs whose records exist.

    Args:
        names: List of the names of tasks.
        out: Folder of the records.
        data_dir: Folder of the data, or `None`.
        quick: Boolean. Whether to use few seeds, samples and updates.
    """
    # CPU times are those of one thread.
    os.environ.update(engine.environment(1))
    for name in names:
        _run_task(TASKS[name], out, data_dir, quick)


def _run_task(task, out, data_dir, quick):
    store = open_store(out, task.name, code_version.version(*CODE))
    num_tuning, num_fresh = (1, 2) if quick else (task.tuning, task.fresh)
    tuning = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + num_tuning)
    fresh = range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + num_fresh)
    work = Work(task, data_dir, [*tuning, *fresh], quick)
    jobs = [
        job
        for name, method in task.methods.items()
        for configuration in _ordered(method)
        for job in _jobs(name, configuration, tuning)
    ]
    if task.is_enumerated:
        jobs += [{"key": OPTIMUM, "seed": seed} for seed in fresh]
    print(f"\n{task.name}: tuning", flush=True)
    engine.perform([jobs], work, store)
    print(f"\n{task.name}: results", flush=True)
    tuned = by_key(store)
    jobs = []
    for name, method in task.methods.items():
        best = best_positions([tuned[key(name, one)] for one in method.grid])
        for configuration in _ordered(method):
            position = method.grid.index(configuration)
            counts = [count for count, k in best.items() if k == position]
            if counts:
                jobs += _jobs(name, configuration, fresh, counts=counts)
    engine.perform([jobs], work, store)
    store.pack()


def _ordered(method):
    """Returns the grid of a method in an order that compiles less."""
    return sorted(method.grid, key=lambda one: settings(method, one))


def settings(method, configuration):
    """Returns what compiled updates depend on: all but the learning rate."""
    is_rate = method.kind != COLUMNS
    return tuple(configuration[1:] if is_rate else configuration)


def _jobs(method, configuration, seeds, **values):
    return [
        {
            "key": key(method, configuration),
            "method": method,
            "configuration": configuration,
            "seed": seed,
            **values,
        }
        for seed in seeds
    ]


class Work:
    """Performs runs of one task. Keeps the data and the last network.

    Args:
        task: A `Task`.
        data_dir: Folder of the data, or `None`.
        seeds: List of all seeds.
        quick: Boolean.
    """

    def __init__(self, task, data_dir, seeds, quick):
        self._task = task
        self._load = lambda: task.load(data_dir, seeds, quick)
        self._quick = quick
        self._data = None
        self._warm = set()
        self._key = self._trainer = None

    def __call__(self, job):
        if self._data is None:
            self._data = self._load()
        splits = self._data[job["seed"]]
        if job["key"] == OPTIMUM:
            return {"loss": enumerated_loss(splits["train"])}
        task, configuration = self._task, job["configuration"]
        counts = job.get("counts")
        if counts is None:
            rows = len(splits["train"].rows)
            counts = costs.counts(task, job["method"], rows)
            counts = counts[:2] if self._quick else counts
        trainer = self._trainer_of(job, splits, counts)
        found = trainer.run(job["seed"], splits, counts, configuration[0])
        return {"results": {str(k): result for k, result in found.items()}}

    def _trainer_of(self, job, splits, counts):
        """Returns the last trainer if only the learning rate changes."""
        method, configuration = (
            self._task.methods[job["method"]],
            job["configuration"],
        )
        key = job["method"], settings(method, configuration)
        if key != self._key:
            arguments = self._task, method, configuration, splits
            if job["method"] not in self._warm:
                # The first use in a process compiles the solver.
                self._warm.add(job["method"])
                Trainer(*arguments).run(job["seed"], splits, counts[:1])
            self._key, self._trainer = key, Trainer(*arguments)
        return self._trainer
