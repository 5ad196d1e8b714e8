"""Tables of results for the terminal and in Markdown.

All tables have the same order: the reference, its variants, then the other
methods by name. Every method is compared with the reference by the first
measure of the task. The p-values of a table are corrected by Holm's method.
"""

import dataclasses
import math

import numpy as np

from research.engine import statistics
from research.engine.statistics import PairedTest
from research.engine.statistics import mean_and_error

WIDTH = 80
GAP = "  "


@dataclasses.dataclass(frozen=True)
class TaskReport:
    """One table and one figure.

    Attributes:
        name: `task` of its records.
        title: heading.
        measures: measures in the table. Methods are compared by the first.
        curves: measures that are drawn over epochs.
    """

    name: str
    title: str
    measures: tuple
    curves: tuple


@dataclasses.dataclass(frozen=True)
class Row:
    """The results of a method on a task.

    Attributes:
        method: label of the method.
        configuration: the chosen configuration.
        values: dict that maps keys of measures to dicts `{seed: value}`.
        comparison: test of the reference minus the method, corrected for all
            methods, or `None` for the reference.
    """

    method: str
    configuration: dict
    values: dict
    comparison: PairedTest | None = None


def methods_of(runs, reference):
    """Returns the labels of the methods in the order of the tables."""
    names = {run["method"] for run in runs}
    return sorted(
        names,
        key=lambda name: (
            name != reference,
            not name.startswith(reference),
            name.casefold(),
        ),
    )


def select(runs, **wanted):
    """Returns the runs with the given task, method or stage."""
    return [
        run
        for run in runs
        if all(run[key] == value for key, value in wanted.items())
    ]


def rows_of(runs, task, reference):
    """Returns the results of all methods on a task, from their fresh runs.

    Args:
        runs: records.
        task: a `TaskReport`.
        reference: label of the method that the others are compared with.

    Returns:
        List of `Row`.

    Raises:
        ValueError: If a method has fresh runs of several configurations.
    """
    fresh = select(runs, task=task.name, stage="fresh")
    first = task.measures[0]
    rows = []
    for method in methods_of(fresh, reference):
        found = statistics.by_configuration(select(fresh, method=method))
        if len(found) > 1:
            raise ValueError(
                "The fresh runs of a method must all have the same "
                "configuration. If its choice has changed, use another "
                "folder, or delete the runs of the earlier choice. Received: "
                f'{len(found)} configurations of "{method}" in "{task.name}"'
            )
        configuration, group = found[0]
        values = {
            measure.key: statistics.by_seed(group, measure)
            for measure in task.measures
        }
        rows.append(Row(method, configuration, values))
    return compared(rows, first, reference)


def compared(rows, measure, reference):
    """Returns the rows with the tests of the reference against all others."""
    values = {row.method: row.values[measure.key] for row in rows}
    ours = values.pop(reference, {})
    tests = [statistics.paired_test(ours, found) for found in values.values()]
    corrected = dict(zip(values, statistics.holm(tests)))
    return [
        dataclasses.replace(row, comparison=corrected.get(row.method))
        for row in rows
    ]


# Numbers as text


def number(value, measure):
    """Formats a mean without its error: `80.6 %`, `0.4351`."""
    if measure.percent:
        return f"{100 * value:.1f} %"
    return f"{value:.{_mean_decimals(value)}f}"


def mean_text(values, measure):
    """Formats mean and standard error: `80.6 +- 0.3 %`, `97.57 +- 0.03 %`."""
    values = np.asarray(list(values), dtype=float)
    diverged = int(np.sum(~np.isfinite(values)))
    if diverged:
        return f"{diverged} of {len(values)} diverged"
    mean, error = mean_and_error(values)
    if math.isnan(error):
        return number(mean, measure)
    if measure.percent:
        decimals = 2 if 0.00005 < error < 0.001 else 1
        return f"{100 * mean:.{decimals}f} +- {100 * error:.{decimals}f} %"
    decimals = _mean_decimals(mean)
    return f"{mean:.{decimals}f} +- {error:.{decimals}f}"


