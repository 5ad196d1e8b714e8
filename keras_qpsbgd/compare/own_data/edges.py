"""Warns where a better configuration may lie beyond those that were tried."""

import warnings

from keras_qpsbgd.compare.report import statistics

# The setting that a grid is about: that of Bop is its threshold.
SETTINGS = ("rate", "threshold", "real_rate")


def warn_of_edges(runs, grids, measure):
    """Warns of every method whose best setting is at the edge of its grid.

    Args:
        runs: dict, method -> its records.
        grids: dict, method -> list of configurations.
        measure: the `Measure` that chose among them.
    """
    for key, grid in grids.items():
        tuning = [run for run in runs[key] if run["stage"] == "tuning"]
        if not tuning:
            continue
        groups = statistics.by_configuration(tuning)
        scores = [statistics.score(group, measure) for _, group in groups]
        best = [
            configuration
            for (configuration, _), score in zip(groups, scores)
            if score == max(scores)
        ]
        found = _edge(best, grid)
        if found is not None:
            name, value, end, further = found
            warnings.warn(
                f'The best `{name}` of "{key}", {value:g}, is the {end} of its '
                "grid, so a better one may lie beyond it. Try "
                f'`grids={{"{key}": {further}}}`, with another folder as '
                "`out`, if you use one.",
                stacklevel=3,
            )


def _edge(best, grid):
    """Setting, value, end and a further grid; `None` if there is no edge.

    Args:
        best: the configurations with the best score. An equally good one
            between the ends says that there is nothing beyond.
        grid: all configurations.
    """
    for name in SETTINGS:
        if any(name not in one for one in best):
            continue
        ends = {statistics.edge(one, grid, name) for one in best}
        if len(ends) == 1 and None not in ends:
            (end,) = ends
            further = beyond(best[0], grid, name, end)
            return name, best[0][name], end, further
    return None


def beyond(configuration, grid, name, end):
    """A grid of the same size, half of which lies beyond the edge.

    Args:
        configuration: the chosen one, at the edge.
        grid: the grid.
        name: of the setting.
        end: `"lowest"` or `"highest"`.
    """
    values = sorted({one[name] for one in grid if name in one})
    if end == "lowest":
        values.reverse()
    step = values[-1] / values[-2]
    kept = values[-(len(grid) // 2) :]
    added = len(grid) - len(kept)
    kept += [values[-1] * step ** (k + 1) for k in range(added)]
    found = []
    for value in sorted(kept):
        one = {**configuration, name: _rounded(value)}
        if name == "rate" and "regularization" in one:
            # As strong as before in all steps, see `grids`.
            pull = configuration["regularization"] * configuration["rate"]
            one["regularization"] = _rounded(pull / value)
        found.append(one)
    return found


def _rounded(value):
    return float(f"{value:.2g}")
