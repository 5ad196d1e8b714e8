"""The paper's experiments in four readings.

The paper leaves two points open: whether the loss is the mean or the sum over
the rows of a batch, and whether the last iterate counts or the best one. Each
pair of answers is a reading. There are runs for both losses. Both iterates are
those of the same runs: the best one has the highest training accuracy and,
among equals, the lowest training loss, or the highest validation accuracy on
Cora and PubMed.
"""

import itertools

from research.engine import tables
from research.engine.statistics import TRAIN_ACCURACY
from research.engine.statistics import TRAIN_LOSS
from research.experiments.options import LOSSES
from research.experiments.overview import OURS

ITERATES = ("last", "best")
READINGS = tuple(itertools.product(LOSSES, ITERATES))
SELECTING = (TRAIN_ACCURACY, TRAIN_LOSS)


class Readings:
    """The runs with the paper's settings.

    Args:
        folders: dict that maps each of `LOSSES` to its `results.Folder`.
    """

    def __init__(self, folders):
        self._found = {
            loss: {
                task.name: (task, tables.select(runs, task=task.name))
                for description, runs in folder.described
                for task in description.tasks
            }
            for loss, folder in folders.items()
        }

    def names(self):
        """Returns the names of all tasks with a number per run."""
        names = [name for found in self._found.values() for name in found]
        return [
            name
            for name in dict.fromkeys(names)
            if self.of_task(name) and self.task(name).kind != "cells"
        ]

    def task(self, name):
        """Returns a task by its name."""
        for found in self._found.values():
            if name in found:
                return found[name][0]
        raise ValueError(f"There are no runs of this task. Received: {name}")

    def of_task(self, name):
        """Returns the readings for which a task was run."""
        # Without curves there is one number per run.
        return [
            (loss, iterate)
            for loss, iterate in READINGS
            if self.fresh(loss, name)
            and (iterate == "last" or self.task(name).kind == "curves")
        ]

    def fresh(self, loss, name):
        """Returns the fresh runs of a task with a loss."""
        _, runs = self._found[loss].get(name, (None, ()))
        return tables.select(runs, stage="fresh")

    def values(self, reading, name, measure):
        """Returns a dict that maps methods to dicts `{seed: value}`."""
        loss, iterate = reading
        task, _ = self._found[loss][name]
        found = {}
        for run in self.fresh(loss, name):
            value = value_of(run, task, measure, iterate)
            found.setdefault(run["method"], {})[run["seed"]] = value
        return found


def value_of(run, task, measure, iterate):
    """Returns a measure of the last or of the best iterate of a run."""
    curves = run["curves"]
    if measure.key not in curves:
        return run["result"][measure.key]
    if iterate == "last":
        return curves[measure.key][-1]
    selecting = task.reported or SELECTING

    def rank(position):
        return [m.sign * curves[m.key][position] for m in selecting]

    # Position 0 is before training.
    best = max(range(1, len(curves["epoch"])), key=rank)
    return curves[measure.key][best]


def blocks(folders):
    """Returns the tables of all tasks by the names of their blocks.

    Args:
        folders: see `Readings`.
    """
    found = Readings(folders)
    return {f"paper/{name}": table(found, name) for name in found.names()}


def table(readings, name):
    """Returns the table of a task: a column for each reading."""
    measure = readings.task(name).measures[0]
    found = {
        reading: readings.values(reading, name, measure)
        for reading in readings.of_task(name)
    }
    head = [measure.label]
    for reading, values in found.items():
        seeds = {len(of_method) for of_method in values.values()}
        number = " or ".join(map(str, sorted(seeds)))
        head.append(f"{reading_text(reading)} ({number} seeds)")
    names = {method for values in found.values() for method in values}
    methods = tables.methods_of([{"method": m} for m in names], OURS)
    rows = [
        [
            method,
            *(
                tables.mean_text(values[method].values(), measure)
                if method in values
                else "-"
                for values in found.values()
            ),
        ]
        for method in methods
    ]
    return tables.markdown_table(head, rows)


def reading_text(reading):
    return "{}, {}".format(*reading)
