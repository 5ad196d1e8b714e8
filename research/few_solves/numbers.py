"""Reads the records, chooses configurations and compares methods."""

import numpy as np

from keras_qpsbgd.comparison.statistics import mean_and_error
from keras_qpsbgd.comparison.statistics import paired_test
from research.few_solves import study
from research.few_solves.study import FIRST_TUNING_SEED

# Training losses this close to the best one count as equal.
TOLERANCE = 1e-5


class Numbers:
    """The results of one task.

    For every number of updates, the configuration with the lowest mean
    validation loss of the tuning seeds is chosen. The other seeds are reported.

    Args:
        out: Folder of the study.
        task: A `Task`.
    """

    def __init__(self, out, task):
        self.task = task
        found = study.read(out, task.name)
        tuned = study.read(out, task.tuned_on) if task.tuned_on else found
        self._runs, self._tuned = {}, {}
        for method, settings in task.methods.items():
            keys = [study.key(method, c) for c in settings.grid]
            # A method counts only if all of its runs exist.
            if all(key in tuned for key in keys):
                runs = [found.get(key, []) for key in keys]
                self._tuned[method] = [tuned[key] for key in keys]
                if self._is_complete(runs, self._tuned[method]):
                    self._runs[method] = runs
        self._optimum = None
        if study.OPTIMUM in found:
            losses = found[study.OPTIMUM]
            self._optimum = {one["seed"]: one["loss"] for one in losses}

    @property
    def methods(self):
        """The names of all methods that were run."""
        return list(self._runs)

    def has(self, method, updates):
        """Returns whether a method was evaluated after so many updates."""
        if method not in self._runs:
            return False
        count = str(self._decisive(method, updates))
        tuned = self._tuned[method]
        if any(count not in run["results"] for part in tuned for run in part):
            return False
        runs = self._runs[method][self._chosen(method, updates)]
        return all(str(updates) in run["results"] for run in runs)

    def chosen(self, method, updates):
        """Returns the chosen configuration."""
        return self.task.methods[method].grid[self._chosen(method, updates)]

    def is_at_end(self, method, updates):
        """Returns whether the chosen configuration is the first or last one."""
        last = len(self._runs[method]) - 1
        return self._chosen(method, updates) in (0, last)

    def _chosen(self, method, updates):
        return study.best_position(
            self._tuned[method], self._decisive(method, updates)
        )

    def _decisive(self, method, updates):
        """Returns the number of updates after which a choice is made."""
        # Quick runs are shorter.
        has_run = self._tuned[method][0][0]["results"]
        chosen_at = self.task.chosen_at
        return chosen_at if str(chosen_at) in has_run else updates

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
        """Returns how often a method reaches the best weights."""
        losses = self.values(method, updates, "train_loss")
        reached = [
            loss <= self._optimum[seed] + TOLERANCE
            for seed, loss in losses.items()
        ]
        return float(np.mean(reached))

    def _is_complete(self, runs, tuned):
        """Returns whether all chosen configurations have fresh seeds."""
        return all(
            any(run["seed"] < FIRST_TUNING_SEED for run in runs[position])
            for position in study.best_positions(tuned, self.task.chosen_at)
        )
