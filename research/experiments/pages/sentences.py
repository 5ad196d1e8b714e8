"""Describes a table in sentences."""

import dataclasses
import math

from keras_qpsbgd.compare.report import statistics
from keras_qpsbgd.compare.report import tables
from keras_qpsbgd.compare.report.statistics import mean_and_error

# Ties of at most this many seeds are listed with their differences: only large
# differences are significant then.
FEW_SEEDS = 5
# At most this many other ties are listed by name.
NAMED_TIES = 3
FIGURE_ONLY = "figure only"


def sentences(report, task, runs):
    """All sentences on the table of a task."""
    if task.kind == "cells":
        return [_best_cell(task, runs)]
    reference = report.reference_method
    rows = tables.rows_of(runs, task, reference)
    found = [paper_sentence(rows, task, reference)]
    first, *others = task.measures
    # A lower training loss need not mean better results on other data.
    for measure in [first, *(m for m in others if m.key.startswith("test_"))]:
        compared = dataclasses.replace(task, measures=(measure,))
        rows = tables.rows_of(runs, compared, reference)
        others = [row for row in rows if row.method != reference]
        if len(others) < len(rows):
            found.append(verdicts_sentence(others, reference, measure))
    if task.literature:
        values = (
            f"{label}: {tables.paper_text(value, task.measures[0])}"
            for label, value in task.literature.items()
        )
        found.append(f"Published elsewhere: {'; '.join(values)}.")
    return [sentence for sentence in found if sentence]


def _best_cell(task, runs):
    measure = task.measures[0]
    cells = []
    for method in tables.methods_of(runs, ""):
        of_method = tables.select(runs, method=method)
        for configuration, group in statistics.by_configuration(of_method):
            values = list(statistics.by_seed(group, measure).values())
            cells.append((mean_and_error(values)[0], configuration, values))
    cells = [cell for cell in cells if not math.isnan(cell[0])]
    _, configuration, values = max(
        cells, key=lambda cell: measure.sign * cell[0]
    )
    return (
        f"The best of the {len(cells)} cells is "
        f"{tables.configuration_text(configuration)}: {measure.label} "
        f"{tables.mean_text(values, measure)}. No choice was based on these "
        "runs. The best of many cells is partly luck; on other seeds expect "
        "less."
    )


def paper_sentence(rows, task, reference):
    """Compares the value of the reference with the paper's."""
    measure = task.measures[0]
    ours = next((row for row in rows if row.method == reference), None)
    paper = task.paper.get(reference)
    if ours is None:
        return f"{reference} has not been run."
    if paper is None:
        return "The paper gives no value for this task."
    if paper == FIGURE_ONLY:
        return (
            "The paper shows its results in a figure only, so there is no "
            "number to compare with."
        )
    if isinstance(paper, str):
        return f"The paper: {paper}; there is no number to compare with."
    theirs = tables.paper_text(paper, measure)
    word = agreement(ours, paper, measure)
    start = f"{reference}, {measure.label}: {tables.row_text(ours, measure)}"
    if word is None:
        return (
            f"{start}. Without a standard error this cannot be compared with "
            f"the paper's {theirs}."
        )
    ending = {"agrees": "agrees with"}.get(word, word)
    return f"{start}. This {ending} the paper's {theirs}."


def verdicts_sentence(others, reference, measure):
    """Names the methods that the reference is ahead of, behind or tied with.

    Args:
        others: List of `Row` or `Pooled`, without that of the reference.
        reference: Label of the reference.
        measure: The `Measure` compared.
    """
    if not others:
        return ""
    seeds = max(row.comparison.pairs for row in others)
    clauses = []
    for word, start in (("worse", "ahead of"), ("better", "behind")):
        found = [row for row in others if row.verdict == word]
        clauses.append(f"{start} {_listing(found, seeds) or 'no method'}")
    clauses += _ties(others, measure)
    untested = [row.method for row in others if row.verdict == "not tested"]
    if untested:
        clauses.append(f"not tested against {', '.join(untested)}")
    label = measure.label[0].upper() + measure.label[1:]
    return f"{label}: {reference} is {'; '.join(clauses)}."


def _ties(rows, measure):
    ties = [row for row in rows if row.verdict == "tie"]
    few = [row for row in ties if row.comparison.pairs <= FEW_SEEDS]
    others = [row.method for row in ties if row not in few]
    named = []
    for row in few:
        difference = tables.difference_text(-row.comparison.difference, measure)
        seeds = f"{row.comparison.pairs} seeds"
        named.append(f"{row.method} ({difference}, {_p(row)}, {seeds})")
    if len(others) > NAMED_TIES:
        named.append(f"the other {len(others)} methods")
    else:
        named += others
    return [f"tied with {', '.join(named)}"] if named else []


def _listing(rows, seeds):
    """Methods with notes; those with the same notes share them.

    Args:
        rows: List of `Row` or `Pooled`.
        seeds: Integer. The number of seeds is noted for methods with fewer.
    """
    groups = {}
    for row in rows:
        notes = _p(row)
        pairs = row.comparison.pairs
        if pairs < seeds or pairs <= FEW_SEEDS:
            notes += f", {pairs} seeds"
        groups.setdefault(notes, []).append(row.method)
    return ", ".join(
        f"{', '.join(names)} ({notes}{' each' * (len(names) > 1)})"
        for notes, names in groups.items()
    )


def _p(row):
    text = tables.p_text(row.comparison.p)
    return f"p {text[0]} {text[1:]}" if text[0] == "<" else f"p = {text}"


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
