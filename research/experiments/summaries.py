"""Tables over several tasks: pooled comparisons, and a row for each task.

A pooled comparison is one over all tasks of an experiment. A seed draws the
same first weights and the same order of the batches for every task, so the
differences of one seed are not independent. They are averaged over the tasks,
and the paired t-test uses these averages, one per seed. All tasks have the same
weight, and the difference may vary between tasks. For comparison there is also
the p-value of a paired t-test that treats every difference of a task and a seed
as independent.
"""

import dataclasses
import math

import numpy as np

from keras_qpsbgd.comparison import statistics
from keras_qpsbgd.comparison import tables
from keras_qpsbgd.comparison.methods import METHODS
from keras_qpsbgd.comparison.statistics import PairedTest
from keras_qpsbgd.comparison.statistics import mean_and_error
from research.experiments.options import HOST
from research.experiments.tables import paper_text

OURS = METHODS["native"].label
REAL = METHODS["real"].label
ON_HOST = [METHODS[key].label for key in HOST]
# The experiments in the order of the summary.
ORDER = (
    "logistic",
    "adult-2layer",
    "adult-10layer",
    "adult-small",
    "mnist-pairs",
    "karate",
    "cora",
    "pubmed",
    "mnist",
    "ablation",
    "direction",
)
# Names of methods in the summary.
NAMES = {
    METHODS["ridge"].label: "`ridge`",
    METHODS["paper"].label: "the rule of the paper",
    METHODS["signum"].label: "Signum",
    METHODS["frozen"].label: "frozen random layers",
    METHODS["adam"].label: "BinaryConnect with Adam",
    METHODS["sgd"].label: "BinaryConnect with SGD",
    METHODS["momentum"].label: "BinaryConnect with momentum",
    METHODS["signsgd"].label: "BinaryConnect with signSGD",
}
_FROM_OUR_SIDE = {"better": "behind", "worse": "ahead", "tie": "tie"}


@dataclasses.dataclass(frozen=True)
class Pooled:
    """A method against the reference over several tasks.

    Attributes:
        method: its name.
        differences: the mean difference on each task, method minus reference.
        comparison: `PairedTest` over the averages of the seeds, reference minus
            method.
        verdict: see `statistics.verdict`.
        independent: `PairedTest` over all differences of a task and a seed.
    """

    method: str
    differences: tuple
    comparison: PairedTest
    verdict: str
    independent: PairedTest


def pooled_rows(runs, names, measure, reference):
    """Compares all methods with the reference over several tasks.

    Args:
        runs: records of the experiment.
        names: names of the tasks.
        measure: the `Measure` compared.
        reference: name of the reference.

    Returns:
        List of `Pooled`, without methods that were not run on all tasks.
    """
    fresh = tables.select(runs, stage="fresh")

    def values_of(method):
        return [
            statistics.by_seed(
                tables.select(fresh, task=name, method=method), measure
            )
            for name in names
        ]

    ours = values_of(reference)
    found = []
    for method in tables.methods_of(fresh, reference):
        theirs = values_of(method)
        if method == reference or not all(theirs):
            continue
        comparison = statistics.paired_test(*map(_average, (ours, theirs)))
        found.append(
            Pooled(
                method,
                tuple(
                    -statistics.paired_test(*pair).difference
                    for pair in zip(ours, theirs)
                ),
                comparison,
                statistics.verdict(comparison, measure),
                statistics.paired_test(*map(_flat, (ours, theirs))),
            )
        )
    return found


def _average(values):
    """Seed -> mean over the tasks, of the seeds that all tasks have."""
    seeds = set.intersection(*map(set, values))
    return {
        seed: float(np.mean([of_task[seed] for of_task in values]))
        for seed in seeds
    }


def _flat(values):
    """(Task, seed) -> value."""
    return {
        (task, seed): value
        for task, of_task in enumerate(values)
        for seed, value in of_task.items()
    }


def pooled_table(runs, description, measure):
    """Returns a comparison over all tasks in Markdown, or `""` without runs.

    Args:
        runs: records of the experiment.
        description: a `Description`.
        measure: the `Measure` compared.
    """
    names = [task.name for task in description.tasks]
    rows = pooled_rows(runs, names, measure, description.reference_method)
    if not rows:
        return ""
    head = [
        f"method: difference in {measure.label}",
        *(task.title for task in description.tasks),
        "mean",
        "seeds",
        "p",
        "verdict",
        "p if independent",
    ]
    body = [
        [
            row.method,
            *(
                tables.difference_text(value, measure)
                for value in row.differences
            ),
            tables.difference_text(-row.comparison.difference, measure),
            str(row.comparison.pairs),
            tables.p_text(row.comparison.p),
            row.verdict,
            _small(row.independent.p),
        ]
        for row in rows
    ]
    return tables.markdown_table(head, body)


