"""Runs a list of trainings, several at a time.

    python -m research.cifar10.study JOBS DATA PROGRAMS OUTPUT [--minutes M]

A line of the file `JOBS` is a network and trainings, see `train.py`:

    relu-64 adam:12:0.001,0.002,0.004:100
    relu-64 adam:60:best:0,1,2

The programs of a network are in the folder `PROGRAMS/relu-64`. Every line is a
process, and `--processes` of them run at the same time. The first lines start
first. A line waits for earlier lines with the same program, so that `best` sees
all rates. Runs are appended to `OUTPUT/runs.jsonl` when they end. Those that
are in the file already are skipped: after an interruption, the same command
goes on. `--minutes` ends it before a time limit.

Times per step would not be comparable with several processes. So they are
measured before, with all programs of a network in turns and nothing else on the
device, for `OUTPUT/times.jsonl`. Networks in this file are skipped.

The command itself needs Python alone.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time
from typing import NamedTuple

from research.cifar10 import records

RUNS, TIMES, LOG = "runs.jsonl", "times.jsonl", "log.txt"
TIMED_STEPS = 300
STARTING = 30  # seconds before the end, after which nothing starts
ENDING = 10  # seconds before the end, when everything is stopped


class Job(NamedTuple):
    """A line of the file of jobs."""

    network: str
    runs: tuple

    @property
    def programs(self):
        """The programs of the job, with their network."""
        return {(self.network, run.partition(":")[0]) for run in self.runs}


def main(arguments=None):
    """Runs the jobs. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m research.cifar10.study",
        description="Run a list of trainings, several at a time.",
    )
    parser.add_argument("jobs", metavar="JOBS", type=pathlib.Path)
    parser.add_argument("data", metavar="DATA", type=pathlib.Path)
    parser.add_argument("programs", metavar="PROGRAMS", type=pathlib.Path)
    parser.add_argument("output", metavar="OUTPUT", type=pathlib.Path)
    parser.add_argument(
        "--processes",
        type=int,
        default=4,
        metavar="N",
        help="trainings at the same time (default: %(default)s)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=60.0,
        metavar="M",
        help="time limit (default: %(default)s)",
    )
    given = parser.parse_args(arguments)
    given.output.mkdir(parents=True, exist_ok=True)
    end = time.time() + 60 * given.minutes
    jobs = read(given.jobs)
    measure(jobs, given, end)
    run(jobs, given, end)
    stored = records.read(given.output / RUNS)
    print(f"{len(stored)} runs are stored", flush=True)
    return 0


def read(path):
    """Returns the jobs of a file. Text after `#` is a comment."""
    lines = [
        line.partition("#")[0].split() for line in path.read_text().splitlines()
    ]
    return [Job(network, tuple(runs)) for network, *runs in filter(None, lines)]


def measure(jobs, given, end):
    """Times the programs of all networks that are not timed yet.

    The networks are compiled at the same time.
    """
    known = {
        (*records.network(row), row["program"])
        for row in records.read(given.output / TIMES)
    }
    names = sorted(set().union(*(job.programs for job in jobs)))
    processes = []
    for network in sorted({network for network, _ in names}):
        programs = [name for where, name in names if where == network]
        activation, _, width = network.rpartition("-")
        if {(activation, int(width), name) for name in programs} <= known:
            continue
        processes.append(
            _start(
                given,
                network,
                *programs,
                # Any file that all of them can open will do as a lock.
                *("--time", TIMED_STEPS, "--lock", given.output / LOG),
                *("--output", given.output / TIMES),
            )
        )
    for process in processes:
        try:
            process.wait(max(end - time.time() - ENDING, 0))
        except subprocess.TimeoutExpired:
            process.kill()


def run(jobs, given, end):
    """Runs the jobs until all have ended or the time is over."""
    waiting, running = list(jobs), {}
    while (waiting or running) and time.time() < end - ENDING:
        for job, process in list(running.items()):
            if process.poll() is not None:
                del running[job]
                state = "ended" if process.returncode == 0 else "FAILED"
                print(
                    f"{state}: {job.network} {' '.join(job.runs)}", flush=True
                )
        if time.time() > end - STARTING:
            waiting.clear()
        busy = set().union(*(job.programs for job in running))
        for job in list(waiting):
            if not job.programs & busy and is_done(job, given):
                waiting.remove(job)
                continue
            if len(running) < given.processes and not job.programs & busy:
                running[job] = _start(
                    given,
                    job.network,
                    *job.runs,
                    *("--extend", "--until", end - ENDING),
                    *("--output", given.output / RUNS),
                )
                waiting.remove(job)
            busy |= job.programs  # later lines of a program wait for this one
        time.sleep(0.2)
    for process in running.values():
        process.kill()


def is_done(job, given):
    """Returns whether all runs of a job are stored."""
    for text in job.runs:
        runs = records.parsed(text)
        record = records.describe(given.programs / job.network, runs.program)
        path = given.output / RUNS
        try:
            if any(records.missing(runs, record, path, extend=True)):
                return False
        except ValueError:  # no tuning runs
            return False
    return True


def _start(given, network, *arguments):
    """Starts a process of `train.py`, which writes to the log."""
    command = [sys.executable, "-m", "research.cifar10.train"]
    command += [given.data, given.programs / network, *arguments]
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    with (given.output / LOG).open("a") as log:
        return subprocess.Popen(
            list(map(str, command)),
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )


if __name__ == "__main__":
    sys.exit(main())
