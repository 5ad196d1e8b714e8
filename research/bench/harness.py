"""Runs suites in separate processes and reports the results.

    python -m research.bench.harness SUITE JSON_OPTIONS RESULT_FILE

is the process that measures a suite. `measure` starts it with environment
variables that set the number of threads, because the number must be set before
TensorFlow is imported.
"""

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
from tensorflow import keras

from keras_qpsbgd import disk
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.comparison.engine import environment
from research.bench import export
from research.bench import inference
from research.bench import quantize
from research.bench.annealer import packing
from research.bench.annealer import shared_calls
from research.bench.solvers import solver
from research.bench.steps import gpu_step
from research.bench.steps import recording
from research.bench.steps import step
from research.bench.training import quality

SUITES = {
    "step": step,
    "solver": solver,
    "recording": recording,
    "packing": packing,
    "quantize": quantize,
    "export": export,
    "inference": inference,
    "shared-calls": shared_calls,
    "quality": quality,
}
# The same for `--device gpu`.
GPU_SUITES = {"step": gpu_step}
# The target was met, was missed, or could not be checked.
OUTCOMES = {True: "PASS", False: "FAIL", None: "SKIP"}


def on_device(device):
    """Returns the suites that measure on a device, `"cpu"` or `"gpu"`."""
    return GPU_SUITES if device == "gpu" else SUITES


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a benchmark run, shared by all suites.

    Attributes:
        quick: Boolean. Whether to run about ten times faster, with results that
            are too rough to report.
        seeds: Integer (optional). Number of training runs per method, for
            suites that train. Defaults to the number of the suite.
        data_dir: Path (optional). Folder of the datasets, see `datasets.files`.
        only: Names of the rows and columns to measure. If it contains no row,
            all rows are measured, and if it contains no column, all columns.
        device: String. `"cpu"` or `"gpu"`.
        output: Folder of the results, for suites that can be resumed.
    """

    quick: bool = False
    seeds: int | None = None
    data_dir: str | None = None
    only: tuple = ()
    device: str = "cpu"
    output: str = "."

    def wanted(self, names):
        """Returns the `names` that are in `only`, or all if none is."""
        names = list(names)
        return [name for name in names if name in self.only] or names


def run(names, options, threads=None, output="."):
    """Runs suites, prints tables and verdicts, and writes JSON.

    Args:
        names: Names of suites.
        options: `Options`.
        threads: List of integers (optional). Thread counts. Defaults to the
            thread counts of each suite.
        output: Folder for `bench-SUITE.json`, or `bench-SUITE-gpu.json`.

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
            "research.bench.harness",
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
    result = on_device(options.device)[name].measure(options)
    pathlib.Path(path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
