"""The tables and figures of `python -m research quantize`.

They are made from the records alone. `RESULTS.md` is written text with these
tables.
"""

import json
import pathlib

from research import pages
from research.quantization import figures
from research.quantization import tables
from research.quantization.numbers import Numbers
from research.quantization.study import open_store
from research.quantization.targets import targets

BENCH = "bench-quantize.json"
TITLE = "Quantize a trained network"


def write(out):
    """Writes the figures and the tables of the page."""
    out = pathlib.Path(out)
    numbers = load(out)
    if not numbers.tasks:
        raise ValueError(f"There are no records to report. Received: out={out}")
    figures.draw(numbers, out)
    return pages.write(out / "RESULTS.md", TITLE, blocks_of(numbers))


def load(out):
    """Returns the `Numbers` of a folder."""
    path = pathlib.Path(out, BENCH)
    bench = None
    if path.exists():
        results = json.loads(path.read_text())["results"]
        bench = next(iter(results.values()))
    return Numbers(open_store(out).records, bench)


def blocks_of(numbers):
    """Returns all tables by name."""
    found = {
        "targets": tables.target_table(targets(numbers)),
        "errors": tables.ratio_table(numbers),
    }
    for task in numbers.tasks:
        found[f"{task}/accuracy"] = tables.accuracy_table(numbers, task)
        found[f"{task}/errors"] = tables.ratio_table(numbers, task)
        if numbers.bits_of(task, "train"):
            found[f"{task}/training"] = tables.training_table(numbers, task)
        found[f"{task}/layers"] = tables.layer_table(numbers, task)
    found["times"] = tables.time_table(numbers)
    found["proofs"] = tables.proof_table(numbers)
    return found
