"""The section of the page about annealers, made from the records alone."""

import pathlib

import numpy as np

from keras_qpsbgd.compare.report.statistics import mean_and_error
from keras_qpsbgd.compare.report.statistics import paired_test
from research.experiments.pages.markdown import item
from research.experiments.pages.markdown import paragraph
from research.few_solves import annealer
from research.few_solves import records
from research.few_solves.numbers import TOLERANCE
from research.few_solves.tasks.catalogue import TASKS

TITLE = "## Gurobi and the mock QPU"
ABOUT = (
    "The same rules with three solvers: `native` with the preset `accurate`, "
    "Gurobi, and the backend `dwave` with a mock QPU (`mock=True`, Pegasus, "
    f"{annealer.NUM_READS} reads per call). The mock replaces the chip alone: "
    "embedding, chains, scaling and shared calls are those of a real run, and "
    "the samples come from simulated annealing on the CPU. It has no noise of "
    "a chip. **What noise, drift and control errors of a real QPU do to these "
    "numbers is unknown.** QPU seconds are those of Ocean's cost model, with "
    "timing data of Advantage_system4.1 from August 2022."
)
SETTINGS = (
    f"Nothing is tuned. The damping is {annealer.DAMPING:g}. `Newton`, a rule "
    "of version 0.1 that is removed, "
    'replaces the weights of single layers (`latent="none"`) and averages '
    f"those of the network with the rate {annealer.RATE:g}. `mean` uses the "
    'mean of all reads (`reads="mean"`; `native` has 8), averaged with the '
    "same rate. Gurobi has no reads. `columns` is `kq.fit_columns`, with "
    f"`max_reads=1` or {annealer.MAX_READS}. A number of updates is a number "
    "of sweeps there. Each update solves a QUBO per column. The seeds are the "
    "first ones of the sections above."
)
# Conclusions, written by hand after reading the tables.
NOTE = "note-annealer.md"
COMMAND = "Command: `python -m research few-solves --annealer`"
# The number of updates of the detailed table.
DETAILED = {"logistic": 3, "layer-16": 3, "pairs": 20}


def section(out):
    """Returns the paragraphs, or an empty list without records."""
    found = records.read(out, annealer.NAME)
    if not found:
        return []
    parts = [TITLE, paragraph(ABOUT), paragraph(SETTINGS), COMMAND]
    note = pathlib.Path(out) / NOTE
    if note.exists():
        parts.append(note.read_text().strip())
    for name in annealer.SEEDS:
        runs = {
            variant: found[annealer.key(name, variant)]
            for variant in annealer.VARIANTS
            if annealer.key(name, variant) in found
        }
        if runs:
            optimum = records.read(out, name).get(records.OPTIMUM)
            parts += [f"### {TASKS[name].title}: three solvers"]
            parts += _task(runs, optimum, DETAILED[name])
    return parts


def _task(runs, optimum, detailed):
    """Returns the paragraphs of one task."""
    seeds = len(next(iter(runs.values())))
    parts = [f"{seeds} seeds. Mean training loss by number of updates:"]
    counts = [
        count
        for count in annealer.UPDATES
        if all(str(count) in one["results"] for r in runs.values() for one in r)
    ]
    rows = [["", *map(str, counts)]]
    for variant, results in runs.items():
        means = [np.mean(_values(results, c, "train_loss")) for c in counts]
        title = annealer.VARIANTS[variant].title
        rows.append([title, *(f"{mean:.4f}" for mean in means)])
    parts.append(_markdown(rows))
    detailed = min(detailed, counts[-1])
    if optimum is not None:
        parts.append(
            f"Share of the seeds with the enumerated optimum (within "
            f"{TOLERANCE:g}):"
        )
        rows = [["", *map(str, counts)]]
        for variant, results in runs.items():
            shares = [_share(results, count, optimum) for count in counts]
            title = annealer.VARIANTS[variant].title
            rows.append([title, *(f"{share:.0%}" for share in shares)])
        parts.append(_markdown(rows))
    parts.append(
        f"After {detailed} updates, with standard errors. Calls and seconds of "
        "the QPU are those of one run:"
    )
    parts.append(_details(runs, detailed))
    parts.append(_tests(runs, detailed))
    return parts


def _details(runs, count):
    rows = [["", "loss", "test accuracy, %", "calls", "QPU s"]]
    for variant, results in runs.items():
        loss, error = mean_and_error(_values(results, count, "train_loss"))
        cells = [annealer.VARIANTS[variant].title]
        cells.append(f"{loss:.4f} +- {error:.4f}")
        accuracy, error = mean_and_error(
            _values(results, count, "test_accuracy")
        )
        cells.append(f"{100 * accuracy:.1f} +- {100 * error:.1f}")
        calls = np.mean(_values(results, count, "calls"))
        seconds = np.mean(_values(results, count, "qpu_seconds"))
        if calls:
            cells += [f"{calls:.0f}", f"{seconds:.2f}"]
        else:
            cells += ["-", "-"]
        rows.append(cells)
    return _markdown(rows)


def _tests(runs, count):
    """Returns comparisons with `native`."""
    lines = [f"After {count} updates, minus the same rule with `native`:\n"]
    for variant, results in runs.items():
        reference = annealer.VARIANTS[variant].reference
        if reference not in runs:
            continue
        loss, accuracy = (
            paired_test(
                _by_seed(results, count, measure),
                _by_seed(runs[reference], count, measure),
            )
            for measure in ("train_loss", "test_accuracy")
        )
        lines.append(
            item(
                f"{annealer.VARIANTS[variant].title}: training loss "
                f"{loss.difference:+.4f} ({_p(loss.p)}), test accuracy "
                f"{100 * accuracy.difference:+.1f} points "
                f"({_p(accuracy.p)})"
            )
        )
    return "\n".join(lines)


def _p(value):
    return f"p = {value:.3f}" if value >= 0.001 else "p < 0.001"


def _by_seed(results, count, measure):
    return {one["seed"]: one["results"][str(count)][measure] for one in results}


def _values(results, count, measure):
    return list(_by_seed(results, count, measure).values())


def _share(results, count, optimum):
    losses = _by_seed(results, count, "train_loss")
    return np.mean(
        [
            loss <= optimum[str(seed)] + TOLERANCE
            for seed, loss in losses.items()
        ]
    )


def _markdown(rows):
    """Returns a table whose cells are padded, to be read in a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    rows = [rows[0], ["-" * max(3, width) for width in widths], *rows[1:]]
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths)) + " |"
        for row in rows
    )
