"""Performs the runs of the experiment in parallel processes.

Every finished run is a record and is not repeated, so that an interrupted
command can be resumed.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

from keras_qpsbgd import disk
from keras_qpsbgd.compare import threads
from keras_qpsbgd.compare.records import read_json
from research.experiments.reproduce import write_meta
from research.quantization import records
from research.quantization.worker import TUNING_SEED

SETTINGS = "settings.json"
LOG_LINES = 20


def run(names, seeds, out, data_dir=None, quick=False, processes=None):
    """Performs all missing runs.

    Args:
        names: Names of tasks.
        seeds: Integer. Number of float networks per task.
        out: Folder of the experiment.
        data_dir: Folder of the data (optional).
        quick: Boolean. Short runs that only show that it works.
        processes: Integer (optional). Defaults to the number of cores.

    Raises:
        ValueError: If `out` has results of other settings.
        RuntimeError: If a process failed.
    """
    out = pathlib.Path(out)
    _check_settings(out, quick)
    records.pack(out)  # of an interrupted command
    before = len(records.read(out))
    start = time.monotonic()
    # The learning rates are chosen before they are used.
    waves = [[(name, TUNING_SEED) for name in names]]
    waves.append([(name, s) for s in range(seeds) for name in names])
    count = processes or threads.cores()
    try:
        for wave in waves:
            with concurrent.futures.ThreadPoolExecutor(count) as pool:
                done = [
                    pool.submit(_work, out, name, seed, data_dir, quick, start)
                    for name, seed in wave
                ]
                _wait(done)
    finally:
        records.pack(out)
        if len(records.read(out)) > before:
            command = ["python -m research quantize", *_flags(quick)]
            write_meta(out, " ".join(command))


def _wait(futures):
    """Waits for all. After a failure, no further process is started."""
    try:
        for future in concurrent.futures.as_completed(futures):
            future.result()
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _work(out, task, seed, data_dir, quick, start):
    """Runs a process and shows its records."""
    arguments = {
        "out": str(out),
        "task": task,
        "seed": seed,
        "data_dir": None if data_dir is None else os.fspath(data_dir),
        "quick": quick,
    }
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "research.quantization.worker",
            json.dumps(arguments),
        ],
        env=threads.environment(1),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    last = collections.deque(maxlen=LOG_LINES)
    try:
        for line in process.stdout:
            last.append(line)
            if line.startswith(f"{task}/{seed}/"):
                minutes = (time.monotonic() - start) / 60
                print(f"{minutes:6.1f} min  {line.strip()}", flush=True)
    finally:
        process.stdout.close()
        if process.poll() is None and sys.exc_info()[0] is not None:
            process.kill()
        process.wait()
    if process.returncode:
        raise RuntimeError(
            f"The runs of {task} with seed {seed} failed with exit code "
            f"{process.returncode}. Its last output:\n{''.join(last)}"
        )


def _check_settings(out, quick):
    path = out / SETTINGS
    settings = {"quick": quick}
    if path.exists() and read_json(path) != settings:
        raise ValueError(
            f"The folder {out} has results of other options. Choose another "
            f"folder with `--out`. Received: quick={quick}"
        )
    disk.write(path, json.dumps(settings) + "\n")


def _flags(quick):
    return ["--quick"] if quick else []