def _small(p):
    """Formats a p-value, also a very small one."""
    return f"{p:.1e}" if p < 0.001 else tables.p_text(p)


# A row for each task


def _rows(description, runs):
    """Returns pairs of a task and its rows, if it compares methods."""
    found = [
        (task, tables.rows_of(runs, task, description.reference_method))
        for task in description.tasks
        if task.kind != "cells"
    ]
    return [(task, rows) for task, rows in found if len(rows) > 1]


def overview_table(found):
    """Returns a row for each task: our value, the best other, the verdicts.

    Args:
        found: List of pairs of a `Description` and its records.
    """
    head = [
        "task",
        "measure",
        "QP-SBGD",
        "best other binary method",
        "QP-SBGD ahead / tie / behind",
        "paper",
        "QP-SBGD and the paper",
    ]
    lines = [
        _overview_line(description, task, rows)
        for description, runs in found
        for task, rows in _rows(description, runs)
    ]
    return tables.markdown_table(head, lines)


def _overview_line(description, task, rows):
    measure = task.measures[0]
    reference = description.reference_method
    ours = [row for row in rows if row.method == reference]
    others = _binary_methods(rows, reference)
    counts = [
        sum(row.verdict == word for row in others)
        for word in ("worse", "tie", "better")
    ]
    best = best_other(rows, reference, measure)
    paper = (task.paper or {}).get(reference)
    word = agreement(ours[0], paper, measure) if ours else None
    return [
        f"[{task.title}](#{_anchor(description.title)})",
        measure.label,
        tables.row_text(ours[0], measure) if ours else "not run",
        f"{best.method}: {tables.row_text(best, measure)}" if best else "-",
        " / ".join(map(str, counts)),
        paper_text(paper, measure),
        word or "-",
    ]


def summary_table(found):
    """Returns a row for each task: our value, the best other, real weights.

    Args:
        found: List of pairs of a `Description` and its records.
    """
    head = ["task", "measure", OURS, "best other binary method", "verdict"]
    found = sorted(found, key=lambda pair: ORDER.index(pair[0].name))
    lines = [
        _summary_line(description, task, {row.method: row for row in rows})
        for description, runs in found
        for task, rows in _rows(description, runs)
    ]
    return tables.markdown_table([*head, REAL], lines)


def _summary_line(description, task, rows):
    measure = task.measures[0]
    other = best_other(list(rows.values()), OURS, measure)
    title = task.title
    if description.name == "direction":
        title = f"Direction of updates, `{title}`"
    p = tables.p_text(other.comparison.p)
    p = f"p < {p[1:]}" if p.startswith("<") else f"p = {p}"
    return [
        title,
        measure.label,
        tables.row_text(rows[OURS], measure),
        f"{NAMES.get(other.method, other.method)}: "
        f"{tables.row_text(other, measure)}",
        f"{_FROM_OUR_SIDE.get(other.verdict, 'not tested')} ({p})",
        tables.row_text(rows[REAL], measure) if REAL in rows else "-",
    ]


def _anchor(title):
    """The anchor that GitHub gives to a heading."""
    kept = (c for c in title.lower() if c.isalnum() or c in " -_")
    return "".join(kept).replace(" ", "-")


def _binary_methods(rows, reference):
    """All rows except those of the reference and of real weights."""
    return [row for row in rows if row.method not in (reference, REAL)]


def best_other(rows, reference, measure):
    """The best of the other binary methods; `None` if there is none.

    Left out are methods with fewer seeds than the reference, whose means are
    not comparable, and the reference with a solver on the host.
    """
    seeds = max(
        (len(r.values[measure.key]) for r in rows if r.method == reference),
        default=0,
    )
    means = [
        (
            measure.sign
            * mean_and_error(list(row.values[measure.key].values()))[0],
            row,
        )
        for row in _binary_methods(rows, reference)
        if len(row.values[measure.key]) >= seeds and row.method not in ON_HOST
    ]
    means = [(mean, row) for mean, row in means if not math.isnan(mean)]
    return max(means, key=lambda pair: pair[0])[1] if means else None


def agreement(row, paper, measure):
    """Compares our value with the paper's, within two standard errors.

    Args:
        row: `Row` of the method.
        paper: number, range, text or `None`.
        measure: the `Measure`.

    Returns:
        "agrees", "is above" or "is below"; `None` if there is no number or no
        standard error.
    """
    if paper is None or isinstance(paper, str):
        return None
    low, high = paper if isinstance(paper, tuple) else (paper, paper)
    mean, error = mean_and_error(list(row.values[measure.key].values()))
    if math.isnan(error) or math.isnan(mean):
        return None
    if mean - 2 * error > high:
        return "is above"
    return "is below" if mean + 2 * error < low else "agrees"
