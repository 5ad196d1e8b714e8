"""Which runs an experiment consists of, and which of them are missing.

Every method gets the same number of configurations. Each is run on the tuning
seeds, the best on validation data is chosen, and the chosen one is run on fresh
seeds: those runs are the result. Solvers on the host take the configuration
that was chosen for `native`.
"""

import dataclasses

from keras_qpsbgd.compare import methods
from keras_qpsbgd.compare import records
from keras_qpsbgd.compare.report import statistics
from keras_qpsbgd.compare.task import FRESH
from keras_qpsbgd.compare.task import TUNING

FIRST_TUNING_SEED = 1_000
MAX_SEEDS = 800  # some tasks begin at 200
QUICK_SEEDS = 2
QUICK_CONFIGURATIONS = 2


@dataclasses.dataclass(frozen=True)
class Item:
    """All runs of one method on one task.

    Args:
        task: a `Task`.
        method: a `Method`.
        options: `Options`.
        folder: folder of the experiment's records.
    """

    task: object
    method: methods.Method
    options: object
    folder: object

    @property
    def path(self):
        """The file of its records."""
        return records.path_of(self.folder, self.task.name, self.method.label)

    @property
    def depends(self):
        """Whether it takes the configuration chosen for another item."""
        return bool(self.task.like or self.method.like)

    @property
    def cost(self):
        """How long it takes, roughly."""
        return self.task.cost * self.method.cost * self.size()

    def grid(self):
        """Its configurations."""
        found = self.task.grids[self.method.like or self.method.key]
        if self.options.quick and not self.task.ablation:
            middle = max(len(found) - QUICK_CONFIGURATIONS, 0) // 2
            return found[middle : middle + QUICK_CONFIGURATIONS]
        return found

    def tuning_seeds(self):
        count = 1 if self.options.quick else self.task.tuning_seeds
        return range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + count)

    def fresh_seeds(self):
        first = self.task.first_seed
        return range(first, first + self._num_fresh_seeds())

    def _num_fresh_seeds(self):
        if self.options.seeds is not None:
            return self.options.seeds
        if self.options.quick:
            return 1 if self.task.ablation else QUICK_SEEDS
        if self.options.paper:
            return 6 if self.task.ablation else 5
        if self.method.key in methods.HOST:
            return self.task.host_seeds
        return self.task.fresh_seeds

    def is_tuned(self):
        """Whether there is something to choose."""
        if self.depends or self.task.ablation:
            return False
        return len(self.grid()) > 1

    def size(self):
        """Number of its runs."""
        fresh = len(self.fresh_seeds())
        if self.task.ablation:
            return fresh * len(self.grid())
        # Not by the grid: what is like another task has none.
        return fresh + len(self.tuning_runs())

    def records(self):
        """Its runs that were made, other configurations and seeds left out."""
        runs = self._all_records()
        tuned = self.is_tuned()
        kept = [
            run
            for run in runs
            if run["stage"] == TUNING
            and tuned
            and run["seed"] in self.tuning_seeds()
            and run["configuration"] in self.grid()
        ]
        wanted = self.fresh_configurations(kept)
        kept += [
            run
            for run in runs
            if run["stage"] == FRESH
            and run["seed"] in self.fresh_seeds()
            and wanted is not None
            and run["configuration"] in wanted
        ]
        return kept

    def _all_records(self):
        return records.runs_of(self.folder, self.task.name, self.method.label)

    def check(self):
        """Refuses runs of a grid that was another then: no table has both.

        Raises:
            ValueError: there are such runs.
        """
        if self.depends:
            return
        for run in self._all_records():
            if run["configuration"] not in self.grid():
                raise ValueError(
                    "`--out` must hold no runs of another grid: choose another "
                    f"folder than {self.folder}. Received: "
                    f"{run['configuration']} of {self.method.key} on "
                    f"{self.task.name}"
                )

    def tuning_runs(self):
        """Pairs of configuration and seed."""
        if not self.is_tuned():
            return []
        return [(c, s) for c in self.grid() for s in self.tuning_seeds()]

    def fresh_configurations(self, runs):
        """The configurations that get fresh seeds, `None` if not known yet.

        Args:
            runs: records of the stage `tuning`.
        """
        if self.task.ablation:
            return self.grid()
        if self.depends:
            return self._of_another()
        if not self.is_tuned():
            return self.grid()
        tuning = [run for run in runs if run["stage"] == TUNING]
        if len(tuning) < len(self.tuning_runs()):
            return None
        return [statistics.choose(tuning, self.task.chosen_by, self.grid())]

    def _of_another(self):
        """What was chosen for the item that this one is like."""
        key = self.method.like or self.method.key
        other = dataclasses.replace(
            self,
            task=self.task.like or self.task,
            method=methods.METHODS[key],
        )
        return other.fresh_configurations(other.records())

    def missing(self, stage):
        """Runs that were not made: pairs of configuration and seed."""
        runs = self.records()
        done = [
            (run["configuration"], run["seed"])
            for run in runs
            if run["stage"] == stage
        ]
        if stage == TUNING:
            wanted = self.tuning_runs()
        else:
            configurations = self.fresh_configurations(runs)
            if configurations is None:
                raise ValueError(
                    f"The configuration of `{self.method.key}` on "
                    f"{self.task.name} is that of another method, which has "
                    "not been chosen: run it, too. Received: no runs of it in "
                    f"{self.folder}"
                )
            wanted = [
                (c, s) for c in configurations for s in self.fresh_seeds()
            ]
        return [pair for pair in wanted if pair not in done]

    def num_missing(self):
        """Number of runs to make, as far as it can be told."""
        return self.size() - len(self.records())


def items(tasks, options, folder):
    """The items of some tasks, in the order of the tables."""
    found = []
    for task in tasks:
        for key in methods.METHODS:
            if key in options.methods and key in task.methods:
                method = methods.method_of(key, options)
                found.append(Item(task, method, options, folder))
    return found
