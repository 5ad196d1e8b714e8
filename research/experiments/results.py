"""The tables, figures and pages of experiments, from their records alone."""

import dataclasses
import pathlib

from research import code_version
from research import pages
from research.engine import records
from research.engine import tables
from research.engine.tables import markdown_table
from research.experiments import figures
from research.experiments import overview
from research.experiments import summary
from research.experiments.catalogue import EXPERIMENTS
from research.experiments.catalogue import describe
from research.experiments.reproduce import CODE
from research.experiments.reproduce import SETTINGS
from research.experiments.reproduce import read_settings
from research.experiments.tables import grids_table
from research.experiments.tables import task_table

STORED = pathlib.Path(__file__).parents[2] / "results"
TITLE = "Results of the paper's experiments"
NO_RUNS = "*No runs are stored.*"
QUICK = "Short runs that only show that it works"


class Folder:
    """The records of experiments in a folder such as `results`.

    Args:
        path: The folder.
        options: `Options`. Those of the records take precedence.
    """

    def __init__(self, path, options):
        self.path = pathlib.Path(path)
        self._options = options
        self._runs = {}
        for name in EXPERIMENTS:
            runs = records.read(self.path / name)
            if runs:
                self._runs[name] = runs
        self.described = [(self.describe(n), r) for n, r in self._runs.items()]

    def options(self, name):
        """Returns the options with which the runs were made."""
        return options_of(self.path / name, self._options)

    def describe(self, name):
        """Returns the `Description` of an experiment."""
        return describe(name, self.options(name))

    def _note(self, name, task=None):
        """Returns a line about the older methods, with its blank line.

        Args:
            name: String. The experiment.
            task: String (optional). One of its tasks. `None` means all.
        """
        runs = self._runs[name]
        if task is not None:
            runs = tables.select(runs, task=task)
        found = older(self.path / name, runs)
        if found == {run["method"] for run in runs}:
            found = {"all methods"}
        return code_version.note(sorted(found, key=str.casefold))

    def older(self):
        """Returns the names of the experiments older than the code."""
        found = [name for name in self._runs if self._note(name)]
        if overview.is_older(self.path / "cifar10"):
            found = ["cifar10", *found]
        return found

    def draw(self):
        """Draws the figures of all tasks."""
        for description, runs in self.described:
            folder = self.path / description.name
            shows_time = EXPERIMENTS[description.name].against_time
            times = records.read_times(folder) if shows_time else []
            for task in _tasks_with_runs(description, runs):
                path = folder / f"{task.name}.png"
                figures.draw(runs, task, overview.OURS, path, times)
        found = self.overview()
        if found and not self._options.paper:
            overview.draw(found, self.path / overview.PICTURE)

    def overview(self):
        """Returns the `overview.Results` of all tasks."""
        return overview.collect(self.described, self.path / "cifar10")

    def blocks(self, prefix=""):
        """Returns all tables by name, for `pages.fill`.

        Args:
            prefix: String. The names start with it.
        """
        results = self.overview()
        times = {
            name: records.read_times(self.path / name) for name in self._runs
        }
        found = {
            "overview": code_version.note(self.older())
            + overview.table(results),
            **summary.blocks(results, self.described, times),
        }
        for description, runs in self.described:
            name = description.name
            shown = _tasks_with_runs(description, runs)
            for task in shown:
                table = markdown_table(*task_table(runs, task, overview.OURS))
                above = self._note(name, task.name)
                found[f"{name}/{task.name}"] = above + table
            for task in shown:
                if task.kind == "cells":
                    continue
                rows = tables.rows_of(runs, task, overview.OURS)
                found |= {
                    f"{name}/verdicts/{task.name}": overview.verdicts(
                        rows, task
                    ),
                    f"{name}/grids/{task.name}": grids_table(
                        runs, task, overview.OURS, times[name]
                    ),
                }
        return {f"{prefix}{name}": text for name, text in found.items()}

    def placeholders(self, prefix=""):
        """Returns a text for each table that has no runs, as `blocks`."""
        found = {}
        for name, experiment in EXPERIMENTS.items():
            if self._options.paper and not experiment.in_paper:
                continue
            for task in self.describe(name).tasks:
                found[f"{name}/{task.name}"] = NO_RUNS
                if task.kind != "cells":
                    found[f"{name}/verdicts/{task.name}"] = NO_RUNS
                    found[f"{name}/grids/{task.name}"] = NO_RUNS
        return {f"{prefix}{name}": text for name, text in found.items()}

    def write_page(self):
        """Writes all tables, with their figures, to a page in the folder."""
        blocks = self.blocks()
        pictures = {
            name: f"{name}.png"
            for name in blocks
            if (self.path / f"{name}.png").is_file()
        }
        title = QUICK if self._options.quick else TITLE
        return pages.write(self.path / pages.NAME, title, blocks, pictures)


def options_of(folder, options):
    """Returns the options with which the runs of an experiment were made.

    Args:
        folder: folder of the experiment.
        options: `Options`, for what the folder does not say.
    """
    path = pathlib.Path(folder, "settings.json")
    if not path.exists():
        return options
    settings = read_settings(path)
    return dataclasses.replace(
        options, **{name: settings[name] for name in SETTINGS}
    )


def older(folder, runs):
    """Returns the labels of the methods that have runs of older code.

    Runs that `verify` has repeated do not count.

    Args:
        folder: folder of the experiment.
        runs: list of its runs.
    """
    now = code_version.version(*CODE)
    rows = records.read_meta(folder).get("verified", {}).get(now, [])
    current = {tuple(row) for row in rows}
    return {
        run["method"]
        for run in runs
        if run.get("code") != now
        and (run["task"], run["method"], run.get("code")) not in current
    }


def _tasks_with_runs(description, runs):
    return [
        task
        for task in description.tasks
        if tables.select(runs, task=task.name, stage="fresh")
    ]


def report(names, options, out):
    """Writes figures and the page with all tables.

    Args:
        names: names of the experiments.
        options: `Options`.
        out: folder of the results.

    Returns:
        Path of the page, or `None` in the `results` of this repository, whose
        pages have other tables.
    """
    found = Folder(out, options)
    for name in names:
        if EXPERIMENTS[name].draw is not None:
            EXPERIMENTS[name].draw(options, found.path / name)
    found.draw()
    if found.path.resolve().is_relative_to(STORED):
        return None
    return found.write_page()
