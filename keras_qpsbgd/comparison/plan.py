"""The runs of a comparison as jobs, and the function that performs them.

Every method gets the same number of configurations. Each configuration is
trained with the tuning seeds, and the best one on the validation data is
chosen. The chosen configuration is trained with fresh seeds, and these runs are
the result. Host solvers use the configuration that was chosen for `native`.
"""

import dataclasses
import gc
import importlib

from keras_qpsbgd import backends
from keras_qpsbgd.comparison import engine
from keras_qpsbgd.comparison import records
from keras_qpsbgd.comparison import statistics
from keras_qpsbgd.comparison import tables
from keras_qpsbgd.comparison.methods import KEYS
from keras_qpsbgd.comparison.methods import METHODS
from keras_qpsbgd.comparison.methods import NOT_FOR_THE_OPTIMIZER
from keras_qpsbgd.comparison.methods import Method
from keras_qpsbgd.comparison.task import FRESH
from keras_qpsbgd.comparison.task import TUNING

FIRST_TUNING_SEED = 1_000


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

    @property
    def cost(self):
        """Approximate duration of a run."""
        return self.task.cost * self.method.cost

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
                f'"{source.method.key}" in "{source.task.name}". Run that '
                "one first. Received: incomplete tuning runs in "
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


def make_missing(items, processes, verbose=1):
    """Performs all missing runs.

    Args:
        items: list of `Item` of one folder.
        processes: see `engine.perform`.
        verbose: 1 shows a progress bar, 0 shows nothing.
    """
    if processes == 1:
        # A method after the other, so that its graphs are compiled once. One
        # that uses the configuration of another comes last.
        items = sorted(items, key=lambda item: item.like is not None)
        waves = (
            item.jobs(stage) for item in items for stage in (TUNING, FRESH)
        )
    else:
        # Long ones first, so that all processes end at about the same time.
        items = sorted(items, key=lambda item: -item.cost)
        waves = (
            [job for item in items for job in item.jobs(stage)]
            for stage in (TUNING, FRESH)
        )
    engine.perform(
        waves,
        Work(items),
        items[0].runs,
        processes,
        total=num_missing(items),
        verbose=verbose,
    )


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
            Exception: Any error, with a message that names the method and the
                task. It has the original type if that accepts a single message.
                `BackendUnavailable` is raised unchanged.
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
            raise _named(error, task, method) from error

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
            module, _, name = task.trainer.partition(":")
            trainer = getattr(importlib.import_module(module), name)
            self._trainers[key] = trainer(
                task, self._source[1], method, settings
            )
        return self._trainers[key]


def _named(error, task, method):
    """Returns the same error with a message that states where it happened."""
    text = str(error)
    if isinstance(error, KeyError):  # its text is only the key
        text = f"KeyError: {' '.join(map(str, error.args))}"
    where = f'Training failed for method "{method.key}" in "{task.name}"'
    try:
        named = type(error)(f"{where}: {text}")
    except Exception:
        # TensorFlow's errors require more arguments than a message.
        return RuntimeError(f"{where}: {type(error).__name__}: {text}")
    return named


def check_backends(solvers):
    """Checks that every solver can be used. A license may be missing.

    Args:
        solvers: list of names or configurations. `None` is skipped.

    Raises:
        BackendUnavailable: If a solver cannot be used.
    """
    for solver in solvers:
        if solver is not None:
            backends.get(solver).check(num_variables=2, num_columns=1)


def reported_runs(folder, chosen, measure):
    """Returns the fresh runs of all methods in a folder.

    If the grid of a method grew between two calls, the method may have fresh
    runs of several configurations. Only those of the best one are returned.

    Args:
        folder: folder of the records.
        chosen: dict that maps the keys of methods to the configurations that
            were chosen in this call.
        measure: the `Measure` of validation data that chooses them.
    """
    runs = records.read(folder)
    chosen = dict(chosen)
    keys = {KEYS[run["method"]] for run in runs if run["stage"] == FRESH}
    # A method that uses the configuration of another comes after it.
    for key in sorted(keys, key=lambda key: METHODS[key].like is not None):
        like = METHODS[key].like
        if key not in chosen and like is None:
            of_method = tables.select(runs, method=METHODS[key].label)
            chosen[key] = _best(of_method, measure)
        elif key not in chosen and like in chosen:
            chosen[key] = chosen[like]
    return [
        run
        for run in runs
        if run["stage"] == FRESH
        and run["configuration"] == chosen.get(KEYS[run["method"]])
    ]


def _best(runs, measure):
    """Returns the best of the configurations that have fresh runs."""
    tuning = tables.select(runs, stage=TUNING)
    found = statistics.by_configuration(tables.select(runs, stage=FRESH))
    configurations = [configuration for configuration, _ in found]
    if len(configurations) == 1:
        return configurations[0]
    return max(
        configurations,
        key=lambda one: statistics.score(
            [run for run in tuning if run["configuration"] == one], measure
        ),
    )
