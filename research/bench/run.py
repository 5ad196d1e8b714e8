"""Runs suites, each in processes of its own, and reports."""

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
from keras_qpsbgd.cli import show_status
from keras_qpsbgd.compare.threads import environment
from research.bench.suites import SUITES

# A target was reached, missed, or there was not enough to judge it by.
OUTCOMES = {True: "PASS", False: "FAIL", None: "SKIP"}


def run(names, options, threads=None, output="."):
    """Measures suites, prints tables and verdicts, writes JSON and figures.

    Args:
        names: names of suites.
        options: `Options`.
        threads: thread counts; `None` takes those of each suite.
        output: folder for `bench-SUITE.json` and `bench-SUITE.png`.

    Returns:
        The exit code: 1 if a target was missed or a suite failed.
    """
    output = pathlib.Path(output)
    output.mkdir(parents=True, exist_ok=True)
    options = dataclasses.replace(options, output=str(output))
    missed = [not _run_suite(name, options, threads, output) for name in names]
    return 1 if any(missed) else 0


def _run_suite(name, options, threads, output):
    """Whether all targets of the suite were reached."""
    suite = SUITES[name]
    start = time.perf_counter()
    print(f"\n{name}: {suite.HELP}", flush=True)
    results = {}
    for count in threads or suite.THREADS:
        try:
            results[count] = measure(name, options, count)
        except subprocess.CalledProcessError as error:
            print(error.stderr, file=sys.stderr)
            print(
                f"FAIL  {name} with {count} thread{'s' * (count > 1)}: its "
                f"process ended with exit code {error.returncode}",
                flush=True,
            )
            return False
    print("\n" + suite.table(results))
    verdicts = suite.verdicts(results)
    if verdicts:
        print()
    for passed, text in verdicts:
        print(f"{OUTCOMES[passed]}  {text}")
    path = output / f"bench-{name}.json"
    disk.write(path, json.dumps(_record(name, options, results, verdicts)))
    print(f"\nResults written to {path}")
    _draw(suite, results, path.with_suffix(".png"))
    print(f"Done in {time.perf_counter() - start:.0f} s.", flush=True)
    return not any(passed is False for passed, _ in verdicts)


def measure(name, options, threads):
    """What `measure` of a suite returns, in a process with so many threads.

    Raises:
        subprocess.CalledProcessError: it failed; `stderr` says why.
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
        # What TensorFlow logs would break the line that shows progress.
        with open(path.with_suffix(".log"), "w+") as log:
            done = subprocess.run(command, env=environment(threads), stderr=log)
            show_status("")
            if done.returncode:
                log.seek(0)
                raise subprocess.CalledProcessError(
                    done.returncode, command, stderr=log.read()
                )
        return json.loads(path.read_text())


@contextlib.contextmanager
def _cores(threads):
    """Processes started inside get so many cores, where the system can.

    Some libraries have as many threads as there are cores, whatever the
    environment says.
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
    """What is written down: the results, and where they come from."""
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
            "No figure: matplotlib is not installed "
            '(`python -m pip install "keras_qpsbgd[research]"`).'
        )
    else:
        print(f"Figure written to {path}")
