"""Growth of time and memory with the inputs n, units m and rows B of a layer.

One of n, m and B varies in powers of two. The others stay at n = 512, m = 256
and B = 64. The suite measures

- `native` and `ridge`: one solve of the QUBOs of the layer inside a graph, with
  the problem in the same form as in `fit`;
- `step` and `Adam`: a whole step of `model.fit` with QP-SBGD (default backend)
  and with Adam, for a network n-m-10 of binary layers with batch normalization;
- `memory`: the peak growth of the process memory while that network trains, in
  a separate process for each size (fewer sizes). The target is that 784-4096-10
  with 128 rows takes less than 1 GiB more than with Adam.

An exponent is the slope of a least-squares line through the logarithms over the
upper half of the range.
"""

import dataclasses
import math

import numpy as np
from tensorflow import keras

from keras_qpsbgd import backends
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.compare.report import canvas
from keras_qpsbgd.optimizers import QPSBGD
from research.bench import timing
from research.bench.steps import layer_calls
from research.bench.steps import peak_memory
from research.bench.steps import step_networks

HELP = "growth of time and memory with layer size (12 minutes)"
THREADS = (1, 2)

BASE = {"n": 512, "m": 256, "B": 64}
RANGES = {
    "n": (64, 128, 256, 512, 1024, 2048, 4096),
    "m": (32, 64, 128, 256, 512, 1024, 2048),
    "B": (16, 32, 64, 128, 256, 512),
}
MEMORY_RANGES = {
    "n": (512, 2048, 4096),
    "m": (256, 1024, 2048),
    "B": (64, 256, 512),
}
MEMORY = "memory"
WIDE_LAYER = {"n": 784, "m": 4096, "B": 128}
MEMORY_TARGET = 2**30
TIMED = ("native", "ridge", "step", "Adam")

CALLS_PER_GRAPH = 4
MEBIBYTE = 2**20
# Distinguishable with any color vision (Okabe and Ito).
COLORS = {
    "native": "#0072b2",
    "ridge": "#d55e00",
    "step": "#004266",
    "Adam": "#777777",
}
MARKERS = {"native": "o", "ridge": "^", "step": "s", "Adam": "x"}


def names():
    """Returns the names that `--only` accepts."""
    return [*RANGES, MEMORY]


def measure(options):
    """Measures the times of all sizes and the memory of some sizes."""
    results = {"series": {}}
    known = {}  # the base size is part of every series
    for name in options.wanted([*RANGES, MEMORY]):
        if name == MEMORY:
            results[MEMORY] = _measure_memory(options)
            continue
        values = RANGES[name]
        rows = []
        for value in values[1::3] if options.quick else values:
            size = {**BASE, name: value}
            key = tuple(size.values())
            if key not in known:
                show_status(_label(size))
                known[key] = _measure_times(size, options)
            rows.append({"value": value, **known[key]})
        results["series"][name] = rows
    return results


def _label(size):
    return ", ".join(f"{name} = {value}" for name, value in size.items())


def _measure_times(size, options):
    blocks = 3 if options.quick else 7
    seconds = 0.1 if options.quick else 0.3
    inputs, outputs, rows = size.values()
    pairs = layer_calls.draw(inputs, outputs, rows, CALLS_PER_GRAPH)
    network = step_networks.Network(
        lambda: step_networks.normalized_mlp(size["n"], size["m"], 10),
        batch=size["B"],
        steps=0,
    )
    qpsbgd = step_networks.Training(network, QPSBGD(network.rate, seed=0))
    adam = step_networks.Training(network, "adam")
    makers = {
        "native": lambda repeats: layer_calls.side(
            *_solver("native", pairs), repeats, blocks
        ),
        "ridge": lambda repeats: layer_calls.side(
            *_solver("ridge", pairs), repeats, blocks
        ),
        "Adam": lambda steps: adam.side(steps, blocks),
        "step": lambda steps: qpsbgd.side(steps, blocks),
    }
    sides = {}
    for name, make in makers.items():
        show_status(f"{_label(size)}: {name}")
        sides[name] = _of_length(make, seconds)
    times = {}
    for yardstick, other in (("native", "ridge"), ("Adam", "step")):
        base, found = timing.compare(
            sides[yardstick], {other: sides[other]}, warm_up=0
        )
        times[yardstick] = dataclasses.asdict(base)
        times[other] = dataclasses.asdict(found[other])
    keras.backend.clear_session()
    return times


