"""What a table says, in words."""

import dataclasses
import math

from keras_qpsbgd.compare.report import statistics
from keras_qpsbgd.compare.report import tables
from keras_qpsbgd.compare.report.statistics import mean_and_error


def sentences(report, task, runs):
    """All sentences on the table of a task."""
    if task.kind == "cells":
        return [_best_cell(task, runs)]
    reference = report.reference_method
    rows = tables.rows_of(runs, task, reference)
    said = [paper_sentence(rows, task, reference)]
    first, *others = task.measures
    # Who has the lower training loss need not be better on other data.
    for measure in [first, *(m for m in others if m.key.startswith("test_"))]:
        compared = dataclasses.replace(task, measures=(measure,))
        rows = tables.rows_of(runs, compared, reference)
        said.append(rivals_sentence(rows, reference, measure))
    if task.literature:
        values = (
            f"{label}: {tables.paper_text(value, task.measures[0])}"
            for label, value in task.literature.items()
        )
        said.append(f"Published elsewhere: {'; '.join(values)}.")
    return [sentence for sentence in said if sentence]


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
        f"Of {len(cells)} cells the best is "
        f"{tables.configuration_text(configuration)}, with "
        f"{measure.label} {tables.mean_text(values, measure)}. Nothing was "
        "chosen by these runs, and the best of many cells is better than it "
        "would be on other seeds."
    )


def paper_sentence(rows, task, reference):
    """Whether the value of the reference agrees with the paper's."""
    measure = task.measures[0]
    ours = next((row for row in rows if row.method == reference), None)
    paper = task.paper.get(reference)
    if ours is None:
        return f"{reference} has not been run."
    if paper is None:
        return "The paper gives no value, so no number can be compared."
    if paper == "figure only":
        return "The paper gives a figure only, so no number can be compared."
    if isinstance(paper, str):
        return f"The paper: {paper}; so no number can be compared."
    theirs = tables.paper_text(paper, measure)
    word = agreement(ours, paper, measure)
    start = f"{reference}, {measure.label}: {tables.row_text(ours, measure)}"
    if word is None:
        return (
            f"{start}; without a standard error it cannot be told whether it "
            f"agrees with the paper's {theirs}."
        )
    ending = {"agrees": "agrees with"}.get(word, word)
    return f"{start} here, which {ending} the paper's {theirs}."


def rivals_sentence(rows, reference, measure):
    """Which methods win, tie and lose against the reference."""
    others = [row for row in rows if row.method != reference]
    if not others or len(others) == len(rows):
        return ""
    seeds = max(row.comparison.pairs for row in others)
    said = []
    for word, verb in (
        ("better", "loses to"),
        ("tie", "ties with"),
        ("worse", "beats"),
        ("not tested", "is not tested against"),
    ):
        names = [
            _with_doubt(row, seeds) for row in others if row.verdict == word
        ]
        if names or word != "not tested":
            said.append(f"{verb} {', '.join(names) or 'none'}")
    return (
        f"By the paired test on {measure.label} {reference} {'; '.join(said)}."
    )


def _with_doubt(row, seeds):
    """A method, with what weakens the verdict on it."""
    p, pairs = row.comparison.p, row.comparison.pairs
    doubts = []
    if statistics.STRICT_LEVEL <= p < statistics.LEVEL:
        doubts.append(f"p = {p:.3f} only")
    if pairs < seeds:
        doubts.append(f"{pairs} seeds only")
    return f"{row.method} [{', '.join(doubts)}]" if doubts else row.method


def agreement(row, paper, measure):
    """What our value is, against the paper's, within two standard errors.

    Args:
        row: `Row` of the method.
        paper: number, range, text or `None`.
        measure: the `Measure`.

    Returns:
        "agrees", "is above" or "is below"; `None` if it cannot be told.
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
