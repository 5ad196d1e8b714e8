"""The runs of a comparison as jobs, and the function that performs them.

Every method gets the same number of configurations. Each configuration is
trained with the tuning seeds, and the best one on the validation data is
chosen. The chosen configuration is trained with fresh seeds, and these runs are
the result. Host solvers use the configuration that was chosen for `native`.
"""

import dataclasses
import gc
import warnings

from keras_qpsbgd import backends
from research.engine import engine
from research.engine import records
from research.engine import statistics
from research.engine.methods import NOT_FOR_THE_OPTIMIZER
from research.engine.methods import Method
from research.engine.task import FRESH
from research.engine.task import TUNING
from research.engine.training import trainer_of

FIRST_TUNING_SEED = 1_000
# Grids vary one of these. For Bop it is the threshold.
SETTINGS = ("rate", "threshold", "real_rate")


@dataclasses.dataclass(frozen=True)
class Item:
    """All runs of one method on one task.

    Attributes:
        task: a `Task`.
        method: a `Method`.
        runs: the `records.Runs` of the folder.
        grid: list of configurations.
        tuning_seeds: seeds of the runs that choose a configuration.
        fresh_seeds: seeds of the runs that are reported.
        like: the `Item` whose chosen configuration is used, or `None`.
        data_dir: folder of the datasets, passed to `task.load`.
    """

    task: object
    method: Method
    runs: records.Runs
    grid: list
    tuning_seeds: range
    fresh_seeds: range
    like: object = None
    data_dir: object = None

    def is_tuned(self):
        """Returns whether there are several configurations to choose from."""
        if self.like is not None or self.task.ablation:
            return False
        return len(self.grid) > 1

    def size(self):
        """Returns the number of runs."""
        fresh = len(self.fresh_seeds)
        if self.task.ablation:
            return fresh * len(self.grid)
        return fresh + len(self.jobs(TUNING))

    def jobs(self, stage):
        """Returns the jobs of a stage.

        Raises:
            ValueError: If the stage is "fresh" and tuning runs are missing.
        """
        if stage == TUNING:
            grid = self.grid if self.is_tuned() else []
            return self._jobs(stage, grid, self.tuning_seeds)
        configurations = self.fresh_configurations()
        if configurations is None:
            source = self.like or self
            raise ValueError(
                f'Method "{self.method.key}" in "{self.task.name}" needs '
                "the configuration that is chosen for "
                f'"{source.method.key}" in "{source.task.name}". Run the '
                "latter first. Received: incomplete tuning runs in "
                f"{source.runs.folder}"
            )
        return self._jobs(stage, configurations, self.fresh_seeds)

    def _jobs(self, stage, configurations, seeds):
        return [
            {
                "task": self.task.name,
                "method": self.method.label,
                "stage": stage,
                "configuration": configuration,
                "seed": seed,
            }
            for configuration in configurations
            for seed in seeds
        ]

    def fresh_configurations(self):
        """Returns the configurations that are trained with fresh seeds.

        Returns:
            A list, or `None` if the best configuration is not known yet.
        """
        if self.task.ablation:
            return self.grid
        if self.like is not None:
            return self.like.fresh_configurations()
        if not self.is_tuned():
            return self.grid
        jobs = self.jobs(TUNING)
        if not all(job in self.runs for job in jobs):
            return None
        tuning = [self.runs[job] for job in jobs]
        return [statistics.choose(tuning, self.task.chosen_by, self.grid)]

    def records(self):
        """Returns the finished runs, in a fixed order."""
        jobs = self.jobs(TUNING)
        if self.fresh_configurations() is not None:
            jobs += self.jobs(FRESH)
        found = [self.runs[job] for job in jobs if job in self.runs]
        return sorted(found, key=records.order_of_run)

    def num_missing(self):
        """Returns the number of missing runs that are known so far."""
        return self.size() - len(self.records())

    def check(self):
        """Checks that all runs in the folder belong to the grid.

        Raises:
            ValueError: If a run has a configuration that is not in the grid.
        """
        if self.like is not None:
            return
        for run in self.runs.records:
            is_ours = run["task"] == self.task.name
            is_ours = is_ours and run["method"] == self.method.label
            if is_ours and run["configuration"] not in self.grid:
                raise ValueError(
                    "`out` must not contain runs with configurations outside "
                    "of the grid. Add the configuration to the grid, or use a "
                    f"folder other than {self.runs.folder}. "
                    f'Received: {run["configuration"]} of "{self.method.key}" '
                    f'in "{self.task.name}"'
                )


def num_missing(items):
    """Returns the number of missing runs."""
    return sum(item.num_missing() for item in items)


