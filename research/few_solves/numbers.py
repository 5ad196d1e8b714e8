"""The results of one task, and what methods reach at equal cost."""

import numpy as np
from scipy import stats

from research.engine.statistics import mean_and_error
from research.engine.statistics import paired_test
from research.few_solves import study
from research.few_solves.costs import ROUNDING

# Training losses this close to the best one count as equal.
TOLERANCE = 1e-5


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
            chosen = study.best_positions(runs)
            if all(_fresh(runs[k], count) for count, k in chosen.items()):
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
            for run in _fresh(runs, count)
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

    def at_budget(self, methods, axis, budget):
        """Returns what comes closest to a budget without exceeding it.

        Each method counts with its largest number of sweeps or updates within
        the budget.

        Args:
            methods: Names of methods.
            axis: String. What the budget counts.
            budget: Float.

        Returns:
            A pair of a method and a number of sweeps or updates: that with the
            lowest validation loss of the tuning seeds, or `None` if no method
            has some within the budget, or none has such costs.
        """
        found = {}
        for method in methods:
            costs = {
                count: self.cost(method, count, axis)
                for count in self._chosen.get(method, ())
            }
            within = [
                count
                for count, cost in costs.items()
                if 0 < cost <= budget * (1 + ROUNDING)
            ]
            if within:
                count = max(within)
                runs = self._runs[method][self._chosen[method][count]]
                found[method, count] = study.validation_loss(runs, count)
        return min(found, key=found.get) if found else None

    def optimum(self):
        """Returns the mean of the smallest losses of all layers."""
        return float(np.mean(list(self._optimum.values())))

    def reached(self, method, count):
        """Returns whether a method reaches the best weights, by seed."""
        losses = self.values(method, count, "train_loss")
        return {
            seed: loss <= self._optimum[seed] + TOLERANCE
            for seed, loss in losses.items()
        }

    def best_of_optima(self, methods):
        """Returns the method and count that reach the best weights most."""
        pairs = [
            (method, count)
            for method in methods
            for count in self._chosen.get(method, ())
        ]
        return max(pairs, key=lambda pair: self.share_of_optima(*pair))

    def share_of_optima(self, method, count):
        """Returns how often a method reaches the best weights."""
        return float(np.mean(list(self.reached(method, count).values())))


def _fresh(runs, count):
    """Returns the runs of fresh seeds that have a number."""
    return [
        run
        for run in runs
        if study.is_fresh(run) and str(count) in run["results"]
    ]


def sign_test(ours, theirs):
    """Returns the p-value of a two-sided sign test on common keys.

    For values that are true or false, it is the exact test of McNemar.

    Args:
        ours: Dictionary of values.
        theirs: Dictionary of values.
    """
    wins = sum(ours[key] > theirs[key] for key in ours)
    losses = sum(ours[key] < theirs[key] for key in ours)
    if not wins + losses:
        return 1.0
    return float(stats.binomtest(wins, wins + losses).pvalue)
