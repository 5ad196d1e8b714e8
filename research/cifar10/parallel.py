"""Trains the runs of a list in several processes.

    python -m research.cifar10.parallel DATA PROGRAMS LIST OUTPUT

`LIST` is a file such as `jobs-study.txt`. Its lines are the `RUNS` of
`research.cifar10.train`, and lines that start with `#` are comments:

    # The seeds 100 and 101 tune: they keep 5,000 images for validation.
    relu-64/adam:12:0.002:100,101:real_rate=0.01
    relu-64/adam:12:0.002:100,101:real_rate=0.03
    relu-64/adam:12:best:40,41,42

Every line is a process, in the order of the file. A line with the rate `best`
waits for the lines of its program that come before it and name their rates, and
fails if one of them failed. `OUTPUT/runs.jsonl` has the runs, `OUTPUT/weights`
a folder for the weights of each line, and `OUTPUT/logs` what the processes
print. If the command is repeated, it skips the runs that are there.

Processes take turns on a GPU. With the service MPS of CUDA, their kernels run
side by side: start it with `nvidia-cuda-mps-control -d`. XLA chooses kernels by
timing them, and other processes disturb these times. Therefore train one
process of each network first, with the environment variable

    XLA_FLAGS=--xla_gpu_dump_autotune_results_to=FILE

and then all of them with `--xla_gpu_load_autotune_results_from=FILE`, which
also compiles much faster.
"""

import argparse
import pathlib
import signal
import subprocess
import sys
import time

from research.cifar10 import pack
from research.cifar10 import records

INTERVAL = 0.2  # seconds between two looks at the processes


def main(arguments=None):
    """Trains the runs of the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m research.cifar10.parallel",
        description="Train the runs of a list in several processes.",
    )
    for name, text in (
        ("data", "folder of `research.cifar10.pack`"),
        ("programs", "folder of `research.cifar10.export`"),
        ("list", "file with PROGRAM:EPOCHS:RATES:SEEDS:SETTINGS in each line"),
        ("output", "folder of the runs, the weights and the logs"),
    ):
        parser.add_argument(
            name, metavar=name.upper(), type=pathlib.Path, help=text
        )
    parser.add_argument(
        "--processes",
        type=int,
        default=5,
        metavar="N",
        help="processes at the same time (default: %(default)s)",
    )
    arguments = parser.parse_args(arguments)
    lines = _lines(parser, arguments)
    logs = arguments.output / "logs"
    logs.mkdir(parents=True, exist_ok=True)

    def start(number):
        words = [arguments.data, arguments.programs, lines[number]]
        words += ["--output", arguments.output / "runs.jsonl"]
        words += ["--weights", arguments.output / "weights" / f"{number:03}"]
        with (logs / f"{number:03}.txt").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-um", "research.cifar10.train", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    # The processes end, too, if this one is asked to.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    failed = run(list(map(records.parsed, lines)), start, arguments.processes)
    for number in failed:
        print(f"failed: {lines[number]} (see {logs}/{number:03}.txt)")
    return int(bool(failed))


def _lines(parser, arguments):
    """Returns the lines of the list, after a check of all arguments."""
    for path in pack.FILES:
        if not (arguments.data / path).exists():
            parser.error(
                f"DATA must have the files of `research.cifar10.pack`. "
                f"Received: {arguments.data}, without {path}"
            )
    if not arguments.list.exists():
        parser.error(f"LIST must be a file. Received: {arguments.list}")
    found = []
    text = arguments.list.read_text()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            program = records.parsed(line).program
            records.describe(arguments.programs, program)
        except (argparse.ArgumentTypeError, FileNotFoundError) as error:
            parser.error(f"{arguments.list}, line {number}: {error}")
        found.append(line)
    if not found:
        parser.error(f"LIST must have runs. Received: {arguments.list}")
    return found


def run(jobs, start, processes):
    """Starts a process for each job, and waits for all of them.

    Args:
        jobs: List of `records.Runs`.
        start: Function of the number of a job that returns a
            `subprocess.Popen`.
        processes: Integer. Number of processes at the same time.

    Returns:
        The numbers of the jobs that failed, or were not started because a job
        that they wait for failed.
    """
    waiting, running, failed = list(range(len(jobs))), {}, []
    try:
        while waiting or running:
            for number, process in list(running.items()):
                if process.poll() is not None:
                    del running[number]
                    failed += [number] * bool(process.returncode)
                    state = "failed" if process.returncode else "done"
                    print(f"{jobs[number].program}: {state}", flush=True)
            for number in list(waiting):
                needed = _needed(jobs, number)
                if needed & {*failed}:
                    waiting.remove(number)
                    failed.append(number)
                elif len(running) < processes and not needed & {
                    *waiting,
                    *running,
                }:
                    waiting.remove(number)
                    running[number] = start(number)
            time.sleep(INTERVAL)
    finally:
        for process in running.values():
            process.terminate()
    return failed


def _needed(jobs, number):
    """Returns the jobs that choose the best rate of a job."""
    if jobs[number].rates != records.BEST:
        return set()
    return {
        other
        for other in range(number)
        if jobs[other].program == jobs[number].program
        and jobs[other].rates != records.BEST
    }


if __name__ == "__main__":
    sys.exit(main())
