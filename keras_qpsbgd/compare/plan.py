"""Which runs a comparison consists of, and which of them are missing.

Every method gets the same number of configurations. Each is run on the tuning
seeds, the best on validation data is chosen, and the chosen one is run on fresh
seeds: those runs are the result. Solvers on the host take the configuration
that was chosen for `native`.
"""

import dataclasses

from keras_qpsbgd.compare import records
from keras_qpsbgd.compare.methods import Method
from keras_qpsbgd.compare.report import statistics
from keras_qpsbgd.compare.task import FRESH
from keras_qpsbgd.compare.task import TUNING

FIRST_TUNING_SEED = 1_000


@dataclasses.dataclass(frozen=True)
class Item:
    """All runs of one method on one task.

    Attributes:
        task: a `Task`.
        method: a `Method`.
        folder: folder of the records.
        grid: list of configurations.
        tuning_seeds: seeds of the runs that choose among them.
        fresh_seeds: seeds of the runs that are reported.
        like: the `Item` whose chosen configuration it takes, or `None`.
        data_dir: folder of the data sets, handed to `task.load`.
    """

    task: object
    method: Method
    folder: object
    grid: list
    tuning_seeds: range
    fresh_seeds: range
    like: object = None
    data_dir: object = None

    @property
    def path(self):
        """The file of its records."""
        return records.path_of(self.folder, self.task.name, self.method.label)

    @property
    def depends(self):
        """Whether it takes the configuration chosen for another item."""
        return self.like is not None

    @property
    def cost(self):
        """How long it takes, roughly."""
        return self.task.cost * self.method.cost * self.size()

    def is_tuned(self):
        """Whether there is something to choose."""
        if self.depends or self.task.ablation:
            return False
        return len(self.grid) > 1

    def size(self):
        """Number of its runs."""
        fresh = len(self.fresh_seeds)
        if self.task.ablation:
            return fresh * len(self.grid)
        # Not by the grid: what is like another item has none.
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
            and run["seed"] in self.tuning_seeds
            and run["configuration"] in self.grid
        ]
        wanted = self.fresh_configurations(kept)
        kept += [
            run
            for run in runs
            if run["stage"] == FRESH
            and run["seed"] in self.fresh_seeds
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
            if run["configuration"] not in self.grid:
                raise ValueError(
                    "`out` must not contain runs of another grid: choose "
                    f"another folder than {self.folder}. "
                    f"Received: {run['configuration']} of {self.method.key} "
                    f"on {self.task.name}"
                )

    def tuning_runs(self):
        """Pairs of configuration and seed."""
        if not self.is_tuned():
            return []
        return [(c, s) for c in self.grid for s in self.tuning_seeds]

    def fresh_configurations(self, runs):
        """The configurations that get fresh seeds, `None` if not known yet.

        Args:
            runs: records of the stage `tuning`.
        """
        if self.task.ablation:
            return self.grid
        if self.depends:
            return self.like.fresh_configurations(self.like.records())
        if not self.is_tuned():
            return self.grid
        tuning = [run for run in runs if run["stage"] == TUNING]
        if len(tuning) < len(self.tuning_runs()):
            return None
        return [statistics.choose(tuning, self.task.chosen_by, self.grid)]

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
            wanted = [(c, s) for c in configurations for s in self.fresh_seeds]
        return [pair for pair in wanted if pair not in done]

    def num_missing(self):
        """Number of runs to make, as far as it can be told."""
        return self.size() - len(self.records())