def make_missing(items, processes, verbose=1, together=1):
    """Performs all missing runs.

    Args:
        items: list of `Item`. Those of one task have the same folder.
        processes: see `engine.perform`.
        verbose: 1 shows a progress bar, 0 shows nothing.
        together: see `engine.perform`.
    """
    if processes == 1:
        # One method after the other, so that graphs are compiled only once.
        # Methods that use the configuration of another one come last.
        items = sorted(items, key=lambda item: item.like is not None)
        waves = (
            item.jobs(stage) for item in items for stage in (TUNING, FRESH)
        )
    else:
        # The runs of host solvers and wide networks, which use the
        # configuration of another method, take longest. They come first, so
        # that all processes end at about the same time.
        items = sorted(items, key=lambda item: item.like is None)
        waves = (
            [job for item in items for job in item.jobs(stage)]
            for stage in (TUNING, FRESH)
        )
    engine.perform(
        waves,
        Work(items),
        Folders(items),
        processes,
        total=num_missing(items),
        verbose=verbose,
        together=together,
    )


class Folders:
    """The folders of several experiments as one store for `engine.perform`.

    Args:
        items: list of `Item`.
    """

    def __init__(self, items):
        self._of_task = {item.task.name: item.runs for item in items}

    def __contains__(self, job):
        return job in self._of_task[job["task"]]

    def add(self, record, seconds=None):
        """Adds a run to the folder of its task."""
        self._of_task[record["task"]].add(record, seconds)


class Work:
    """Performs the runs of items.

    It keeps the data of the last task and the compiled graphs of the last
    method.

    Args:
        items: list of `Item`.
    """

    def __init__(self, items):
        self._items = {
            (item.task.name, item.method.label): (
                item.task,
                item.method,
                item.data_dir,
            )
            for item in items
        }
        self._source = None, None
        self._last = None
        self._trainers = {}

    def __call__(self, job):
        """Performs one run.

        Returns:
            A dict with `curves` and `result`.

        Raises:
            RuntimeError: If training fails. The message names the method and
                the task, and the cause is the original error.
            BackendUnavailable: If a solver cannot be used.
        """
        name = job["task"], job["method"]
        task, method, data_dir = self._items[name]
        try:
            if name != self._last:
                # Otherwise compiled models stay in memory.
                self._trainers.clear()
                gc.collect()
                self._last = name
            trainer = self._trainer(task, method, data_dir, job)
            return trainer.run(job["seed"], job["configuration"], job["stage"])
        except backends.BackendUnavailable:
            raise
        except Exception as error:
            raise RuntimeError(
                f'Training failed for method "{method.key}" in "{task.name}": '
                f"{type(error).__name__}: {error}"
            ) from error

    def _trainer(self, task, method, data_dir, job):
        settings = {
            argument: value
            for argument, value in job["configuration"].items()
            if argument not in NOT_FOR_THE_OPTIMIZER
        }
        key = records.text_of(settings)
        if key not in self._trainers:
            if self._source[0] != task.name:
                self._source = task.name, task.load(data_dir)
            self._trainers[key] = trainer_of(task, method)(
                task, self._source[1], method, settings
            )
        return self._trainers[key]


def check_backends(solvers):
    """Checks that every solver can be used, for example that it has a license.

    Args:
        solvers: list of names or configurations. `None` is skipped.

    Raises:
        BackendUnavailable: If a solver cannot be used.
    """
    for solver in solvers:
        if solver is not None:
            backends.get(solver).check(num_variables=2, num_columns=1)


def warn_about_edges(items):
    """Warns if the best setting of a method is at the edge of its grid.

    If several configurations are equally good, all of them must be at the edge.

    Args:
        items: list of `Item` without missing runs.
    """
    found = []
    for item in items:
        if not item.is_tuned():
            continue
        groups = statistics.by_configuration(
            [item.runs[job] for job in item.jobs(TUNING)]
        )
        scores = [
            statistics.score(group, item.task.chosen_by) for _, group in groups
        ]
        best = [
            configuration
            for (configuration, _), score in zip(groups, scores)
            if score == max(scores)
        ]
        for name in SETTINGS:
            ends = {statistics.edge(one, item.grid, name) for one in best}
            if len(ends) == 1 and None not in ends:
                found.append(
                    f'- "{item.method.key}": `{name}` {best[0][name]:g} is the '
                    f"{ends.pop()} in its grid"
                )
                break
    if not found:
        return
    warnings.warn(
        "The best configuration is at the edge of the grid, so a better one "
        "may lie beyond it. Define wider `grids` in the file, with the same "
        "number of configurations for all methods:\n" + "\n".join(found),
        stacklevel=2,
    )
