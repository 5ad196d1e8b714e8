"""Reads the records, chooses configurations and compares methods."""

import numpy as np

from keras_qpsbgd.compare.report.statistics import mean_and_error
from keras_qpsbgd.compare.report.statistics import paired_test
from research.few_solves import records
from research.few_solves.methods import METHODS
from research.few_solves.study import FIRST_TUNING_SEED
from research.few_solves.tasks import TASKS

# Training losses this close to the best one count as equal.
TOLERANCE = 1e-5


class Numbers:
    """The results of one task.

    For every number of updates, the configuration with the lowest mean
    validation loss of the tuning seeds is chosen. The other seeds are reported.

    Args:
        out: Folder of the records.
        name: String. Name of the task.
    """

    def __init__(self, out, name):
        self.task = TASKS[name]
        found = records.read(out, name)
        self._runs = {}
        for method, settings in METHODS.items():
            for configuration in settings.grid:
                runs = found.get(records.key(method, configuration))
                if runs is not None:
                    place = self._runs.setdefault(method, [])
                    place.append((configuration, runs))
        # A method counts only if all of its configurations are complete.
        self._runs = {
            method: runs
            for method, runs in self._runs.items()
            if len(runs) == len(METHODS[method].grid)
        }
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
        return runs and str(updates) in runs[0][1][0]["results"]

    def chosen(self, method, updates):
        """Returns the chosen configuration and its runs."""

        def loss(choice):
            losses = [
                run["results"][str(updates)]["validation_loss"]
                for run in choice[1]
                if run["seed"] >= FIRST_TUNING_SEED
            ]
            mean = np.mean(losses)
            return mean if np.isfinite(mean) else np.inf

        return min(self._runs[method], key=loss)

    def values(self, method, updates, measure):
        """Returns the values of the fresh seeds, by seed."""
        _, runs = self.chosen(method, updates)
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
