"""`python -m research bench`: runs suites in processes and reports results.

    python -m research.bench.harness SUITE RESULT_FILE [quick]

is the process that measures a suite with one thread. The number of threads must
be set before TensorFlow is imported.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import textwrap
import time

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import disk
from keras_qpsbgd.cli.console import WIDTH
from keras_qpsbgd.cli.console import show_status
from research import arguments as shared
from research.bench import stored
from research.bench.stored import SUITES
from research.engine.engine import environment

# Mean number of processes that want to run, above which results are marked.
BUSY = 0.5


def add(commands):
    """Adds the command."""
    width = max(map(len, SUITES)) + 2
    parser = commands.add_parser(
        "bench",
        help="measure speed and solvers against the alternatives",
        description=textwrap.fill(
            "Run benchmark suites and print tables. The exit code is 1 if a "
            "suite fails. The results are written to SUITE.json. Those of the "
            "documentation are in results/bench. The durations below are CPU "
            "times.",
            WIDTH,
        ),
        epilog="suites:\n"
        + "\n".join(
            f"  {name:<{width}}{suite.HELP}" for name, suite in SUITES.items()
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "suites",
        nargs="*",
        metavar="SUITE",
        help="suites to run, listed below (default: all suites)",
    )
    shared.add_quick(parser)
    shared.add_output(parser, "bench")
    parser.set_defaults(run=_run)


def _run(arguments):
    names = arguments.suites or list(SUITES)
    shared.check_names("SUITE", names, SUITES)
    output = pathlib.Path(arguments.output)
    output.mkdir(parents=True, exist_ok=True)
    done = [_run_suite(name, arguments.quick, output) for name in names]
    return 0 if all(done) else 1


def _run_suite(name, quick, output):
    """Returns whether the suite was measured."""
    suite = SUITES[name]
    start = time.perf_counter()
    print(f"\n{name}: {suite.HELP}", flush=True)
    # The files may be edited while the suite runs.
    code, other_work = stored.code(name), _other_work()
    try:
        result = measure(name, quick)
    except subprocess.CalledProcessError as error:
        print(error.stderr, file=sys.stderr)
        print(f"FAIL  {name}: the process failed with {error.returncode}")
        return False
    for block in suite.blocks(result).values():
        print(f"\n{block}")
    record = {
        "suite": name,
        "options": {"quick": quick},
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "results": {"1": result},  # with one thread
        "code": code,
        "other_work": other_work,
    }
    path = output / f"{name}.json"
    disk.write(path, json.dumps(record) + "\n")
    print(f"\nResults written to {path}")
    print(f"Done in {time.perf_counter() - start:.0f} s.", flush=True)
    return True


def measure(name, quick):
    """Runs `measure` of a suite in a process with one thread.

    Raises:
        subprocess.CalledProcessError: If the process fails. The attribute
            `stderr` contains its error output.
    """
    with tempfile.TemporaryDirectory() as folder, _one_core():
        path = pathlib.Path(folder, "result.json")
        command = [sys.executable, "-m", "research.bench.harness", name]
        command += [str(path), *["quick"] * quick]
        subprocess.run(
            command,
            env=environment(1),
            # Log messages of TensorFlow would break the status line.
            stderr=subprocess.PIPE,
            text=True,
            check=True,
        )
        show_status("")
        return json.loads(path.read_text())


@contextlib.contextmanager
def _one_core():
    """Limits processes started inside to one core, if the system can.

    Some libraries start one thread per core and ignore the environment
    variables.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [max(before)])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _other_work():
    """Returns whether other processes keep the machine busy."""
    if not hasattr(os, "getloadavg"):
        return None
    return os.getloadavg()[0] > BUSY


def main(name, path, quick=""):
    """Measures a suite in this process.

    Args:
        name: String. Name of the suite.
        path: Path of the file that receives the results as JSON.
        quick: String. If it is not empty, the run is short.
    """
    # Only once, because TensorFlow rebuilds all graphs after a new seed.
    keras.utils.set_random_seed(0)
    result = SUITES[name].measure(bool(quick))
    pathlib.Path(path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
