"""Runs all methods on all tasks and stores the records.

First, all configurations of a method run with the tuning seeds. Then those that
are the best after one of the numbers of updates run with the other seeds.
"""

import pathlib

from tensorflow import keras

from research.few_solves import records
from research.few_solves.tasks.catalogue import TASKS
from research.few_solves.tasks.small import enumerated_loss
from research.few_solves.training import Trainer

# Updates of quick runs.
QUICK_UPDATES = 5


def run(names, out, data_dir, quick=False, only=None):
    """Runs the tasks, and skips runs whose records exist.

    Args:
        names: List of the names of tasks.
        out: Folder of the records.
        data_dir: Folder of the data, or `None`.
        quick: Boolean. Whether to use few seeds, samples and updates.
        only: List of the names of methods (optional). Others are skipped.

    Raises:
        ValueError: If a task has none of these methods, or needs another task
            that was not run.
    """
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        study = _Study(TASKS[name], out, data_dir, quick)
        runnable = {k: v for k, v in study.task.methods.items() if v.can_run}
        methods = runnable
        if only:
            methods = {k: v for k, v in methods.items() if k in only}
        if not methods:
            raise ValueError(
                f"`--methods` must name methods of the task {name}: "
                f"{', '.join(runnable)}. Received: {', '.join(only)}"
            )
        configurations = sum(len(method.grid) for method in methods.values())
        bar = keras.utils.Progbar(2 * configurations, unit_name=name)
        for method in methods:
            study.run(method, bar)
        study.enumerate()
        records.pack(out, name)


class _Study:
    """The study of one task.

    Args:
        task: A `Task`.
        out: Folder of the records.
        data_dir: Folder of the data, or `None`.
        quick: Boolean.
    """

    def __init__(self, task, out, data_dir, quick):
        self.task = task
        self._out = out
        self._data_dir = data_dir
        self._quick = quick
        first = records.FIRST_TUNING_SEED
        tuning, fresh = (1, 2) if quick else (task.tuning, task.fresh)
        self._tuning = list(range(first, first + tuning))
        self._fresh = list(range(fresh))
        self._counts = task.counts
        if quick:
            counts = [c for c in task.counts if c <= QUICK_UPDATES]
            self._counts = counts or [QUICK_UPDATES]
        self._found = records.read(out, task.name)
        self._tuned = self._found
        if task.tuned_on:
            self._tuned = records.read(out, task.tuned_on)
        self._data = {}

    def run(self, name, bar):
        """Performs all runs of a method."""
        grid = self.task.methods[name].grid
        trainers = {}
        for configuration in grid:
            if not self.task.tuned_on:
                self._complete(name, configuration, self._tuning, trainers)
            bar.add(1)
        keys = [records.key(name, configuration) for configuration in grid]
        missing = [key for key in keys if key not in self._tuned]
        if missing:
            raise ValueError(
                f"Run the task {self.task.tuned_on} first, which chooses the "
                f"configurations of {self.task.name}. Missing: {missing}"
            )
        wanted = records.best_positions(
            [self._tuned[key] for key in keys], self.task.chosen_at
        )
        for position, configuration in enumerate(grid):
            if position in wanted:
                self._complete(name, configuration, self._fresh, trainers)
            bar.add(1)

    def enumerate(self):
        """Computes the smallest loss of all networks."""
        if self.task.is_enumerated and records.OPTIMUM not in self._found:
            losses = {
                seed: enumerated_loss(self._splits(seed)["train"])
                for seed in (*self._tuning, *self._fresh)
            }
            records.write(self._out, self.task.name, records.OPTIMUM, losses)

    def _runs(self, name, configuration):
        return self._found.get(records.key(name, configuration), [])

    def _complete(self, name, configuration, seeds, trainers):
        """Performs the runs of one configuration that do not exist."""
        runs = self._runs(name, configuration)
        known = {run["seed"] for run in runs}
        missing = [seed for seed in seeds if seed not in known]
        if not missing:
            return
        key = records.key(name, configuration)
        if key not in trainers:
            trainers[key] = Trainer(
                self.task,
                self.task.methods[name],
                configuration,
                self._splits(missing[0]),
            )
        new = [
            {
                "seed": seed,
                "results": _by_text(
                    trainers[key].run(seed, self._splits(seed), self._counts)
                ),
            }
            for seed in missing
        ]
        self._found[key] = runs + new
        records.write(self._out, self.task.name, key, self._found[key])

    def _splits(self, seed):
        if not self._data:
            self._data = self.task.load(
                self._data_dir, [*self._tuning, *self._fresh], self._quick
            )
        return self._data[seed]


def _by_text(results):
    """Returns results as they are read from a file, with text as keys."""
    return {str(count): result for count, result in results.items()}
