"""The configurations and seeds of each method, in Markdown."""

from keras_qpsbgd.compare.report import statistics
from keras_qpsbgd.compare.report import tables

# Settings whose chosen value may be at an end of the grid.
SETTINGS = ("rate", "real_rate", "threshold")


def grids_table(runs, task, reference, seconds=None):
    """Returns the configurations and seeds of each method in Markdown.

    The means are those of the tuning runs, by the validation measure that
    chooses. The table says so if fresh runs do not have the best configuration,
    or if they have tuning seeds.

    Args:
        runs: Records.
        task: A `TaskReport`.
        reference: Label of the method of the first row.
        seconds: Dictionary (optional). Median CPU seconds of a fresh run by
            method.
    """
    runs = tables.select(runs, task=task.name)
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
    text = tables.seeds_text(fresh)
    return (
        f"{text} (also tuned on: {tables.seeds_text(both)})" if both else text
    )


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
    return [tables.seeds_text(tuning), str(len(found)), "; ".join(texts)]


def _edge(configuration, grid):
    ends = [f"the {end}" for end in _ends(configuration, grid)]
    return f" ({', '.join(ends)} of the grid)" if ends else ""


def _ends(configuration, grid):
    """Returns the settings at an end of the grid, such as "lowest rate"."""
    return [
        f"{end} {tables.setting_text(name, None)}"
        for name in SETTINGS
        for end in [statistics.edge(configuration, grid, name)]
        if end
    ]


def ends_sentence(runs, task, reference):
    """Names the methods whose chosen value is at an end of their grid.

    Args:
        runs: Records.
        task: A `TaskReport`.
        reference: Label of the method that comes first.

    Returns:
        A sentence, or `""` if there are none.
    """
    runs = tables.select(runs, task=task.name)
    found = []
    for method in tables.methods_of(runs, reference):
        tuning = tables.select(runs, method=method, stage="tuning")
        fresh = tables.select(runs, method=method, stage="fresh")
        if tuning and fresh:
            grid = [run["configuration"] for run in tuning]
            ends = _ends(fresh[0]["configuration"], grid)
            if ends:
                found.append(f"{method} ({', '.join(ends)})")
    if not found:
        return ""
    return (
        f"Chosen at an end of the grid: {', '.join(found)}. A better value may "
        "lie beyond it."
    )
