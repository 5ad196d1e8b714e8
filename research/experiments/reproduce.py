"""Runs experiments on all cores and writes their results.

Every finished run is a line of a file (see `records`) and is not repeated, so
an interrupted command can be resumed.
"""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import importlib.util
import json
import pathlib

from keras_qpsbgd import disk
from keras_qpsbgd.compare import records
from keras_qpsbgd.compare import threads
from keras_qpsbgd.compare.engine import run
from keras_qpsbgd.compare.engine.pool import Processes
from keras_qpsbgd.compare.methods import METHODS
from keras_qpsbgd.compare.report import tables
from keras_qpsbgd.compare.task import FRESH
from research.experiments import plan
from research.experiments import stored
from research.experiments.catalogue import EXPERIMENTS
from research.experiments.pages import overview
from research.experiments.pages import results_page
from research.experiments.pages.markdown import paragraph

PACKAGES = ("keras_qpsbgd", "tensorflow", "tensorflow-cpu", "keras", "numpy")
# Modules that data, tables and figures need, and their packages.
NEEDED = {
    "filelock": "filelock",
    "loky": "loky",
    "matplotlib": "matplotlib",
    "scipy": "scipy",
    "skimage": "scikit-image",
}
# Options that must be the same for all runs of a folder.
SETTINGS = ("quick", "paper", "backend")


def reproduce(names, options, out, flags=(), processes=None):
    """Makes the missing runs of experiments.

    Args:
        names: names of experiments.
        options: `Options`.
        out: folder of the results.
        flags: words of the command line, kept in `meta.json`.
        processes: number of processes; `None` is the number of cores.

    Raises:
        ImportError: a required package is not installed.
        BackendUnavailable: a solver is not installed or has no license.
        ValueError: the folder has results of other options, or another command
            is running in it.
    """
    _check_packages()
    solvers = [METHODS[key].backend for key in options.methods]
    run.check_backends([*solvers, options.backend])
    folders = {name: pathlib.Path(out, name) for name in names}
    for name, folder in folders.items():
        _check_settings(folder, options)
        tasks = EXPERIMENTS[name].tasks(options)
        items = plan.items(tasks, options, folder)
        if not items:
            raise ValueError(
                f"`--methods` must include a method of {name}. "
                f"Received: {' '.join(options.methods)}"
            )
        for item in items:
            item.check()
        for task in tasks:
            # Here, since otherwise every process would download the data.
            if task.prepare is not None:
                task.prepare(options.data_dir)
    with (
        run.locked(folders.values()),
        # Never in this process: with one thread each, results are the same.
        Processes(processes or threads.cores()) as pool,
    ):
        for folder in folders.values():
            # Again: another command may have run in the meantime.
            _check_settings(folder, options)
        for name, folder in folders.items():
            _write_settings(folder, options)
            _run_experiment(name, folder, options, flags, pool)


def with_methods(names, options):
    """The experiments that have at least one of the methods."""
    return [
        name
        for name in names
        if plan.items(EXPERIMENTS[name].tasks(options), options, None)
    ]


def _check_packages():
    """Checks before the runs, not when their figures are drawn."""
    missing = [
        package
        for module, package in NEEDED.items()
        if importlib.util.find_spec(module) is None
    ]
    if missing:
        raise ImportError(
            f"The experiments need {', '.join(missing)}. Install with\n\n"
            '    python -m pip install "keras_qpsbgd[research]"'
        )


def _settings_of(options):
    return {name: getattr(options, name) for name in (*SETTINGS, "rule")}


def _write_settings(folder, options):
    text = json.dumps(_settings_of(options)) + "\n"
    disk.write(folder / "settings.json", text)


def _check_settings(folder, options):
    path = folder / "settings.json"
    settings = _settings_of(options)
    if not path.exists():
        return
    if stored.is_old(folder):
        raise ValueError(
            f"The folder {folder} has results of version 0.1, whose QP-SBGD "
            "had another rule. Choose another folder with `--out`. Received: "
            f"{_flags(settings)}"
        )
    present = records.read_json(path)
    if present != settings:
        raise ValueError(
            f"The folder {folder} has results of other options: "
            f"{_flags(present)}. Choose another folder with `--out`. "
            f"Received: {_flags(settings)}"
        )


def _flags(settings):
    given = [
        f"--{name}" if settings[name] is True else f"--{name} {settings[name]}"
        for name in SETTINGS
        if settings[name]
    ]
    return " ".join(given) or "none of --quick, --paper, --backend"


