"""Trains the runs of a list in several processes.

    python -m research.cifar10.parallel DATA PROGRAMS LIST OUTPUT

`LIST` is a file such as `jobs-study.txt`, with the `RUNS` of
`research.cifar10.train` in its lines. Every line is a process, in the order of
the file. A line with the rate `best` waits for all lines of its program that
come before it. `OUTPUT/runs.jsonl` has the runs, `OUTPUT/weights` the weights,
and `OUTPUT/logs` what the processes print. If the command is repeated, it skips
the runs that are there.

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
import subprocess
import sys
import time

from research.cifar10 import records

INTERVAL = 0.2  # seconds between two looks at the processes


def main(arguments=None):
    """Trains the runs of the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m research.cifar10.parallel",
        description="Train the runs of a list in several processes.",
    )
    for name in ("data", "programs", "list", "output"):
        parser.add_argument(name, metavar=name.upper(), type=pathlib.Path)
    parser.add_argument(
        "--processes",
        type=int,
        default=5,
        metavar="N",
        help="processes at the same time (default: %(default)s)",
    )
    arguments = parser.parse_args(arguments)
    lines = [
        line
        for line in arguments.list.read_text().splitlines()
        if line and not line.startswith("#")
    ]
    logs = arguments.output / "logs"
    logs.mkdir(parents=True, exist_ok=True)

    def start(number):
        words = [arguments.data, arguments.programs, lines[number]]
        words += ["--output", arguments.output / "runs.jsonl"]
        words += ["--weights", arguments.output / "weights"]
        with (logs / f"{number:03}.txt").open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-um", "research.cifar10.train", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    failed = run(list(map(records.parsed, lines)), start, arguments.processes)
    for number in failed:
        print(f"failed: {lines[number]} (see {logs}/{number:03}.txt)")
    return int(bool(failed))


def run(jobs, start, processes):
    """Starts a process for each job, and waits for all of them.

    Args:
        jobs: List of `records.Runs`.
        start: Function of the number of a job that returns a
            `subprocess.Popen`.
        processes: Integer. Number of processes at the same time.

    Returns:
        The numbers of the jobs that failed.
    """
    waiting, running, failed = list(range(len(jobs))), {}, []
    while waiting or running:
        for number, process in list(running.items()):
            if process.poll() is not None:
                del running[number]
                failed += [number] * bool(process.returncode)
                state = "failed" if process.returncode else "done"
                print(f"{jobs[number].program}: {state}", flush=True)
        unfinished = {*waiting, *running}
        ready = [
            number
            for number in waiting
            if not any(
                jobs[number].rates == records.BEST
                and jobs[other].program == jobs[number].program
                for other in unfinished
                if other < number
            )
        ]
        for number in ready[: processes - len(running)]:
            waiting.remove(number)
            running[number] = start(number)
        time.sleep(INTERVAL)
    return failed


if __name__ == "__main__":
    sys.exit(main())
