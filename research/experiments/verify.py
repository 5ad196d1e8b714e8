"""Repeats stored runs, to see whether the present code still gives them.

Any change of the code makes records older than the code, also one that changes
no number, such as an error message. This command repeats one run of each method
and each version of the code. If all of its numbers are the same, the pages no
longer count the other records of this method and version as older. This is a
sample: it does not prove that all runs are the same.
"""

import dataclasses
import json
import pathlib
import tempfile

from keras_qpsbgd import _tables
from keras_qpsbgd import disk
from research import code_version
from research.engine import engine
from research.engine import plan
from research.engine import records
from research.engine.methods import METHODS
from research.engine.task import FRESH
from research.experiments import reproduce
from research.experiments.catalogue import items_of
from research.experiments.results import older
from research.experiments.results import options_of

SAME, DIFFERS = "same", "differs"
OTHER_MACHINE = "differs, other machine"
WIDTHS = (26, 26)


def verify(names, folder, options, processes=None):
    """Repeats a run of each method, and prints and stores what is the same.

    Args:
        names: names of experiments. Those without records are skipped.
        folder: folder of the results.
        options: `Options`. Those of the records take precedence.
        processes: number of processes; `None` is the number of cores.

    Returns:
        Whether all repeated runs are the same.
    """
    stored = {}
    for name in names:
        path = pathlib.Path(folder, name)
        if jobs := _sample(path):
            stored[name] = path, jobs, records.Runs(path)
    if not stored:
        print("No records are older than the code.")
        return True
    with tempfile.TemporaryDirectory() as temporary:
        repeated = records.Runs(temporary)
        items = []
        for name, (path, _, _) in stored.items():
            of_records = dataclasses.replace(
                options_of(path, options), methods=tuple(METHODS)
            )
            items += items_of(name, of_records, repeated)
        waves = [[job for _, jobs, _ in stored.values() for job in jobs]]
        engine.perform(waves, plan.Work(items), repeated, processes)
        rows, is_same = [], True
        for path, jobs, runs in stored.values():
            verdicts = [
                _verdict(path, runs[job], repeated[job]) for job in jobs
            ]
            is_same &= set(verdicts) == {SAME}
            _store(path, [runs[j] for j, v in zip(jobs, verdicts) if v == SAME])
            rows += [
                (job["method"], job["task"], verdict)
                for job, verdict in zip(jobs, verdicts)
            ]
    head = "method", "task", "repeated run"
    print(*_tables.table(head, rows, WIDTHS), sep="\n")
    return is_same


def _sample(path):
    """Returns the first fresh run of each older method and version."""
    runs = records.read(path)
    names = older(path, runs)
    found = {}
    for run in runs:
        if run["stage"] == FRESH and run["method"] in names:
            key = run["task"], run["method"], run.get("code")
            found.setdefault(key, {name: run[name] for name in records.RUN})
    return list(found.values())


def _verdict(path, run, repeated):
    if _numbers(run) == _numbers(repeated):
        return SAME
    machines = records.read_meta(path).get("machines", [])
    return DIFFERS if reproduce.machine() in machines else OTHER_MACHINE


def _numbers(run):
    return records.text_of({k: v for k, v in run.items() if k != "code"})


def _store(path, runs):
    """Adds the methods and versions of runs to `meta.json`."""
    meta = records.read_meta(path)
    now = code_version.version(*reproduce.CODE)
    # Those of other versions of the code have no more use.
    found = meta.get("verified", {}).get(now, [])
    for run in runs:
        row = [run["task"], run["method"], run.get("code")]
        if row not in found:
            found.append(row)
    meta["verified"] = {now: found}
    disk.write(path / "meta.json", json.dumps(meta, indent=1) + "\n")
