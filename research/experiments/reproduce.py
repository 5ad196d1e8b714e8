"""Runs experiments on all cores, and reports.

Every run is a line of a file as soon as it is over, see `records`; a run that
is there is not made again. So an interrupted command can be resumed.
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
from research.experiments.catalogue import EXPERIMENTS
from research.experiments.pages import results_page

PACKAGES = ("keras_qpsbgd", "tensorflow", "tensorflow-cpu", "keras", "numpy")
# Modules that data, tables and figures need, and what they come with.
NEEDED = {
    "filelock": "filelock",
    "loky": "loky",
    "matplotlib": "matplotlib",
    "scipy": "scipy",
    "skimage": "scikit-image",
}
# What must not change between the runs of one folder.
SETTINGS = ("quick", "paper", "backend")


def reproduce(names, options, out, flags=(), processes=None):
    """Makes the missing runs of experiments.

    Args:
        names: names of experiments.
        options: `Options`.
        out: folder of the results.
        flags: words of the command line, to be written down.
        processes: how many; `None` is the number of cores.

    Raises:
        ImportError: a package that the results need is not installed.
        BackendUnavailable: so is a solver, or it has no licence.
        ValueError: the folder holds results of other options, or another
            command is at work in it.
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
                f"`--methods` must have one that belongs to {name}. "
                f"Received: {' '.join(options.methods)}"
            )
        for item in items:
            item.check()
        for task in tasks:
            # Before the processes, of which each would download them.
            if task.prepare is not None:
                task.prepare(options.data_dir)
    with (
        run.locked(folders.values()),
        # Not in this process: all have one thread, so that results are equal.
        Processes(processes or threads.cores()) as pool,
    ):
        for folder in folders.values():
            # Another command may have come and gone since.
            _check_settings(folder, options)
        for name, folder in folders.items():
            _write_settings(folder, options)
            _run_experiment(name, folder, options, flags, pool)


def with_methods(names, options):
    """Those of the experiments to which one of the methods belongs."""
    return [
        name
        for name in names
        if plan.items(EXPERIMENTS[name].tasks(options), options, None)
    ]


def _check_packages():
    """Now, and not when hours of runs are to be drawn."""
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
    return {name: getattr(options, name) for name in SETTINGS}


def _write_settings(folder, options):
    text = json.dumps(_settings_of(options)) + "\n"
    disk.write(folder / "settings.json", text)


def _check_settings(folder, options):
    path = folder / "settings.json"
    settings = _settings_of(options)
    if not path.exists():
        return
    present = records.read_json(path)
    if present != settings:
        raise ValueError(
            f"The folder {folder} holds results of other options: "
            f"{_flags(present)}. Choose another folder by `--out`. "
            f"Received: {_flags(settings)}"
        )


def _flags(settings):
    given = [
        f"--{name}" if value is True else f"--{name} {value}"
        for name, value in settings.items()
        if value
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
            _write_meta(folder, " ".join(command))
    # Also what a command that was killed has not packed.
    records.pack(folder)


def _write_meta(folder, command):
    """What is not the same in a second run; all commands are kept."""
    before = records.read_meta(folder)
    commands = [*before.get("command", "").splitlines(), command]
    meta = {
        "command": "\n".join(dict.fromkeys(commands)),
        "date": datetime.date.today().isoformat(),
        "packages": _versions(),
    }
    disk.write(folder / "meta.json", json.dumps(meta, indent=1) + "\n")


def _versions():
    found = {}
    for name in PACKAGES:
        # TensorFlow has several names, and a checkout on the path has none.
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def report(names, options, out, page=None):
    """Prints tables; writes them, the figures and the page.

    Args:
        names: names of experiments; the page has all that are in the folder.
        options: `Options`.
        out: folder of the results.
        page: file of the page; `None` is RESULTS.md in `out`.

    Returns:
        Path of the page.
    """
    reports = {name: _report_of(name, options, out) for name in EXPERIMENTS}
    for name in names:
        folder = pathlib.Path(out, name)
        runs = records.read(folder)
        reference = reports[name].reference_method
        parts = [f"# {reports[name].title}"]
        for task in reports[name].tasks:
            of_task = tables.select(runs, task=task.name)
            if not tables.select(of_task, stage=FRESH):
                continue
            print(f"\n{task.title}\n")
            print(tables.terminal(of_task, task, reference), flush=True)
            parts.append(f"## {task.title}")
            parts.append(tables.markdown(of_task, task, reference))
        disk.write(folder / "table.md", "\n\n".join(parts) + "\n")
        _draw(name, folder, options)
    return results_page.write(out, list(reports.values()), page)


def _report_of(name, options, out):
    """What the page says; the runs may have been made with other options."""
    path = pathlib.Path(out, name, "settings.json")
    if path.exists():
        settings = records.read_json(path)
        options = dataclasses.replace(options, **settings)
    experiment = EXPERIMENTS[name]
    methods = {
        task.name: tuple(METHODS[key].label for key in task.methods)
        for task in experiment.tasks(options)
    }
    found = experiment.report(options)
    found = dataclasses.replace(
        found,
        backend=options.backend,
        tasks=tuple(
            dataclasses.replace(task, methods=methods[task.name])
            for task in found.tasks
        ),
    )
    if not options.quick:
        return found
    warning = "**Short runs (`--quick`), to see that it works; no result.** "
    return dataclasses.replace(found, setting=warning + found.setting)


def _draw(name, folder, options):
    """Further pictures of an experiment, if QP-SBGD was run."""
    experiment = EXPERIMENTS[name]
    if experiment.draw is None or "native" not in options.methods:
        return
    first = plan.items(experiment.tasks(options), options, folder)[0]
    chosen = first.fresh_configurations(first.records())
    if chosen:
        experiment.draw(options, folder, chosen[0])
