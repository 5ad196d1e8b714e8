"""Reads the records, chooses configurations and compares methods."""

import numpy as np

from keras_qpsbgd.compare.report.statistics import mean_and_error
from keras_qpsbgd.compare.report.statistics import paired_test
from research.few_solves import records
from research.few_solves.records import FIRST_TUNING_SEED

# Training losses this close to the best one count as equal.
TOLERANCE = 1e-5


class Numbers:
    """The results of one task.

    For every number of updates, the configuration with the lowest mean
    validation loss of the tuning seeds is chosen. The other seeds are reported.

    Args:
        out: Folder of the records.
        task: A `Task`.
    """

    def __init__(self, out, task):
        self.task = task
        found = records.read(out, task.name)
        self._runs = {}
        for method, settings in task.methods.items():
            keys = [records.key(method, c) for c in settings.grid]
            # A method counts only if all of its runs exist.
            if all(key in found for key in keys):
                runs = [found[key] for key in keys]
                if _is_complete(runs):
                    self._runs[method] = runs
        self._optimum = None
        if records.OPTIMUM in found:
            losses = found[records.OPTIMUM]
            self._optimum = {int(seed): loss for seed, loss in losses.items()}

    @property
    def methods(self):
        """The names of all methods that were run."""
        return list(self._runs)

    def has(self, method, updates):
        """Returns whether a method was evaluated after so many updates."""
        runs = self._runs.get(method)
        return bool(runs) and all(
            str(updates) in one["results"] for part in runs for one in part
        )

    def chosen(self, method, updates):
        """Returns the chosen configuration."""
        return self.task.methods[method].grid[self._chosen(method, updates)]

    def is_at_end(self, method, updates):
        """Returns whether the chosen configuration is the first or last one."""
        last = len(self._runs[method]) - 1
        return self._chosen(method, updates) in (0, last)

    def _chosen(self, method, updates):
        return records.best_position(self._runs[method], updates)

    def values(self, method, updates, measure):
        """Returns the values of the fresh seeds, by seed."""
        runs = self._runs[method][self._chosen(method, updates)]
        return {
            run["seed"]: run["results"][str(updates)][measure]
            for run in runs
            if run["seed"] < FIRST_TUNING_SEED
        }

    def mean(self, method, updates, measure):
        """Returns the mean and its standard error."""
        return mean_and_error(
            list(self.values(method, updates, measure).values())
        )

    def test(self, method, rival, updates, measure):
        """Returns the `PairedTest` of two methods."""
        return paired_test(
            self.values(method, updates, measure),
            self.values(rival, updates, measure),
        )

    def optimum(self):
        """Returns the mean of the smallest losses of all layers, or `None`."""
        if self._optimum is None:
            return None
        fresh = [v for s, v in self._optimum.items() if s < FIRST_TUNING_SEED]
        return float(np.mean(fresh))

    def share_of_optima(self, method, updates):
        """Returns how often a method reaches the best of all layers."""
        losses = self.values(method, updates, "train_loss")
        reached = [
            loss <= self._optimum[seed] + TOLERANCE
            for seed, loss in losses.items()
        ]
        return float(np.mean(reached))


def _is_complete(runs):
    """Returns whether all chosen configurations have fresh seeds."""
    return all(
        any(run["seed"] < FIRST_TUNING_SEED for run in runs[position])
        for position in records.best_positions(runs)
    )
