"""Runs stored seeds again, to tell whether the code still gives the results.

One fresh seed of each row of the tables is run again with its configuration:
one of each task, method and, in ablations, configuration. On the platform of
the records (see `provenance.platform`) all measures at all epochs must have the
stored digits. On another platform, and for solvers on the host, the results
must be within 4 standard deviations of the stored seeds.

If all rows of a method agree, `meta.json` gets the fingerprint of the code, and
the pages no longer call the method older than the code.
"""

import collections
import dataclasses
import datetime
import json
import os
import pathlib
import tempfile

import numpy as np

from keras_qpsbgd import backends
from keras_qpsbgd import disk
from research.engine import engine
from research.engine import plan
from research.engine import records
from research.engine import tables
from research.engine.task import FRESH
from research.experiments import provenance
from research.experiments.catalogue import items_of
from research.experiments.catalogue import methods_of
from research.experiments.options import HOST

# Longer runs are not repeated if a shorter one of the method is.
LONGEST = 300  # seconds
# Stored numbers have 6 significant digits.
RELATIVE, ABSOLUTE = 1e-5, 1e-6
DEVIATIONS = 4


@dataclasses.dataclass(frozen=True)
class Check:
    """A stored run and the same run with the present code.

    Attributes:
        run: The stored record.
        agrees: Boolean.
        measure: String. The measure that differs most.
        stored, again: Floats. Its values.
    """

    run: dict
    agrees: bool
    measure: str
    stored: float
    again: float

    def line(self):
        """Returns the cells of a table."""
        return [
            self.run["task"],
            self.run["method"],
            str(self.run["seed"]),
            self.measure,
            f"{self.stored:g}",
            f"{self.again:g}",
            "agrees" if self.agrees else "DIFFERS",
            tables.configuration_text(self.run["configuration"]),
        ]


HEAD = ["task", "method", "seed", "measure", "stored", "again", "verdict"]
HEAD += ["configuration"]


def verify(name, folder, options, methods=(), processes=None, longest=LONGEST):
    """Runs an experiment's rows again, and notes which methods are verified.

    Args:
        name: String. Name of the experiment.
        folder: Folder of its records.
        options: `Options` of the records.
        methods: Labels of methods. Defaults to those that are older than the
            code.
        processes: Integer (optional). See `engine.perform`.
        longest: Float. Runs that took more CPU seconds are not repeated, if a
            shorter one of the method is.

    Returns:
        A list of `Check`.
    """
    folder = pathlib.Path(folder)
    meta = records.read_meta(folder)
    older = collections.defaultdict(list)
    for run in records.read(folder):
        older[provenance.is_older(name, run, meta)].append(run)
    # The older ones first: others may have been added since.
    runs = older[True] + older[False]
    methods = methods or {run["method"] for run in older[True]}
    known = methods_of(name)
    can_run = [m for m in methods if m in known and _can_run(known[m])]
    chosen = rows(runs, can_run)
    chosen = _without_long(chosen, records.read_times(folder), longest)
    again = run_again(name, options, chosen, processes)
    is_same = meta.get("platform") == provenance.platform()
    checks = [
        compare(
            run, new, runs, is_same and known[run["method"]].key not in HOST
        )
        for run, new in zip(chosen, again)
    ]
    failed = {check.run["method"] for check in checks if not check.agrees}
    verified = {run["method"] for run in chosen} - failed
    if verified:
        _write(name, folder, verified)
    return checks


def _can_run(method):
    try:
        plan.check_backends([method.backend])
    except backends.BackendUnavailable:
        return False
    return True


def rows(runs, labels):
    """Returns the first fresh run of each row of the tables.

    Args:
        runs: Records of an experiment.
        labels: Labels of methods.
    """
    found = {}
    for run in runs:
        if run["stage"] == FRESH and run["method"] in labels:
            configuration = records.text_of(run["configuration"])
            row = (run["task"], run["method"], configuration)
            found.setdefault(row, run)
    return list(found.values())


def _without_long(chosen, times, longest):
    seconds = collections.defaultdict(float)
    for time in times:
        key = time["task"], time["method"]
        seconds[key] = max(seconds[key], time["seconds"])
    kept = []
    for run in chosen:
        of_method = [
            seconds[other["task"], other["method"]]
            for other in chosen
            if other["method"] == run["method"]
        ]
        limit = max(longest, min(of_method))
        if seconds[run["task"], run["method"]] <= limit:
            kept.append(run)
    return kept


def run_again(name, options, chosen, processes=None):
    """Returns new records of runs.

    Args:
        name: String. Name of the experiment.
        options: `Options` of the records.
        chosen: List of records.
        processes: Integer (optional). See `engine.perform`.
    """
    known = methods_of(name)
    keys = {known[run["method"]].key for run in chosen}
    options = dataclasses.replace(options, methods=tuple(keys))
    jobs = [{part: run[part] for part in records.RUN} for run in chosen]
    with tempfile.TemporaryDirectory() as folder:
        runs = records.Runs(folder)
        work = plan.Work(items_of(name, options, runs))
        # As in `reproduce`.
        os.environ.update(engine.environment(1))
        engine.perform([jobs], work, runs, processes)
        return [runs[job] for job in jobs]


def compare(run, again, runs, is_same):
    """Compares a stored run with a new one.

    Args:
        run, again: The records.
        runs: All records of the experiment.
        is_same: Boolean. Whether all digits must be the same. If not, the
            results must be like those of the stored seeds.

    Returns:
        A `Check`.
    """
    seeds = [
        other
        for other in runs
        if all(other[key] == run[key] for key in records.RUN if key != "seed")
    ]
    found = []
    for measure in sorted({*run["result"]} - {"epoch"}):
        if is_same:
            stored, new = _values(run, measure), _values(again, measure)
            tolerance = ABSOLUTE + RELATIVE * np.abs(stored)
        else:
            values = [other["result"][measure] for other in seeds]
            spread = np.std(values, ddof=1) if len(values) > 1 else 0.0
            stored, new = (
                np.mean(values, keepdims=True),
                _values(again, measure),
            )
            new, tolerance = new[:1], ABSOLUTE + DEVIATIONS * spread
        if len(stored) != len(new):
            return Check(run, False, "epochs", len(stored), len(new))
        ratios = np.abs(new - stored) / tolerance
        ratios[np.isnan(ratios)] = np.inf
        # A run that diverged may diverge again.
        ratios[np.isnan(stored) & np.isnan(new)] = 0.0
        worst = np.argmax(ratios)
        found.append((ratios[worst], measure, stored[worst], new[worst]))
    ratio, *values = max(found)
    return Check(run, bool(ratio <= 1), *values)


def _values(run, measure):
    """Returns an array of a result and, if it has one, of its curve."""
    value = run["result"].get(measure, np.nan)
    return np.array([value, *run["curves"].get(measure, ())], float)


def _write(name, folder, labels):
    meta = records.read_meta(folder)
    today = datetime.date.today().isoformat()
    verified = meta.setdefault("verified", {})
    for label in sorted(labels):
        code = provenance.code(name, label)
        verified[label] = {"code": code, "date": today}
    disk.write(folder / "meta.json", json.dumps(meta, indent=1) + "\n")
