"""Tables of results, for the terminal and in Markdown.

Methods stand in the same order everywhere: the reference first, its variants,
the others by name. All are compared with the reference by the first measure of
the task.
"""

import dataclasses
import math

import numpy as np

from keras_qpsbgd.compare.report import statistics
from keras_qpsbgd.compare.report.statistics import PairedTest
from keras_qpsbgd.compare.report.statistics import mean_and_error

WIDTH = 80
GAP = "  "


@dataclasses.dataclass(frozen=True)
class Row:
    """A method on a task.

    Attributes:
        method: its name.
        configuration: the chosen one.
        values: measure key -> {seed: value}.
        comparison: the reference minus it; `None` for the reference.
        verdict: what it is against the reference: "better", "tie", "worse",
            "not tested"; empty for the reference.
    """

    method: str
    configuration: dict
    values: dict
    comparison: PairedTest | None
    verdict: str


def methods_of(runs, reference):
    """Names of methods: the reference, its variants, the others by name."""
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
    """Runs with the given task, method or stage."""
    return [
        run
        for run in runs
        if all(run[key] == value for key, value in wanted.items())
    ]


def rows_of(runs, task, reference):
    """Methods on a task, from their fresh runs.

    Args:
        runs: records.
        task: a `TaskReport`.
        reference: method that the others are compared with.

    Returns:
        List of `Row`.

    Raises:
        ValueError: a method has fresh runs of several configurations.
    """
    fresh = select(runs, task=task.name, stage="fresh")
    first = task.measures[0]
    ours = statistics.by_seed(select(fresh, method=reference), first)
    rows = []
    for method in methods_of(fresh, reference):
        found = statistics.by_configuration(select(fresh, method=method))
        if len(found) > 1:
            raise ValueError(
                f"`runs` must have one configuration of {method} at the stage "
                f"fresh of {task.name}. Received: {len(found)}"
            )
        configuration, group = found[0]
        values = {
            measure.key: statistics.by_seed(group, measure)
            for measure in task.measures
        }
        comparison, word = None, ""
        if method != reference:
            comparison = statistics.paired_test(ours, values[first.key])
            word = statistics.verdict(comparison, first)
        rows.append(Row(method, configuration, values, comparison, word))
    return rows


# Numbers as text


def number(value, measure):
    """A mean without its error: `80.6 %`, `0.4351`."""
    if measure.percent:
        return f"{100 * value:.1f} %"
    return f"{value:.{_mean_decimals(value)}f}"


def mean_text(values, measure):
    """Mean and standard error: `80.6 +- 0.3 %`, `97.57 +- 0.03 %`."""
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
    """Mean and standard error of a `Row`."""
    return mean_text(row.values[measure.key].values(), measure)


def _mean_decimals(value):
    """Two more where four would leave nothing of a small loss."""
    return 6 if 0 < abs(value) < 0.001 else _decimals(value)


def _decimals(value):
    """Four digits, and no more than four after the point."""
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return max(0, 4 - whole)


def difference_text(value, measure):
    """With its sign; percentage points are `pp`."""
    if math.isnan(value):
        return "-"
    if measure.percent:
        decimals = 2 if abs(value) < 0.01 else 1
        return f"{100 * value:+.{decimals}f} pp"
    return f"{value:+.{_decimals(value)}f}"


def p_text(p):
    """`0.023`, or `<0.001`."""
    if math.isnan(p):
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def paper_text(value, measure):
    """A value of the paper: a number, a range, or its words."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    ends = value if isinstance(value, tuple) else (value,)
    factor, unit = (100, " %") if measure.percent else (1, "")
    return " to ".join(f"{factor * end:.4g}" for end in ends) + unit


def configuration_text(configuration):
    """`rate 0.02, real rate 0.01`."""
    settings = sorted(configuration.items())
    return ", ".join(setting_text(*pair) for pair in settings) or "-"


def setting_text(name, value):
    """`real rate 0.01`; either may be `None`."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    words = [(name or "").replace("_", " "), "" if value is None else text]
    return " ".join(filter(None, words))


# Tables: a head and rows of text


def table_of(runs, task, reference):
    """Head and rows of the table of a task."""
    if task.kind == "cells":
        return _cells(runs, task, reference)
    rows = rows_of(runs, task, reference)
    first = task.measures[0]
    head = [
        "method",
        *(measure.label for measure in task.measures),
        "seeds",
        f"{reference} minus it",
        "p",
        "it is",
        *([] if task.paper is None else ["paper"]),
        "configuration",
    ]
    return head, [
        [
            row.method,
            *(row_text(row, measure) for measure in task.measures),
            str(len(row.values[first.key])),
            *_compared(row, first),
            *_of_paper(row, task),
            configuration_text(row.configuration),
        ]
        for row in rows
    ]


