"""`python -m research bench`: runs suites in processes and reports results.

    python -m research.bench.harness SUITE JSON_OPTIONS RESULT_FILE

is the process that measures a suite. `measure` starts it with environment
variables that set the number of threads, because the number must be set before
TensorFlow is imported.
"""

import argparse
import contextlib
import dataclasses
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
from keras_qpsbgd.cli.console import positive
from keras_qpsbgd.cli.console import show_status
from research.bench import stored
from research.bench.stored import SUITES
from research.engine.engine import environment

# Mean number of processes that want to run, above which results are marked.
BUSY = 0.5


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a benchmark run, shared by all suites.

    Attributes:
        quick: Boolean. Whether to run about ten times faster, with results that
            are too rough to report.
        only: Names of the rows and columns to measure. If it contains no row,
            all rows are measured, and if it contains no column, all columns.
    """

    quick: bool = False
    only: tuple = ()

    def wanted(self, names):
        """Returns the `names` that are in `only`, or all if none is."""
        names = list(names)
        return [name for name in names if name in self.only] or names


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
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run about ten times faster, with results that are too rough to "
        "report",
    )
    parser.add_argument(
        "--threads",
        type=positive,
        nargs="+",
        metavar="N",
        help="numbers of threads to measure with (default: 1)",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        default="bench",
        help="folder of the results (default: %(default)s)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=(),
        metavar="NAME",
        help="rows or columns of the table to measure (default: all)",
    )
    parser.set_defaults(run=_run)


def _run(arguments):
    names = arguments.suites or list(SUITES)
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"`SUITE` must be one of {', '.join(SUITES)}. "
            f"Received: {' '.join(unknown)}"
        )
    known = [name for suite in names for name in SUITES[suite].names()]
    unknown = [name for name in arguments.only if name not in known]
    if unknown:
        allowed = ", ".join(dict.fromkeys(known))
        raise argparse.ArgumentTypeError(
            f"`--only` must be one or more of {allowed}. "
            f"Received: {' '.join(unknown)}"
        )
    options = Options(
        quick=arguments.quick,
        only=tuple(arguments.only),
    )
    return run(names, options, arguments.threads, arguments.output)


def run(names, options, threads=None, output="bench"):
    """Runs suites, prints tables, and writes JSON.

    Args:
        names: Names of suites.
        options: `Options`.
        threads: List of integers (optional). Thread counts. Defaults to the
            thread counts of each suite.
        output: Folder for `SUITE.json`.

    Returns:
        The exit code: 1 if a suite failed, else 0.
    """
    output = pathlib.Path(output)
    output.mkdir(parents=True, exist_ok=True)
    done = [_run_suite(name, options, threads, output) for name in names]
    return 0 if all(done) else 1


def _run_suite(name, options, threads, output):
    """Returns whether the suite was measured."""
    suite = SUITES[name]
    start = time.perf_counter()
    print(f"\n{name}: {suite.HELP}", flush=True)
    # The files may be edited while the suite runs.
    code, other_work = stored.code(name), _other_work()
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
    path = output / f"{name}.json"
    record = {
        **_record(name, options, results),
        "code": code,
        "other_work": other_work,
    }
    disk.write(path, json.dumps(record) + "\n")
    print(f"\nResults written to {path}")
    print(f"Done in {time.perf_counter() - start:.0f} s.", flush=True)
    return True


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
            "research.bench.harness",
            name,
            json.dumps(dataclasses.asdict(options)),
            str(path),
        ]
        subprocess.run(
            command,
            env=environment(threads),
            # Log messages of TensorFlow would break the status line.
            stderr=subprocess.PIPE,
            text=True,
            check=True,
        )
        show_status("")
        return json.loads(path.read_text())


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


def _other_work():
    """Returns whether other processes keep the machine busy."""
    if not hasattr(os, "getloadavg"):
        return None
    return os.getloadavg()[0] > BUSY


def _record(name, options, results):
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
    }


def main(name, options, path):
    """Measures a suite in this process.

    Args:
        name: String. Name of the suite.
        options: String. The `Options` as JSON.
        path: Path of the file that receives the results as JSON.
    """
    options = json.loads(options)
    options["only"] = tuple(options["only"])  # JSON has no tuples
    options = Options(**options)
    # Only once, because TensorFlow rebuilds all graphs after a new seed.
    keras.utils.set_random_seed(0)
    result = SUITES[name].measure(options)
    pathlib.Path(path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
