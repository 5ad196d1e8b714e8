"""Runs suites in separate processes and reports the results."""

import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf

from keras_qpsbgd import disk
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.compare.threads import environment
from research.bench.suites import on_device

# The target was met, was missed, or could not be checked.
OUTCOMES = {True: "PASS", False: "FAIL", None: "SKIP"}


def run(names, options, threads=None, output="."):
    """Runs suites, prints tables and verdicts, and writes JSON and figures.

    Args:
        names: Names of suites.
        options: `Options`.
        threads: List of integers (optional). Thread counts. Defaults to the
            thread counts of each suite.
        output: Folder for `bench-SUITE.json` and `bench-SUITE.png`, or
            `bench-SUITE-gpu.json` and `bench-SUITE-gpu.png`.

    Returns:
        The exit code: 1 if a target was missed or a suite failed, else 0.
    """
    output = pathlib.Path(output)
    output.mkdir(parents=True, exist_ok=True)
    options = dataclasses.replace(options, output=str(output))
    missed = [not _run_suite(name, options, threads, output) for name in names]
    return 1 if any(missed) else 0


def _run_suite(name, options, threads, output):
    """Returns whether no target of the suite was missed."""
    suite = on_device(options.device)[name]
    start = time.perf_counter()
    print(f"\n{name}: {suite.HELP}", flush=True)
    results = {}
    for count in threads or suite.THREADS:
        try:
            results[count] = measure(name, options, count)
        except subprocess.CalledProcessError as error:
            print(error.stderr, file=sys.stderr)
            print(
                f"FAIL  {name} with {count} thread{'s' * (count > 1)}: the "
                f"process failed with exit code {error.returncode}",
                flush=True,
            )
            return False
    print("\n" + suite.table(results))
    verdicts = suite.verdicts(results)
    if verdicts:
        print()
    for passed, text in verdicts:
        print(f"{OUTCOMES[passed]}  {text}")
    suffix = "-gpu" if options.device == "gpu" else ""
    path = output / f"bench-{name}{suffix}.json"
    disk.write(path, json.dumps(_record(name, options, results, verdicts)))
    print(f"\nResults written to {path}")
    _draw(suite, results, path.with_suffix(".png"))
    print(f"Done in {time.perf_counter() - start:.0f} s.", flush=True)
    return not any(passed is False for passed, _ in verdicts)


def measure(name, options, threads):
    """Runs `measure` of a suite in a process with `threads` threads.

    Raises:
        subprocess.CalledProcessError: If the process fails. The attribute
            `stderr` contains its error output.
    """
    with tempfile.TemporaryDirectory() as folder, _cores(threads):
        path = pathlib.Path(folder, "result.json")
        command = [
            sys.executable,
            "-m",
            "research.bench.worker",
            name,
            json.dumps(dataclasses.asdict(options)),
            str(path),
        ]
        # Log messages of TensorFlow would break the status line.
        with open(path.with_suffix(".log"), "w+") as log:
            done = subprocess.run(
                command, env=_environment(threads, options.device), stderr=log
            )
            show_status("")
            if done.returncode:
                log.seek(0)
                raise subprocess.CalledProcessError(
                    done.returncode, command, stderr=log.read()
                )
        return json.loads(path.read_text())


def _environment(threads, device):
    """Returns the environment of a process that measures on a device."""
    values = environment(threads)
    if device == "gpu":
        # `environment` hides all GPUs.
        del values["CUDA_VISIBLE_DEVICES"]
        if "CUDA_VISIBLE_DEVICES" in os.environ:
            chosen = os.environ["CUDA_VISIBLE_DEVICES"]
            values["CUDA_VISIBLE_DEVICES"] = chosen
    return values


@contextlib.contextmanager
def _cores(threads):
    """Limits the cores of processes started inside, if the system can.

    Some libraries start one thread per core and ignore the environment
    variables.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[-threads:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _record(name, options, results, verdicts):
    """Returns the results with the versions and options they depend on."""
    return {
        "suite": name,
        "options": dataclasses.asdict(options),
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "results": {str(count): result for count, result in results.items()},
        "verdicts": verdicts,
    }


def _draw(suite, results, path):
    try:
        suite.draw(results, path)
    except ImportError:
        print(
            "The figure was not drawn, because Matplotlib is not installed.\n"
            'Install it with `python -m pip install "keras_qpsbgd[research]"`.'
        )
    else:
        print(f"Figure written to {path}")