def _of_paper(row, task):
    if task.paper is None:
        return []
    return [paper_text(task.paper.get(row.method), task.measures[0])]


def _compared(row, measure):
    if row.comparison is None:
        return ["", "", ""]
    return [
        difference_text(row.comparison.difference, measure),
        p_text(row.comparison.p),
        row.verdict,
    ]


def axes_of(runs, task):
    """The settings that differ between the cells of an ablation.

    Returns:
        Names of the setting of rows and of that of columns, and the sorted
        values of both. A setting that is missing has the name `None` and the
        value `None`.

    Raises:
        ValueError: more than two settings differ.
    """
    cells = [run["configuration"] for run in select(runs, task=task.name)]
    # Methods may have settings of their own.
    shared = sorted(set.intersection(*(set(cell) for cell in cells)))
    values = {key: sorted({cell[key] for cell in cells}) for key in shared}
    names = [key for key in values if len(values[key]) > 1]
    if len(names) > 2:
        raise ValueError(
            f"Cells of {task.name} must differ in two settings at most. "
            f"Received: {', '.join(names)}"
        )
    values[None] = [None]
    column, row = [None, None, *names][-2:]
    return row, column, values[row], values[column]


def cell_of(runs, row, column, row_value, column_value):
    """Runs of a cell; see `axes_of`."""
    return [
        run
        for run in runs
        if run["configuration"].get(row) == row_value
        and run["configuration"].get(column) == column_value
    ]


def _cells(runs, task, reference):
    """Rows are one setting, columns the other."""
    runs = select(runs, task=task.name)
    row, column, row_values, column_values = axes_of(runs, task)
    measure = task.measures[0]
    head = ["method", setting_text(row, None)]
    head += [setting_text(column, value) for value in column_values]
    body = []
    for method in methods_of(runs, reference):
        of_method = select(runs, method=method)
        for value in row_values:
            line = [method, setting_text(None, value)]
            for other in column_values:
                cell = cell_of(of_method, row, column, value, other)
                values = statistics.by_seed(cell, measure).values()
                line.append(mean_text(values, measure) if cell else "-")
            body.append(line)
    return head, body


def terminal(runs, task, reference):
    """The table of a task as text, at most 80 columns wide.

    What does not fit beside the rest stands below it, next to the methods
    again.
    """
    return text_table(*table_of(runs, task, reference))


def text_table(head, rows, width=WIDTH):
    """A table as text; long ones go on below, first column repeated."""
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


def markdown(runs, task, reference):
    """The table of a task in Markdown."""
    return markdown_table(*table_of(runs, task, reference))


def markdown_table(head, rows):
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def grids(runs, task, reference):
    """Markdown lists of what was tried for each method, and the seeds.

    The means are those of the tuning runs, by the measure of validation data
    that decides. Should the fresh runs have another configuration than the
    best, or seeds of the tuning runs, the list says so.
    """
    runs = select(runs, task=task.name)
    measure = task.chosen_by
    lines = []
    for method in methods_of(runs, reference):
        tuning = select(runs, method=method, stage="tuning")
        fresh = select(runs, method=method, stage="fresh")
        lines.append(f"- {method}: {_seeds_of_stages(tuning, fresh)}")
        ran = [run["configuration"] for run in fresh]
        found = statistics.by_configuration(tuning)
        best = max(
            (statistics.score(group, measure) for _, group in found),
            default=None,
        )
        for configuration, group in found:
            mark = ""
            if configuration in ran:
                is_best = statistics.score(group, measure) == best
                mark = ", **chosen**" if is_best else ", run, but not the best"
                mark += _edge(configuration, [other for other, _ in found])
            values = statistics.by_seed(group, measure).values()
            lines.append(
                f"  - {configuration_text(configuration)}: "
                f"{mean_text(values, measure)}{mark}"
            )
    return "\n".join(lines)


def _edge(configuration, grid):
    """Says where a better rate may lie beyond those that were tried."""
    end = statistics.edge(configuration, grid, "rate")
    return f" (the {end} rate of the grid)" if end else ""


def _seeds_of_stages(tuning, fresh):
    if not tuning:
        return f"not tuned, fresh seeds {seeds_text(fresh)}"
    text = f"tuning seeds {seeds_text(tuning)}, fresh seeds {seeds_text(fresh)}"
    seeds = {run["seed"] for run in tuning}
    both = [run for run in fresh if run["seed"] in seeds]
    return f"{text} (in both: {seeds_text(both)})" if both else text


def seeds_text(runs):
    """`0 to 9`, or all of them where some are missing between."""
    seeds = sorted({run["seed"] for run in runs})
    if not seeds:
        return "none"
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))
