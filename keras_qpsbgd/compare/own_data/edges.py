"""Warns where a better configuration may lie beyond those that were tried."""

import warnings

from keras_qpsbgd.compare.report import statistics

# The setting that a grid is about: that of Bop is its threshold.
SETTINGS = ("rate", "threshold", "real_rate")


def warn_of_edges(chosen, grids):
    """Warns of every method whose best setting is at the edge of its grid.

    Args:
        chosen: dict, method -> configuration.
        grids: dict, method -> list of configurations.
    """
    for key, grid in grids.items():
        configuration = chosen[key]
        for name in SETTINGS:
            if name not in configuration:
                continue
            end = statistics.edge(configuration, grid, name)
            if end is not None:
                further = beyond(configuration, grid, name, end)
                warnings.warn(
                    f'The best `{name}` of "{key}", {configuration[name]:g}, '
                    f"is the {end} of its grid, so a better one may lie beyond "
                    f'it. Try `grids={{"{key}": {further}}}`, with another '
                    "folder as `out`, if you use one.",
                    stacklevel=3,
                )
                break


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
