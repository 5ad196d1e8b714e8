"""Runs experiments on all cores.

Every finished run is a line of a file (see `records`) and is not repeated, so
an interrupted command can be resumed.
"""

import contextlib
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform

from keras_qpsbgd import disk
from research import code_version
from research.engine import engine
from research.engine import plan
from research.engine import records
from research.experiments.catalogue import QUICK_SEEDS
from research.experiments.catalogue import items_of
from research.experiments.catalogue import tasks_of
from research.experiments.options import Options

# Instruction sets for which TensorFlow has code of its own.
INSTRUCTIONS = ("avx", "avx2", "fma", "avx512", "amx", "asimd", "sve")
PACKAGES = ("keras_qpsbgd", "tensorflow", "tensorflow-cpu", "keras", "numpy")
# Options that must be the same for all runs of a folder.
SETTINGS = ("quick", "paper", "loss")
CODE = (
    *code_version.TRAINING,
    "research/engine/training.py",
    "research/experiments/tasks",
)


def reproduce(names, options, out, flags=(), processes=None):
    """Makes the missing runs of experiments.

    Args:
        names: names of experiments.
        options: `Options`.
        out: folder of the results.
        flags: words of the command line, kept in `meta.json`.
        processes: number of processes; `None` is the number of cores.

    Raises:
        BackendUnavailable: a solver is not installed or has no license.
        ValueError: the folder has results of other options, or another command
            is running in it.
    """
    folders = {name: pathlib.Path(out, name) for name in names}
    for name, folder in folders.items():
        _check_settings(folder, options)
        items = items_of(name, options, records.Runs(folder))
        if not items:
            raise ValueError(
                f"`--methods` must include a method of {name}. "
                f"Received: {' '.join(options.methods)}"
            )
        plan.check_backends([item.method.backend for item in items])
        for item in items:
            item.check()
        for task in tasks_of(name, options):
            # Here, since otherwise every process would download the data.
            if task.prepare is not None:
                task.prepare(options.data_dir)
    # With one thread each, results do not depend on the number of processes.
    os.environ.update(engine.environment(1))
    with records.locked(folders.values()):
        for folder in folders.values():
            # Again: another command may have run in the meantime.
            _check_settings(folder, options)
            write_settings(folder, options)
        _run(folders, options, flags, processes)


def with_methods(names, options):
    """The experiments that have at least one of the methods."""
    return [name for name in names if items_of(name, options, None)]


def _settings_of(options):
    return {name: getattr(options, name) for name in (*SETTINGS, "rule")}


def write_settings(folder, options):
    """Writes the options that all runs of a folder share."""
    text = json.dumps(_settings_of(options)) + "\n"
    disk.write(folder / "settings.json", text)


def _check_settings(folder, options):
    path = folder / "settings.json"
    settings = _settings_of(options)
    if not path.exists():
        return
    present = read_settings(path)
    if any(present.get(name) != settings[name] for name in settings):
        raise ValueError(
            f"The folder {folder} has results of other options: "
            f"{_flags(present)}. Choose another folder with `--output`. "
            f"Received: {_flags(settings)}"
        )


def read_settings(path):
    """Returns the options in a file of `write_settings`."""
    # Older files have no loss, which was the mean.
    return {"loss": Options.loss, **records.read_json(path)}


def _flags(settings):
    given = [f"--{name}" for name in ("quick", "paper") if settings[name]]
    if settings["paper"]:
        given.append(f"--loss {settings['loss']}")
    return " ".join(given) or "none of --quick, --paper"


def _run(folders, options, flags, processes):
    version = code_version.version(*CODE)
    items = {
        name: items_of(name, options, records.Runs(folder, version))
        for name, folder in folders.items()
    }
    missing = {name: plan.num_missing(found) for name, found in items.items()}
    everything = [item for found in items.values() for item in found]
    total = sum(item.size() for item in everything)
    there = total - sum(missing.values())
    print(f"{total} runs, {there} there", flush=True)
    try:
        # All at once: processes start once, and no core waits for an
        # experiment to end.
        # Short runs take less time than the compilation of their graphs.
        together = QUICK_SEEDS if options.quick else 1
        plan.make_missing(everything, processes, together=together)
    finally:
        for name, folder in folders.items():
            if plan.num_missing(items[name]) < missing[name]:
                command = ["python -m research reproduce", name, *flags]
                write_meta(folder, " ".join(command))
    for folder in folders.values():
        # Includes runs that an interrupted command has not packed.
        records.pack(folder)


def write_meta(folder, command):
    """Adds a command, its date, packages and the machine to `meta.json`."""
    before = records.read_meta(folder)

    def with_new(key, line):
        lines = [*before.get(key, "").splitlines(), line]
        return "\n".join(dict.fromkeys(lines))

    machines = before.get("machines", [])
    if (this := machine()) not in machines:
        machines = [*machines, this]
    meta = {
        **before,
        "command": with_new("command", command),
        "date": with_new("date", datetime.date.today().isoformat()),
        "packages": _versions(),
        "machines": machines,
    }
    disk.write(folder / "meta.json", json.dumps(meta, indent=1) + "\n")


def _versions():
    found = {}
    for name in PACKAGES:
        # TensorFlow has several names; a checkout is not installed.
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def machine():
    """Returns what rounding depends on, besides the code and the packages.

    If a run differs from its record on another machine, this may be the cause.

    Returns:
        A dict with the model of the processor (`cpu`), its `architecture`, its
        `instructions` for vectors, and the `threads` of a process.
    """
    path = pathlib.Path("/proc/cpuinfo")
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    # ARM calls the flags "Features" and has no model.
    found = {}
    for line in lines:
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    flags = found.get("flags", found.get("Features", "")).split()
    return {
        "cpu": found.get("model name") or platform.processor(),
        "architecture": platform.machine(),
        "instructions": " ".join(
            sorted(flag for flag in flags if flag.startswith(INSTRUCTIONS))
        ),
        "threads": 1,
    }
