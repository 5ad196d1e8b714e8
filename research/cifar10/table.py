"""Prints a table of stored runs.

    python -m research.cifar10.table [FOLDER]

`FOLDER/tuning.jsonl` has the runs that chose the settings, by validation
accuracy. `FOLDER/final.jsonl` has the runs with fresh seeds. The p-values are
those of paired t-tests against the averaged rule, over the seeds that both
methods have.
"""

import argparse
import collections
import json
import pathlib
import sys

import numpy as np
from scipy import stats

OURS = "averaged"


def main(arguments=None):
    """Prints the table. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m research.cifar10.table")
    parser.add_argument(
        "folder",
        nargs="?",
        default="results/cifar10",
        type=pathlib.Path,
        help="folder with tuning.jsonl and final.jsonl",
    )
    folder = parser.parse_args(arguments).folder
    tuning = read(folder / "tuning.jsonl")
    final = read(folder / "final.jsonl")
    tuned_on = {run["seed"] for runs in tuning.values() for run in runs}
    print("| method | tries | rate | seeds | test accuracy | p | loss | p |")
    print("|---|---|---|---|---|---|---|---|")
    ours = by_seed(final, OURS, tuned_on)
    for (program, rate), runs in sorted(final.items()):
        found = by_seed({(program, rate): runs}, program, tuned_on)
        if not found:
            continue
        tries = sum(
            len(runs)
            for (name, _), runs in [*tuning.items(), *final.items()]
            if name.split("-")[0] == program.split("-")[0]
            for runs in [[run for run in runs if run["seed"] in tuned_on]]
        )
        cells = []
        for key in ("test", "loss"):
            values = np.array([run[key] for run in found.values()])
            error = values.std(ddof=1) / np.sqrt(len(values))
            cells += [
                f"{values.mean():.4f} ± {error:.4f}",
                p_value(found, ours, key),
            ]
        if program == OURS:
            cells[1] = cells[3] = ""
        print(f"| {program} | {tries} | {rate:g} | {len(found)} |", end=" ")
        print(" | ".join(cells), "|")
    return 0


def read(path):
    """Returns the runs of a file, by program and rate."""
    runs = collections.defaultdict(list)
    for line in path.read_text().splitlines():
        run = json.loads(line)
        runs[run["program"], run["rate"]].append(run)
    return runs


def by_seed(runs, program, without):
    """Returns the runs of one program by their seeds."""
    return {
        run["seed"]: run
        for (name, _), found in runs.items()
        for run in found
        if name == program and run["seed"] not in without
    }


def p_value(runs, ours, key):
    """Returns the p-value of a paired t-test, as text."""
    seeds = sorted(runs.keys() & ours.keys())
    pairs = [(ours[seed][key], runs[seed][key]) for seed in seeds]
    return f"{stats.ttest_rel(*zip(*pairs)).pvalue:.1g}"


if __name__ == "__main__":
    sys.exit(main())
