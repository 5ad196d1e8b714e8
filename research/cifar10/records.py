"""Runs that are asked for, and stored runs.

This module tells which runs are missing, and which rate was the best. A run is
a dictionary, see `train.train`. Runs on the seeds `TUNING` choose the rates and
other settings, by mean validation accuracy. Runs on other seeds report.
"""

import argparse
import collections
import itertools
import json
import statistics
from typing import NamedTuple

EPOCHS, RATE, SEED = 12, 1e-3, 0  # defaults
TUNING = (100, 101)  # the seeds on which rates are chosen
REAL_RATE = "real_rate"  # a setting of every program
BEST = "best"


class Runs(NamedTuple):
    """Trainings of a program, one for each pair of a rate and a seed.

    The program is a path such as `relu-64/adam`. The rates can be `BEST`.
    """

    program: str
    epochs: int
    rates: tuple | str
    seeds: tuple
    settings: dict


def parsed(text):
    """Returns the `Runs` of `PROGRAM:EPOCHS:RATES:SEEDS:SETTINGS`."""
    program, epochs, rates, seeds, settings, *rest = *text.split(":"), *[""] * 4
    if any(rest) or not program:
        raise argparse.ArgumentTypeError(
            f"must be `PROGRAM:EPOCHS:RATES:SEEDS:SETTINGS`. Received: {text}"
        )
    try:
        pairs = [pair.split("=") for pair in settings.split(",") if pair]
        return Runs(
            program,
            int(epochs or EPOCHS),
            BEST
            if rates == BEST
            else tuple(map(float, str(rates or RATE).split(","))),
            tuple(map(int, str(seeds or SEED).split(","))),
            {name: float(value) for name, value in pairs},
        )
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}. Received: {text}") from None


def describe(folder, program):
    """Returns the dictionary that describes a program.

    Args:
        folder: `pathlib.Path` of all programs.
        program: String. Its path in the folder.
    """
    return json.loads((folder / program / "program.json").read_text())


def read(path):
    """Returns the runs of a file, and none if it does not exist."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def network(run):
    """Returns activation, width and kind of the network of a run."""
    return run["activation"], run["width"], run["network"]


def training(run):
    """Returns what a run must share with a program to be a run of it."""
    return network(run), run["batch"], run["dtype"]


def configuration(run):
    """Returns rate and settings of a run, as something to compare."""
    return run["rate"], tuple(sorted(run["settings"].items()))


def of_program(path, program, record):
    """Returns the stored runs of a program.

    Args:
        path: `pathlib.Path` (optional) of the runs.
        program: String. The name.
        record: Dictionary that describes the program, with its network.
    """
    return [
        run
        for run in read(path)
        if run["program"] == program.rpartition("/")[2]
        and training(run) == training(record)
    ]


def best(runs, epochs=None):
    """Returns a tuning run of the configuration with the best validation.

    Decides by the mean accuracy over the tuning seeds, then by the mean loss.

    Args:
        runs: List of runs of one program.
        epochs: Integer (optional). Only runs of this length decide, if there
            are any. Otherwise, those with the largest number of epochs do.

    Raises:
        ValueError: If no run is on a tuning seed.
    """
    tuning = [run for run in runs if run["seed"] in TUNING]
    if not tuning:
        raise ValueError(
            f"The best rate needs runs on the seeds {TUNING}. Received: "
            f"{len(runs)} runs"
        )
    lengths = {run["epochs"] for run in tuning}
    if epochs not in lengths:
        epochs = max(lengths)
    found = collections.defaultdict(list)
    for run in tuning:
        if run["epochs"] == epochs:
            found[configuration(run)].append(run)

    def quality(runs):
        losses = [run.get("validation_loss", 0.0) for run in runs]
        accuracies = [run["validation"] for run in runs]
        return statistics.fmean(accuracies), -statistics.fmean(losses)

    return max(found.values(), key=quality)[0]


def missing(runs, record, path):
    """Returns rate, seed and settings of runs that are not stored yet.

    Args:
        runs: `Runs`.
        record: Dictionary that describes the program, with its network.
        path: `pathlib.Path` (optional) of the stored runs.
    """
    stored = of_program(path, runs.program, record)
    rates, settings = runs.rates, runs.settings
    if rates == BEST:
        found = best(stored, runs.epochs)
        rates, settings = [found["rate"]], found["settings"]
    known = [(r["epochs"], r["seed"], *configuration(r)) for r in stored]
    return [
        (rate, seed, settings)
        for rate, seed in itertools.product(rates, runs.seeds)
        if (
            runs.epochs,
            seed,
            *configuration({"rate": rate, "settings": settings}),
        )
        not in known
    ]
