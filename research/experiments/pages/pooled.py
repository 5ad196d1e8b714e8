"""Compares methods over all tasks of an experiment at once.

A seed draws the same first weights and the same order of the batches for every
task, so the differences of one seed are not independent. They are averaged over
the tasks, and the paired t-test uses these averages, one per seed. All tasks
have the same weight, and the difference may vary between tasks.

For comparison there is also the p-value of a paired t-test that treats every
difference of a task and a seed as independent.
"""

import dataclasses

import numpy as np

from keras_qpsbgd.compare.report import protocol
from keras_qpsbgd.compare.report import statistics
from keras_qpsbgd.compare.report import tables
from keras_qpsbgd.compare.report.statistics import PairedTest

EXPLANATION = (
    "A seed draws the same first weights and the same order of the batches for "
    "all tasks, so the differences of one seed are not independent. Therefore "
    "the differences of a seed are averaged over the tasks. The verdict and p "
    "are those of a two-sided paired t-test over these averages, with one pair "
    "per seed. For comparison, the last column has the p-value of a paired "
    "t-test that treats every difference of a task and a seed as independent."
)


@dataclasses.dataclass(frozen=True)
class PooledReport(protocol.ExperimentReport):
    """A report whose tasks share measures and seeds and are compared together.

    Attributes:
        pooled: what the tasks are, such as "the three pairs".
    """

    pooled: str = ""


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


def compare(runs, names, measure, reference):
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


def table(rows, report, measure):
    """Returns a comparison in Markdown.

    Args:
        rows: List of `Pooled`.
        report: A `PooledReport`.
        measure: The `Measure` compared.
    """
    head = [
        f"method: difference in {measure.label}",
        *(task.title for task in report.tasks),
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