def _solver(name, pairs):
    return layer_calls.given_problems(backends.get(name), pairs)


def _of_length(make, seconds):
    """Returns `make(repeats)` with enough repeats to fill the time."""
    short = make(3)
    short.block()  # tracing and compilation
    _, each = timing.per_step(short)
    per_repeat = each * short.steps / 3
    side = make(max(3, min(300, int(seconds / per_repeat))))
    side.block()  # warm up its graph or data
    return side


def _measure_memory(options):
    sizes = [BASE]
    if not options.quick:
        sizes += [
            {**BASE, name: value}
            for name, values in MEMORY_RANGES.items()
            for value in values[1:]
        ]
        sizes.append(WIDE_LAYER)
    rows = []
    for size in sizes:
        show_status(f"memory, {_label(size)}")
        bytes_of = {
            optimizer: peak_memory.measure(*size.values(), optimizer)
            for optimizer in ("qpsbgd", "adam")
        }
        rows.append({"size": size, **bytes_of})
    return rows


def exponent(values, times):
    """Returns the slope of log(times) in the upper half of the range."""
    if len(values) < 2:
        return math.nan
    half = min(len(values) // 2, len(values) - 2)
    return float(np.polyfit(np.log(values[half:]), np.log(times[half:]), 1)[0])


def table(results):
    """Returns times in milliseconds, exponents, and memory in MiB as text."""
    parts = []
    for threads, result in results.items():
        for name, rows in result["series"].items():
            parts.append(_series_table(name, rows, threads))
        if MEMORY in result:
            parts.append(_memory_table(result[MEMORY], threads))
    return "\n\n".join(parts)


def _threads(count):
    return f"{count} thread{'s' * (count > 1)}"


def _series_table(name, rows, threads):
    fixed = _label({k: v for k, v in BASE.items() if k != name})
    head = f"{name:<9}" + "".join(
        f"{f'{what} CPU':>11}{'wall':>6}" for what in TIMED
    )
    lines = [
        f"Milliseconds by {name}; {fixed}, {_threads(threads)}",
        head,
        "-" * len(head),
    ]
    columns = [(what, kind) for what in TIMED for kind in ("cpu", "wall")]
    for row in rows:
        cells = [_number(1e3 * row[what][kind]) for what, kind in columns]
        lines.append(f"{row['value']:<9}" + _cells(cells))
    values = [row["value"] for row in rows]
    slopes = [
        exponent(values, [row[what][kind] for row in rows])
        for what, kind in columns
    ]
    lines.append(
        f"{'exponent':<9}" + _cells([_slope(slope) for slope in slopes])
    )
    return "\n".join(lines)


def _cells(texts):
    return "".join(
        f"{text:>{6 if index % 2 else 11}}" for index, text in enumerate(texts)
    )


def _number(value):
    """Formats a number with at most five characters."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _slope(value):
    return "-" if math.isnan(value) else f"{value:.2f}"


def _memory_table(rows, threads):
    head = f"{'n':>6}{'m':>6}{'B':>6}{'QP-SBGD':>10}{'Adam':>8}{'more':>8}"
    lines = [
        f"Peak memory growth while n-m-10 trains, MiB, {_threads(threads)}",
        head,
        "-" * len(head),
    ]
    for row in rows:
        n, m, batch = row["size"].values()
        ours, adam = row["qpsbgd"] / MEBIBYTE, row["adam"] / MEBIBYTE
        lines.append(
            f"{n:>6}{m:>6}{batch:>6}{ours:>10.0f}{adam:>8.0f}"
            f"{ours - adam:>8.0f}"
        )
    slopes = []
    for name in BASE:
        values, ours, adam = _memory_series(rows, name)
        slopes.append(
            f"{name} {_slope(exponent(values, ours))} "
            f"({_slope(exponent(values, adam))})"
        )
    lines.append(f"exponents of QP-SBGD (Adam): {', '.join(slopes)}")
    return "\n".join(lines)


def _memory_series(rows, name):
    """Returns the values and memory of the rows where only `name` varies."""
    rows = [
        row
        for row in rows
        if all(row["size"][k] == v for k, v in BASE.items() if k != name)
    ]
    rows.sort(key=lambda row: row["size"][name])
    return (
        [row["size"][name] for row in rows],
        [row["qpsbgd"] for row in rows],
        [row["adam"] for row in rows],
    )


def verdicts(results):
    """Returns whether the memory target of the wide layer is met."""
    found = []
    for threads, result in results.items():
        for row in result.get(MEMORY, []):
            if row["size"] == WIDE_LAYER:
                more = row["qpsbgd"] - row["adam"]
                found.append(
                    (
                        more < MEMORY_TARGET,
                        f"784-4096-10, {_threads(threads)}: "
                        f"{more / MEBIBYTE:.0f} MiB more than with Adam "
                        f"(< {MEMORY_TARGET // MEBIBYTE})",
                    )
                )
    return found


def draw(results, path):
    """Draws CPU time in one panel for each of n, m and B, and the memory.

    Shows the results with the largest number of threads.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    from matplotlib.ticker import FuncFormatter
    from matplotlib.ticker import LogLocator
    from matplotlib.ticker import NullLocator

    threads = max(results)
    result = results[threads]
    figure = canvas.figure(9.0, 6.4)
    panels = figure.subplots(2, 2).flat
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    for axes, (name, rows) in zip(panels, result["series"].items()):
        values = [row["value"] for row in rows]
        for what in TIMED:
            times = [1e3 * row[what]["cpu"] for row in rows]
            slope = _slope(exponent(values, [row[what]["cpu"] for row in rows]))
            axes.loglog(
                values,
                times,
                color=COLORS[what],
                marker=MARKERS[what],
                markersize=4,
                linestyle="--" if what in ("native", "ridge") else "-",
                label=f"{_NAMES[what]}: {slope}",
            )
        axes.set_xticks(values)
        axes.set_xlabel(name)
        axes.set_ylabel("CPU ms")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(plain)
        axes.set_ylim(top=8 * axes.get_ylim()[1])  # space for the legend
        fixed = _label({k: v for k, v in BASE.items() if k != name})
        axes.set_title(fixed, loc="left", fontsize=10)
        axes.legend(
            loc="upper left",
            frameon=False,
            fontsize=8,
            title="exponents",
            title_fontsize=8,
        )
    for axes in panels:  # the memory panel, and series without results
        axes.set_axis_off()
    axes = figure.axes[3]
    if MEMORY in result:
        axes.set_axis_on()
        _draw_memory(axes, result[MEMORY])
    for axes in figure.axes:
        axes.grid(axis="y", color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"Network n-m-10, {_threads(threads)}", x=0.01, ha="left")
    canvas.save(figure, path)


_NAMES = {
    "native": "solve, native",
    "ridge": "solve, ridge",
    "step": "step, QP-SBGD",
    "Adam": "step, Adam",
}


def _draw_memory(axes, rows):
    places = np.arange(len(rows))
    for shift, key, what in ((-0.2, "qpsbgd", "step"), (0.2, "adam", "Adam")):
        axes.bar(
            places + shift,
            [row[key] / MEBIBYTE for row in rows],
            0.4,
            color=COLORS[what],
            label={"step": "QP-SBGD", "Adam": "Adam"}[what],
        )
    labels = ["\n".join(map(str, row["size"].values())) for row in rows]
    axes.set_xticks(places, labels, fontsize=8)
    axes.set_xlabel("n, m, B", fontsize=9)
    axes.set_ylabel("MiB")
    axes.set_title("peak memory growth in training", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
