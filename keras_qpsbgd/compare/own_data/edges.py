"""Warns if the best configuration is at the edge of a grid."""

import warnings

from keras_qpsbgd.compare.report import statistics

# A grid varies one of these. For Bop it is the threshold.
SETTINGS = ("rate", "threshold", "real_rate")
ADDED = 2  # configurations of a wider grid
# Two rounded values that differ by this factor are never equal.
MIN_FACTOR = 2.0


def warn_about_edges(runs, grids, measure):
    """Warns if the best setting of a method is at the edge of its grid.

    The warning proposes wider grids for all methods, because all grids must
    have the same size. They contain the old configurations, so runs that are
    already in a folder are reused.

    Args:
        runs: dict that maps the key of a method to its records.
        grids: dict that maps the key of a method to its configurations.
        measure: the `Measure` by which the best configuration was chosen.
    """
    tuned = {
        key: _best(runs[key], measure)
        for key in grids
        if any(run["stage"] == "tuning" for run in runs[key])
    }
    edges = {key: _edge(best, grids[key]) for key, best in tuned.items()}
    if not any(edges.values()):
        return
    found = [
        f'- "{key}": `{edge[0]}` {tuned[key][0][edge[0]]:g} is the {edge[1]} '
        "in its grid"
        for key, edge in edges.items()
        if edge
    ]
    wider = [
        f"    {key!r}: "
        f"{widen(best[0], grids[key], *(edges[key] or (None, None)))},"
        for key, best in tuned.items()
    ]
    lines = [
        "The best configuration is at the edge of the grid, so a better one "
        "may lie beyond it:",
        *found,
        "Call `compare` again with wider grids. If you pass the same `out`, "
        "its runs are reused.",
        "grids = {",
        *wider,
        "}",
    ]
    warnings.warn("\n".join(lines), stacklevel=3)


def _best(runs, measure):
    """Returns all configurations with the best score on tuning runs."""
    tuning = [run for run in runs if run["stage"] == "tuning"]
    groups = statistics.by_configuration(tuning)
    scores = [statistics.score(group, measure) for _, group in groups]
    return [
        configuration
        for (configuration, _), score in zip(groups, scores)
        if score == max(scores)
    ]


def _edge(best, grid):
    """Returns the setting and the end of the grid where the best one is.

    Args:
        best: the configurations with the best score. If one of them is not at
            the edge, there is no reason to look beyond it.
        grid: all configurations.

    Returns:
        A pair such as `("rate", "highest")`, or `None`.
    """
    for name in SETTINGS:
        # Multiples of zero or of a negative value do not widen the grid.
        if any(one.get(name, 0.0) <= 0.0 for one in best):
            continue
        ends = {statistics.edge(one, grid, name) for one in best}
        if len(ends) == 1 and None not in ends:
            return name, ends.pop()
    return None


def widen(best, grid, name=None, end=None):
    """Adds two configurations to a grid.

    Args:
        best: the best configuration. The new ones differ from it in one
            setting.
        grid: list of configurations.
        name: the setting to vary. `None` uses the one that the grid varies.
        end: `"lowest"` or `"highest"` adds both values at that end. `None` adds
            one at each end.
    """
    name = name or _varied(grid)
    values = sorted({one[name] for one in grid if one.get(name, 0.0) > 0.0})
    if not values:
        return grid
    counts = {"lowest": (ADDED, 0), "highest": (0, ADDED), None: (1, 1)}[end]
    low, high = _factor(values[:2]), _factor(values[-2:])
    below = [values[0] / low**k for k in range(counts[0], 0, -1)]
    above = [values[-1] * high**k for k in range(1, counts[1] + 1)]
    found = [
        *(_with(best, name, value) for value in below),
        *grid,
        *(_with(best, name, value) for value in above),
    ]
    return [{key: _plain(one[key]) for key in one} for one in found]


def _varied(grid):
    """Returns the first setting that has several values in a grid."""
    counts = {name: len({one.get(name) for one in grid}) for name in SETTINGS}
    return max(SETTINGS, key=lambda name: counts[name] > 1)


def _factor(values):
    return max(values[-1] / values[0], MIN_FACTOR)


def _with(configuration, name, value):
    found = {**configuration, name: _rounded(value)}
    if name == "rate" and "regularization" in found:
        # Keeps the total pull of ProxQuant over all steps, see `grids`.
        pull = configuration["regularization"] * configuration["rate"]
        found["regularization"] = _rounded(pull / value)
    return found


def _plain(value):
    """Converts a NumPy scalar to a Python number, which prints shorter."""
    return value.item() if hasattr(value, "item") else value


def _rounded(value):
    return float(f"{value:.2g}")
