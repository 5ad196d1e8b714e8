"""The tables of a task: the methods, an ablation, and the configurations."""

from research.engine import statistics
from research.engine import tables

# Settings whose chosen value may be at an end of the grid.
SETTINGS = ("rate", "real_rate", "threshold")


def task_table(runs, task, reference):
    """Returns the header and the rows of the table of a task.

    Args:
        runs: Records.
        task: A `Task`.
        reference: Label of the method that the others are compared with.
    """
    runs = tables.select(runs, task=task.name)
    if task.kind == "cells":
        return _cells(runs, task, reference)
    rows = tables.rows_of(runs, task, reference)
    head, body = tables.table_of(rows, task)
    # `grids_table` has the configurations.
    head[-1:] = ["paper"] if task.paper else []
    for row, line in zip(rows, body):
        value = task.paper.get(row.method)
        text = paper_text(value, task.measures[0])
        line[-1:] = [text] if task.paper else []
    return head, body


def paper_text(value, measure):
    """Formats a value of the paper: a number, a range or text."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    ends = value if isinstance(value, tuple) else (value,)
    factor, unit = (100, " %") if measure.percent else (1, "")
    return " to ".join(f"{factor * end:.4g}" for end in ends) + unit


# Ablations


def axes_of(runs, task):
    """Returns the settings that differ between the cells of an ablation.

    Returns:
        The name of the setting of the rows, that of the columns, and the sorted
        values of both. If fewer than two settings differ, the missing one has
        the name `None` and the single value `None`.

    Raises:
        ValueError: If more than two settings differ.
    """
    cells = [
        run["configuration"] for run in tables.select(runs, task=task.name)
    ]
    # Methods may have settings that others do not have.
    shared = sorted(set.intersection(*(set(cell) for cell in cells)))
    values = {key: sorted({cell[key] for cell in cells}) for key in shared}
    names = [key for key in values if len(values[key]) > 1]
    if len(names) > 2:
        raise ValueError(
            f'The cells of "{task.name}" must differ in at most two settings. '
            f"Received: {', '.join(names)}"
        )
    values[None] = [None]
    column, row = [None, None, *names][-2:]
    return row, column, values[row], values[column]


def cell_of(runs, row, column, row_value, column_value):
    """Returns the runs of a cell, see `axes_of`."""
    return [
        run
        for run in runs
        if run["configuration"].get(row) == row_value
        and run["configuration"].get(column) == column_value
    ]


def _cells(runs, task, reference):
    """Returns a table with one setting as rows and the other as columns."""
    row, column, row_values, column_values = axes_of(runs, task)
    measure = task.measures[0]
    head = ["method", tables.setting_text(row, None)]
    head += [tables.setting_text(column, value) for value in column_values]
    body = []
    for method in tables.methods_of(runs, reference):
        of_method = tables.select(runs, method=method)
        for value in row_values:
            line = [method, tables.setting_text(None, value)]
            for other in column_values:
                cell = cell_of(of_method, row, column, value, other)
                values = statistics.by_seed(cell, measure).values()
                line.append(tables.mean_text(values, measure) if cell else "-")
            body.append(line)
    return head, body


# Configurations and seeds


def grids_table(runs, task, reference, times=()):
    """Returns the configurations and seeds of each method in Markdown.

    The means are those of the tuning runs, by the validation measure that
    chooses. The table says so if fresh runs do not have the best configuration,
    or if they have tuning seeds.

    Args:
        runs: Records.
        task: A `Task`.
        reference: Label of the method of the first row.
        times: List of dictionaries. CPU times of the runs.
    """
    runs = tables.select(runs, task=task.name)
    seconds = median_seconds(times, task)
    is_tuned = bool(tables.select(runs, stage="tuning"))
    head = ["method", "fresh seeds"]
    if seconds:
        head.append("CPU seconds of a fresh run (median)")
    if is_tuned:
        label = f"configurations with their {task.chosen_by.label}"
        head += ["tuning seeds", "tried", f"{label} (chosen one in bold)"]
    rows = []
    for method in tables.methods_of(runs, reference):
        tuning = tables.select(runs, method=method, stage="tuning")
        fresh = tables.select(runs, method=method, stage="fresh")
        row = [method, _fresh_seeds(tuning, fresh)]
        if seconds:
            row.append(_number(seconds.get(method)))
        if is_tuned:
            row += _tuning(tuning, fresh, task.chosen_by)
        rows.append(row)
    return tables.markdown_table(head, rows)


def _fresh_seeds(tuning, fresh):
    seeds = {run["seed"] for run in tuning}
    both = [run for run in fresh if run["seed"] in seeds]
    text = _seeds_text(fresh)
    return f"{text} (also tuned on: {_seeds_text(both)})" if both else text


def _seeds_text(runs):
    """Formats seeds: `0 to 9`, or a list if some are missing in between."""
    seeds = sorted({run["seed"] for run in runs})
    if not seeds:
        return "none"
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def _number(seconds):
    if seconds is None:
        return "-"
    return f"{seconds:.3g}" if seconds < 1000 else f"{seconds:.0f}"


def _tuning(tuning, fresh, measure):
    """Cells with the seeds, the number and the values of configurations."""
    found = statistics.by_configuration(tuning)
    if not found:
        return ["-", "-", "not tuned"]
    ran = [run["configuration"] for run in fresh]
    best = max(statistics.score(group, measure) for _, group in found)
    texts = []
    for configuration, group in found:
        values = statistics.by_seed(group, measure).values()
        name = tables.configuration_text(configuration)
        text = f"{name}: {tables.mean_text(values, measure)}"
        if configuration in ran:
            text = f"**{text}**"
            if statistics.score(group, measure) != best:
                text += " (run, but not the best)"
            text += _edge(configuration, [other for other, _ in found])
        texts.append(text)
    return [_seeds_text(tuning), str(len(found)), "; ".join(texts)]


def _edge(configuration, grid):
    """Returns a note if a setting is at an end of the grid."""
    ends = [
        f"the {end} {tables.setting_text(name, None)}"
        for name in SETTINGS
        for end in [statistics.edge(configuration, grid, name)]
        if end
    ]
    return f" ({', '.join(ends)} of the grid)" if ends else ""


def median_seconds(times, task):
    """Returns the median CPU seconds of a fresh run for each method.

    Not the mean: the first run of a method may include its compilation.
    """
    seconds = {}
    for time in tables.select(times, task=task.name, stage="fresh"):
        seconds.setdefault(time["method"], []).append(time["seconds"])
    return {
        method: sorted(values)[len(values) // 2]
        for method, values in seconds.items()
    }