def row_text(row, measure):
    """Formats mean and standard error of a `Row`."""
    return mean_text(row.values[measure.key].values(), measure)


def _mean_decimals(value):
    """Returns six decimals for a small loss, which four would round to 0."""
    return 6 if 0 < abs(value) < 0.001 else _decimals(value)


def _decimals(value):
    """Returns the number of decimals for four significant digits, at most 4."""
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return max(0, 4 - whole)


def difference_text(test, measure):
    """Formats a difference and its 95 % interval.

    Args:
        test: a `PairedTest`.
        measure: its `Measure`.

    Returns:
        A text such as `-3.2 pp (-4.1 to -2.3)`, in percentage points, or
        `+0.0114 (-0.0021 to +0.0249)`.
    """
    if math.isnan(test.difference):
        return "-"
    widest = max(map(abs, (test.difference, test.low, test.high)))
    factor, unit, decimals = 1, "", _decimals(widest)
    if measure.percent:
        factor, unit, decimals = 100, " pp", 2 if widest < 0.01 else 1

    def text(value):
        # Adding zero turns -0.0 into 0.0, which prints without a minus.
        return f"{round(factor * value, decimals) + 0.0:+.{decimals}f}"

    found = f"{text(test.difference)}{unit}"
    if math.isnan(test.low):
        return found
    return f"{found} ({text(test.low)} to {text(test.high)})"


def p_text(p):
    """Formats a p-value: `0.023` or `<0.001`."""
    if math.isnan(p):
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def configuration_text(configuration):
    """Formats a configuration: `rate 0.02, real rate 0.01`."""
    settings = sorted(configuration.items())
    return ", ".join(setting_text(*pair) for pair in settings) or "-"


def setting_text(name, value):
    """Formats a setting: `real rate 0.01`. Name or value may be `None`."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    words = [(name or "").replace("_", " "), "" if value is None else text]
    return " ".join(filter(None, words))


# Tables: a header and rows of text


def table_of(rows, task):
    """Returns the header and the rows of the table of a task.

    Args:
        rows: list of `Row`.
        task: a `TaskReport`.
    """
    first = task.measures[0]
    head = [
        "method",
        *(measure.label for measure in task.measures),
        "seeds",
        "difference, 95 % interval",
        "p (Holm)",
        "verdict",
        "configuration",
    ]
    body = []
    for row in rows:
        line = [row.method]
        line += [row_text(row, measure) for measure in task.measures]
        line += [str(len(row.values[first.key])), *_compared(row, first)]
        body.append([*line, configuration_text(row.configuration)])
    return head, body


def _compared(row, measure):
    if row.comparison is None:
        return ["", "", "reference"]
    # A `Row` has the reference minus the method.
    return [
        difference_text(row.comparison.reversed(), measure),
        p_text(row.comparison.p),
        statistics.verdict(row.comparison, measure),
    ]


def text_table(head, rows, width=WIDTH):
    """Returns a table as text.

    Columns that do not fit into the width are printed below, and the first
    column is repeated there.
    """
    first = [_cut(line[0], width // 3) for line in (head, *rows)]
    left = max(map(len, first))
    room = width - left - len(GAP)
    blocks, used = [[]], 0
    for index in range(1, len(head)):
        column = [_cut(line[index], room) for line in (head, *rows)]
        size = max(map(len, column))
        if used and used + size + len(GAP) * len(blocks[-1]) > room:
            blocks.append([])
            used = 0
        blocks[-1].append([f"{cell:<{size}}" for cell in column])
        used += size
    return "\n\n".join(_block(first, left, block) for block in blocks)


def _block(first, left, columns):
    lines = [
        GAP.join([f"{cell:<{left}}", *cells]).rstrip()
        for cell, *cells in zip(first, *columns)
    ]
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0], rule, *lines[1:]])


def _cut(text, width):
    return text if len(text) <= width else text[: width - 3] + "..."


def markdown_table(head, rows):
    """Returns a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
