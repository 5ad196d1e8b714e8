"""The runs of a comparison, and which of them are missing.

Every method gets the same number of configurations. Each configuration is
trained with the tuning seeds, and the best one on the validation data is
chosen. The chosen configuration is trained with fresh seeds, and these runs are
the result. Host solvers use the configuration that was chosen for `native`.
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
        tuning_seeds: seeds of the runs that choose a configuration.
        fresh_seeds: seeds of the runs that are reported.
        like: the `Item` whose chosen configuration is used, or `None`.
        data_dir: folder of the datasets, passed to `task.load`.
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
        """Path of the file of the records."""
        return records.path_of(self.folder, self.task.name, self.method.label)

    @property
    def depends(self):
        """True if the item uses the configuration of another item."""
        return self.like is not None

    @property
    def cost(self):
        """Approximate duration of all runs."""
        return self.task.cost * self.method.cost * self.size()

    def is_tuned(self):
        """Returns whether there are several configurations to choose from."""
        if self.depends or self.task.ablation:
            return False
        return len(self.grid) > 1

    def size(self):
        """Returns the number of runs."""
        fresh = len(self.fresh_seeds)
        if self.task.ablation:
            return fresh * len(self.grid)
        # Do not use the grid here: a dependent item has none.
        return fresh + len(self.tuning_runs())

    def records(self):
        """Returns the finished runs of its configurations and seeds."""
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
        """Checks that all runs in the folder belong to the grid.

        Raises:
            ValueError: If a run has a configuration that is not in the grid.
        """
        if self.depends:
            return
        for run in self._all_records():
            if run["configuration"] not in self.grid:
                raise ValueError(
                    "`out` must not contain runs with configurations outside "
                    "of the grid. Add the configuration to the grid, or use a "
                    f"folder other than {self.folder}. "
                    f'Received: {run["configuration"]} of "{self.method.key}" '
                    f'in "{self.task.name}"'
                )

    def tuning_runs(self):
        """Returns pairs of configuration and seed."""
        if not self.is_tuned():
            return []
        return [(c, s) for c in self.grid for s in self.tuning_seeds]

    def fresh_configurations(self, runs):
        """Returns the configurations that are trained with fresh seeds.

        Args:
            runs: the finished runs.

        Returns:
            A list, or `None` if the best configuration is not known yet.
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
        """Returns the missing runs as pairs of configuration and seed."""
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
                source = self.like or self
                raise ValueError(
                    f'Method "{self.method.key}" in "{self.task.name}" needs '
                    "the configuration that is chosen for "
                    f'"{source.method.key}" in "{source.task.name}". Run that '
                    "one first. Received: incomplete tuning runs in "
                    f"{source.folder}"
                )
            wanted = [(c, s) for c in configurations for s in self.fresh_seeds]
        return [pair for pair in wanted if pair not in done]

    def num_missing(self):
        """Returns the number of missing runs that are known so far."""
        return self.size() - len(self.records())