def _run_experiment(name, folder, options, flags, pool):
    items = plan.items(EXPERIMENTS[name].tasks(options), options, folder)
    total = sum(item.size() for item in items)
    missing = run.num_missing(items)
    print(f"\n{name}: {total} runs, {total - missing} there", flush=True)
    try:
        run.make_missing(items, pool)
    finally:
        if run.num_missing(items) < missing:
            command = ["python -m research reproduce", name, *flags]
            write_meta(folder, " ".join(command))
    # Includes runs that an interrupted command has not packed.
    records.pack(folder)


def write_meta(folder, command):
    """Adds a command, its date and the packages to `meta.json`."""
    before = records.read_meta(folder)

    def with_new(key, line):
        lines = [*before.get(key, "").splitlines(), line]
        return "\n".join(dict.fromkeys(lines))

    meta = {
        **before,
        "command": with_new("command", command),
        "date": with_new("date", datetime.date.today().isoformat()),
        "packages": _versions(),
    }
    disk.write(folder / "meta.json", json.dumps(meta, indent=1) + "\n")


def _versions():
    found = {}
    for name in PACKAGES:
        # TensorFlow has several names; a checkout is not installed.
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def report(names, options, out, page=None):
    """Prints tables, and writes tables, figures and the page.

    Args:
        names: names of the experiments to print.
        options: `Options`.
        out: folder of the results.
        page: file of the page; `None` is RESULTS.md in `out`.

    Returns:
        Path of the page.
    """
    for name in names:
        folder = pathlib.Path(out, name)
        runs = records.read(folder)
        found = report_of(name, options, out)
        for task in found.tasks:
            of_task = tables.select(runs, task=task.name)
            if tables.select(of_task, stage=FRESH):
                text = tables.terminal(of_task, task, found.reference_method)
                print(f"\n{task.title}\n\n{text}", flush=True)
        _draw(name, folder, options)
    return write_pages(options, out, page)


def write_pages(options, out, page=None):
    """Writes tables, figures and the page of all experiments with records.

    Args:
        options: `Options`.
        out: folder of the results.
        page: file of the page; `None` is RESULTS.md in `out`.

    Returns:
        Path of the page.
    """
    reports = [report_of(name, options, out) for name in EXPERIMENTS]
    for found in reports:
        folder = pathlib.Path(out, found.name)
        runs = records.read(folder)
        if not runs:
            continue
        parts = [f"# {found.title}"]
        if stored.is_old(folder):
            paper = records.read_json(folder / "settings.json")["paper"]
            parts.append(paragraph(stored.note(paper)))
        for task in found.tasks:
            of_task = tables.select(runs, task=task.name)
            if tables.select(of_task, stage=FRESH):
                parts.append(f"## {task.title}")
                parts.append(
                    tables.markdown(of_task, task, found.reference_method)
                )
        disk.write(folder / "table.md", "\n\n".join(parts) + "\n")
        if EXPERIMENTS[found.name].overview and not options.paper:
            overview.draw(runs, found, folder / overview.FILE)
    return results_page.write(out, reports, page)


def report_of(name, options, out):
    """The `ExperimentReport` of an experiment.

    Args:
        name: name of the experiment.
        options: `Options`; those of the folder take precedence.
        out: folder of the results.
    """
    path = pathlib.Path(out, name, "settings.json")
    if path.exists():
        settings = records.read_json(path)
        options = dataclasses.replace(
            options,
            is_old=stored.is_old(path.parent),
            **{name: settings[name] for name in SETTINGS},
        )
    experiment = EXPERIMENTS[name]
    methods = {
        task.name: stored.labels(task.methods)
        if options.is_old
        else tuple(METHODS[key].label for key in task.methods)
        for task in experiment.tasks(options)
    }
    found = experiment.report(options)
    found = dataclasses.replace(
        found,
        backend=options.backend,
        tasks=tuple(
            dataclasses.replace(task, methods=methods.get(task.name, ()))
            for task in found.tasks
        ),
    )
    if not options.quick:
        return found
    warning = "**Short runs (`--quick`) that only show that it works.** "
    return dataclasses.replace(found, setting=warning + found.setting)


def _draw(name, folder, options):
    """Draws the additional pictures of an experiment, if QP-SBGD was run."""
    experiment = EXPERIMENTS[name]
    if experiment.draw is None or "native" not in options.methods:
        return
    first = plan.items(experiment.tasks(options), options, folder)[0]
    chosen = first.fresh_configurations(first.records())
    if chosen:
        experiment.draw(options, folder, chosen[0])
