"""Table, verdicts and figure of the suite `solver`."""

import statistics

from keras_qpsbgd.compare.report import canvas
from research.bench.solvers import baselines
from research.bench.solvers import instances
from research.bench.solvers import optimum

# Inputs of the layers in the comparison with annealing.
COMPARED = 128
TARGET_CELLS = 5
TARGET_RATIO = 150
NOTE = """\
Gaps are means over the first 16 columns (4 from n = 256 on) or fewer. Times are
for all m columns. Solvers from other packages solve a few columns, and their
time is extrapolated. `-`: too slow, or not allowed by the license."""


def table(results):
    """Returns the gaps and times as text."""
    blocks = []
    for result in results.values():
        for n in sorted({layer["n"] for layer in result["layers"]}):
            blocks.append(_table_of_size(result, n))
        if result["optimum"]:
            blocks.append(optimum.table(result["optimum"]))
        if result["layers"]:
            blocks.append(NOTE)
        if result["missing"]:
            blocks.append(f"Not installed: {', '.join(result['missing'])}")
    return "\n\n".join(blocks)


def _table_of_size(result, n):
    layers = [layer for layer in result["layers"] if layer["n"] == n]
    known = sorted({layer["optimum"] for layer in layers})
    # One table column for all instances of a cell.
    cells = list(
        dict.fromkeys((layer["batch"], layer["kind"]) for layer in layers)
    )
    lines = [
        f"n = {n}, m = {layers[0]['m']}: mean gap x 10,000, CPU ms per layer; "
        f"optimum: {', '.join(known)}",
        f"{'':<12}" + "".join(f"{f'B {batch}':>7}" for batch, _ in cells),
        f"{'solver':<12}"
        + "".join(f"{kind.removesuffix('ed'):>7}" for _, kind in cells)
        + f"{'ms':>11}",
    ]
    lines.append("-" * len(lines[-1]))
    for name in result["names"]:
        values = [_mean(layers, cell, name, "gap") for cell in cells]
        times = [_mean(layers, cell, name, "seconds") for cell in cells]
        times = [value for value in times if value is not None]
        if not times:
            continue
        line = f"{name:<12}" + "".join(f"{_gap(value):>7}" for value in values)
        milliseconds = 1000 * statistics.median(times)
        digits = 2 if milliseconds < 100 else 0
        line += f"{milliseconds:>11,.{digits}f}"
        lines.append(line)
    return "\n".join(lines)


def _gap(value):
    if value is None:
        return "-"
    value *= 10_000
    return f"{value:.1f}" if value < 9999.95 else f"{value:.0f}"


def _mean(layers, cell, name, key):
    values = [
        layer["solvers"][name][key]
        for layer in layers
        if (layer["batch"], layer["kind"]) == cell and name in layer["solvers"]
    ]
    return statistics.fmean(values) if values else None


def annealing_verdicts(layers):
    """Compares the gap and time of `accurate` with 10 reads of annealing."""
    layers = [
        layer
        for layer in layers
        if layer["n"] == COMPARED
        and layer["kind"] in instances.KINDS
        and {"accurate", "SA 10"} <= set(layer["solvers"])
    ]
    cells = {(layer["batch"], layer["kind"]) for layer in layers}
    if len(cells) < len(instances.CELLS):
        return [(None, f"accurate, n = {COMPARED}: not compared with SA 10")]
    good = 0
    ratios = []
    for cell in cells:
        gaps = [
            _mean(layers, cell, name, "gap") for name in ("accurate", "SA 10")
        ]
        times = [
            _mean(layers, cell, name, "seconds")
            for name in ("accurate", "SA 10")
        ]
        good += gaps[0] <= gaps[1]
        ratios.append(times[1] / times[0])
    size = f"accurate, n = {COMPARED}"
    return [
        (
            good >= TARGET_CELLS,
            f"{size}: gap <= gap of SA 10 in {good} of {len(cells)} cells "
            f"(>= {TARGET_CELLS})",
        ),
        (
            min(ratios) >= TARGET_RATIO,
            f"{size}: CPU speedup over SA 10: min {min(ratios):.0f} "
            f"(>= {TARGET_RATIO}), median {statistics.median(ratios):.0f}",
        ),
    ]


def draw(results, path):
    """Draws the gap over CPU time, with one panel per number of inputs."""
    result = next(iter(results.values()))
    sizes = sorted({layer["n"] for layer in result["layers"]})
    if not sizes:
        sizes = [None]
    wide = min(3, len(sizes))
    high = -(-len(sizes) // wide)
    figure = canvas.figure(3.3 * wide + 1.5, 2.9 * high + 0.6)
    panels = figure.subplots(high, wide, squeeze=False).ravel()
    for panel in panels[len(sizes) :]:
        panel.set_axis_off()
    for panel, n in zip(panels, sizes):
        layers = [layer for layer in result["layers"] if layer["n"] == n]
        _draw_size(panel, layers, result["names"], n)
    for panel in panels[:: wide or 1]:
        panel.set_ylabel("mean gap")
    for panel in panels[len(sizes) - wide : len(sizes)]:
        panel.set_xlabel("CPU time per layer [ms]")
    handles = {}
    for panel in panels:
        for handle, name in zip(*panel.get_legend_handles_labels()):
            handles.setdefault(name, handle)
    figure.legend(
        [handles[name] for name in result["names"] if name in handles],
        [name for name in result["names"] if name in handles],
        loc="outside right upper",
        frameon=False,
    )
    figure.suptitle(
        "Solvers of layer problems: lower and farther left is better",
        fontsize=11,
    )
    canvas.save(figure, path)


# Our solvers have filled markers. Colors of Okabe and Ito.
_COLORS = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#cc79a7", "#000000")
_OTHER_COLORS = ("#d55e00", "#777777")
_MARKERS = "osD^vP*X"
MIN_GAP = 1e-6


def _draw_size(panel, layers, names, n):
    other_names = [baseline.name for baseline in baselines.BASELINES]
    own = [name for name in names if name not in other_names]
    for name in names:
        cells = dict.fromkeys(
            (layer["batch"], layer["kind"])
            for layer in layers
            if name in layer["solvers"]
        )
        if not cells:
            continue
        gap = statistics.fmean(
            _mean(layers, cell, name, "gap") for cell in cells
        )
        seconds = statistics.median(
            _mean(layers, cell, name, "seconds") for cell in cells
        )
        ours = name in own
        index = own.index(name) if ours else other_names.index(name)
        colors = _COLORS if ours else _OTHER_COLORS
        color = colors[index % len(colors)]
        panel.plot(
            1000 * seconds,
            max(gap, 0.0),
            linestyle="none",
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=7,
            color=color,
            markerfacecolor=color if ours else "none",
            markeredgewidth=1.5,
            label=name,
            clip_on=False,
        )
    panel.set_title(f"n = {n}", fontsize=10)
    panel.set_xscale("log")
    panel.set_yscale("symlog", linthresh=MIN_GAP, linscale=0.5)
    panel.set_ylim(0, 10)
    panel.set_yticks([0, 1e-6, 1e-4, 1e-2, 1])
    panel.grid(color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
