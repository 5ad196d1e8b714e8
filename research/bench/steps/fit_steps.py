"""Time of whole steps of `model.fit`, relative to Adam on the same layers.

Shared by the suite `step` on a CPU and on a GPU.
"""

import dataclasses

from keras_qpsbgd import backends
from keras_qpsbgd.backends.graph import native
from keras_qpsbgd.cli.console import WIDTH
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.optimizers import QPSBGD
from research.bench import timing
from research.bench.steps import step_networks

DEFAULT = backends.get("native").preset
SOLVERS = {
    **{name: {"name": "native", "preset": name} for name in native.PRESETS},
    "ridge": "ridge",
    "sign": "sign",
}
# Distinguishable with any color vision (Okabe and Ito).
COLORS = ("#56b4e9", "#0072b2", "#004266", "#d55e00", "#999999", "#009e73")
BAR = 0.16
MIN_BLOCKS = 3
MIN_STEPS = 3


def measure(name, network, solvers, options):
    """Measures the steps of a network.

    Args:
        name: String. Name of the network, for the status line.
        network: A `step_networks.Network`.
        solvers: Names of `SOLVERS`.
        options: `Options`.

    Returns:
        A dictionary, see `compare`.
    """
    sides = {}
    for solver in solvers:
        show_status(f"{name}, {solver}: compiling")
        training = step_networks.Training(
            network, QPSBGD(network.rate, SOLVERS[solver], seed=0)
        )
        sides[solver] = _fitted(training, options)
    adam = step_networks.Training(network, "adam")
    return compare(name, adam.side(steps_of(network, options), 0), sides)


def steps_of(network, options):
    """Returns the number of steps in a block with Adam."""
    return network.steps // 10 if options.quick else network.steps


def _fitted(training, options):
    """Returns a side whose blocks fit into the available time."""
    training.side(MIN_STEPS, 0).block()  # tracing and compilation
    _, seconds = timing.per_step(training.side(MIN_STEPS, 0))
    block, total = (0.3, 1.0) if options.quick else (1.0, 10.0)
    steps = int(block / seconds)
    steps = min(steps_of(training.network, options), steps)
    steps = max(MIN_STEPS, steps)
    blocks = int(total / (steps * seconds))
    return training.side(steps, max(MIN_BLOCKS, min(20, blocks)))


def compare(name, yardstick, sides):
    """Returns the times of the yardstick and of the sides as dictionaries."""
    base, found = timing.compare(
        yardstick, sides, show=lambda text: show_status(f"{name}, {text}")
    )
    return {
        "yardstick": dataclasses.asdict(base),
        "sides": {side: dataclasses.asdict(t) for side, t in found.items()},
    }


def table(rows, kind, title):
    """Returns the ratios by network and solver.

    Args:
        rows: Dictionary of the results of `measure`.
        kind: String, `"cpu"` or `"wall"`.
        title: String. First line.
    """
    if not rows:
        return ""
    columns = columns_of(rows)
    head = f"{'network':<16}{'Adam ms':>9}"
    width = min(10, (WIDTH - len(head)) // len(columns))
    head += "".join(f"{name:>{width}}" for name in columns)
    lines = [title, head, "-" * len(head)]
    for name, row in rows.items():
        cells = "".join(
            f"{row['sides'][column][f'{kind}_ratio']:>{width}.2f}"
            if column in row["sides"]
            else f"{'-':>{width}}"
            for column in columns
        )
        lines.append(f"{name:<16}{1e3 * row['yardstick'][kind]:>9.2f}{cells}")
    return "\n".join(lines)


def columns_of(rows):
    """Returns the names of the solvers in the results."""
    names = {name: None for row in rows.values() for name in row["sides"]}
    return list(names)


def draw_panel(axes, rows, targets, bars="cpu", dots="wall"):
    """Draws the ratios of all networks.

    Args:
        axes: Axes of Matplotlib.
        rows: Dictionary of the results of `measure`.
        targets: Maximum ratios by network and solver.
        bars: String. The kind of time that the bars show.
        dots: String (optional). The kind of time that the dots show. If
            `None`, there are no dots.
    """
    from matplotlib.ticker import FuncFormatter
    from matplotlib.ticker import LogLocator
    from matplotlib.ticker import NullLocator

    for column in columns_of(rows):
        _draw_column(axes, rows, column, bars, dots)
    _draw_targets(axes, rows, targets)
    axes.axhline(1.0, color="#555555", linewidth=0.8)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.set_xticks(range(len(rows)), list(rows), fontsize=9)
    axes.set_xlim(-0.6, max(1, len(rows)) - 0.4)
    axes.set_ylabel("time relative to Adam")
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def finish_figure(figure, axes, note):
    """Adds the legend and a note on the symbols above the first panel."""
    axes.set_title(note, loc="right", fontsize=8, color="#555555")
    axes.set_ylim(bottom=0.7)  # shared by all panels
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=6, frameon=False
    )


def _draw_column(axes, rows, column, bars, dots):
    columns = columns_of(rows)
    color = COLORS[columns.index(column) % len(COLORS)]
    label = column
    for place, row in enumerate(rows.values()):
        if column not in row["sides"]:
            continue
        times = row["sides"][column]
        x = place + _offset(columns, column)
        axes.bar(x, times[f"{bars}_ratio"], BAR, color=color, label=label)
        label = None  # only one legend entry
        if dots:
            ratio = times[f"{dots}_ratio"]
            axes.plot(x, ratio, "wo", mec="black", markersize=4)


def _draw_targets(axes, rows, targets):
    columns = columns_of(rows)
    for place, name in enumerate(rows):
        for column, target in targets.get(name, {}).items():
            if column in rows[name]["sides"]:
                x = place + _offset(columns, column)
                ends = [x - 0.6 * BAR, x + 0.6 * BAR]
                axes.plot(ends, [target, target], color="black", linewidth=2.5)


def _offset(columns, column):
    """Returns the position of a bar relative to the center of its group."""
    return (columns.index(column) - (len(columns) - 1) / 2) * BAR
