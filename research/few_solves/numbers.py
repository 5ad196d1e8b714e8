"""The results of one task, and what methods reach at equal cost."""

import numpy as np

from research.engine.statistics import mean_and_error
from research.engine.statistics import paired_test
from research.few_solves import study

# Training losses this close to the best one count as equal.
TOLERANCE = 1e-5
# Costs this close to a budget are within it.
ROUNDING = 1e-6


class Numbers:
    """The results of one task.

    For every number of sweeps or updates, the configuration with the lowest
    mean validation loss of the tuning seeds is chosen. The other seeds are
    reported.

    Args:
        out: Folder of the study.
        task: A `Task`.
    """

    def __init__(self, out, task):
        self.task = task
        found = study.read(out, task.name)
        self._runs, self._chosen = {}, {}
        for name, method in task.methods.items():
            keys = [study.key(name, one) for one in method.grid]
            # A method counts only if all of its runs exist.
            if any(key not in found for key in keys):
                continue
            runs = [found[key] for key in keys]
            chosen = study.best_positions(runs, task)
            if all(any(map(study.is_fresh, runs[k])) for k in chosen.values()):
                self._runs[name], self._chosen[name] = runs, chosen
        self._optimum = {
            one["seed"]: one["loss"] for one in found.get(study.OPTIMUM, [])
        }

    @property
    def methods(self):
        """The names of all methods that were run."""
        return list(self._runs)

    @property
    def has_optimum(self):
        """Whether the smallest losses of all layers are known."""
        return bool(self._optimum)

    def counts(self, method):
        """Returns the numbers of sweeps or updates that were evaluated."""
        return list(self._chosen[method])

    def is_at_end(self, method, count):
        """Returns whether the chosen configuration is the first or last one."""
        last = len(self._runs[method]) - 1
        return last > 0 and self._chosen[method][count] in (0, last)

    def values(self, method, count, measure):
        """Returns the values of the fresh seeds, by seed."""
        runs = self._runs[method][self._chosen[method][count]]
        return {
            run["seed"]: run["results"][str(count)][measure]
            for run in runs
            if study.is_fresh(run)
        }

    def mean(self, method, count, measure):
        """Returns the mean and its standard error."""
        return mean_and_error(
            list(self.values(method, count, measure).values())
        )

    def cost(self, method, count, axis):
        """Returns the mean cost of so many sweeps or updates."""
        return float(self.mean(method, count, axis)[0])

    def test(self, ours, theirs, measure):
        """Returns the `PairedTest` of two pairs of a method and a count."""
        return paired_test(
            self.values(*ours, measure), self.values(*theirs, measure)
        )

    def best_within(self, methods, axis, budget):
        """Returns what has the lowest validation loss within a budget.

        Args:
            methods: Names of methods.
            axis: String. What the budget counts.
            budget: Float.

        Returns:
            A pair of a method and a number of sweeps or updates, which the
            tuning seeds choose, or `None` if nothing is within the budget.
        """
        found = {}
        for method in methods:
            for count, position in self._chosen.get(method, {}).items():
                cost = self.cost(method, count, axis)
                if cost <= budget * (1 + ROUNDING):
                    found[method, count] = study.validation_loss(
                        self._runs[method][position], count
                    )
        return min(found, key=found.get) if found else None

    def optimum(self):
        """Returns the mean of the smallest losses of all layers."""
        return float(np.mean(list(self._optimum.values())))

    def share_of_optima(self, method, count):
        """Returns how often a method reaches the best weights."""
        losses = self.values(method, count, "train_loss")
        reached = [
            loss <= self._optimum[seed] + TOLERANCE
            for seed, loss in losses.items()
        ]
        return float(np.mean(reached))
