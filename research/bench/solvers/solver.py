"""Solvers of the layer problems: energy gap and CPU time, ours and others.

What is solved: layers of 16 to 784 inputs n and as many columns (256 where
n = 784), see `instances.py`. The gap of a column is
(E - E_best) / (E_rand - E_best), in float64, where E_rand is the mean energy of
a random state. E_best is exact by enumeration for n = 16, proven by a sphere
decoder for n = 32, and above the best of all that is run here and of a tabu
search of 60n steps and 16 restarts. Gaps are those of the first 16 columns (4
from n = 256 on).

CPU time is that of a layer with all its columns, on one thread. Ours is the
time of `backend.solve_in_graph`, from the problem in the form that training
hands over to states, compiled, inside a graph, as training calls it; before and
after the others, the median. The others (`rivals.py`) solve one column after
the other, the slow ones fewer than all, and their time is scaled to all.

Two targets. `accurate` with n = 128 has no larger gap than 10 reads of
annealing in 5 of 6 cells, at least 150 times as fast in every cell. `accurate`
with n = 32 finds the optimum of at least 99.5 % of 500 columns, against the
sphere decoder.

`--only` takes sizes such as `n=128`, `optimum` (the 500 columns) and names of
solvers.
"""

import itertools
import statistics
import time

import numpy as np
import tensorflow as tf

from keras_qpsbgd import backends
from keras_qpsbgd import ops
from keras_qpsbgd.backends.graph import local_search
from keras_qpsbgd.backends.graph import native
from keras_qpsbgd.cli import say
from research.bench.solvers import instances
from research.bench.solvers import rivals
from research.bench.solvers import sphere_decoder

HELP = "energy gap and CPU time of solvers (12 minutes)"
THREADS = (1,)

# Inputs and columns.
SIZES = {16: 16, 32: 32, 64: 64, 128: 128, 256: 256, 784: 256}
QUICK_SIZES = (16, 32, 128)
QUICK_RIVALS = ("SA 1", "SA 10", "descent")
CELLS = instances.CELLS + instances.PLANTED_CELLS
OPTIMUM = "optimum"
# The size of the comparison with annealing, which has several instances.
COMPARED = 128
INSTANCES = 4
TARGET_CELLS = 5
TARGET_RATIO = 150
# The columns of which the optimum is proven.
PROVEN_SIZE = 32
PROVEN_COLUMNS = 512
TARGET_FOUND = 0.995
# Found means this close, relative to E_rand: float32 resolves no more.
FOUND = 1e-6
# At least this long is measured at once, or two calls.
BLOCK_SECONDS = 0.05
MOST_CALLS = 32


def names():
    """What `--only` takes."""
    sizes = [f"n={n}" for n in SIZES]
    return [*sizes, OPTIMUM, *_ours(), *(rival.name for rival in rivals.RIVALS)]


def measure(options):
    """Measures; see the module."""
    sizes = QUICK_SIZES if options.quick else tuple(SIZES)
    parts = options.wanted([*(f"n={n}" for n in sizes), OPTIMUM])
    others = {
        rival.name: rival
        for rival in rivals.RIVALS
        if not options.quick or rival.name in QUICK_RIVALS
    }
    names = options.wanted([*_ours(), *others])
    missing = [
        name
        for name in names
        if name in others and not others[name].is_installed()
    ]
    solvers = _Solvers(names)
    layers = []
    for n, cell in itertools.product(sizes, CELLS):
        if f"n={n}" not in parts or (options.quick and cell.planted):
            continue
        columns = 4 if options.quick or n >= 256 else 16
        several = n == COMPARED and not cell.planted and not options.quick
        for index in range(INSTANCES if several else 1):
            say(f"n = {n}, B = {cell.batch}, {cell.name}, layer {index}")
            # Only annealing is compared on more than the first.
            wanted = [
                rival
                for name, rival in others.items()
                if name in names
                and name not in missing
                and (index == 0 or name in ("SA 1", "SA 10"))
            ]
            layers.append(_layer(cell, n, index, solvers, wanted, columns))
    proven = None
    if OPTIMUM in parts:
        proven = _optimum(PROVEN_COLUMNS // (8 if options.quick else 1))
    return {
        "default": backends.get("native").preset,
        "names": [name for name in names if name not in missing],
        "missing": missing,
        "layers": layers,
        "optimum": proven,
    }


def _ours():
    configs = {
        preset: {"name": "native", "preset": preset}
        for preset in native.PRESETS
    }
    configs |= {name: {"name": name} for name in ("ridge", "sign")}
    return {name: backends.get(config) for name, config in configs.items()}


class _Timer:
    """CPU time of a backend inside a graph, where training calls it.

    Several calls in one graph, so that the call from Python hardly counts. One
    graph serves all problems of a shape: compiling takes longer than solving.
    """

    def __init__(self, backend, problem):
        self._backend = backend
        start = time.process_time()
        self.states(problem, 1)
        start = time.process_time()
        self.states(problem, 2)
        once = max(time.process_time() - start, 1e-6)
        self._calls = min(max(int(BLOCK_SECONDS / once), 2), MOST_CALLS)

        @tf.function(autograph=False)
        def graph(problems):
            found = [
                backend.solve_in_graph(problem, tf.constant([seed, 0]))
                for seed, problem in enumerate(problems)
            ]
            return tf.add_n(found)

        self._graph = graph
        graph(instances.copies(problem, self._calls)).numpy()

    def states(self, problem, seed=0):
        seed = tf.constant([seed, 0])
        return self._backend.solve_in_graph(problem, seed).numpy()

    def measure(self, problem, repeats=3):
        """Seconds of one call, several times."""
        times = []
        problems = instances.copies(problem, self._calls)
        for _ in range(repeats):
            start = time.process_time()
            self._graph(problems).numpy()
            seconds = time.process_time() - start
            times.append(seconds / self._calls)
        return times


class _Solvers:
    """Ours, with what was compiled for them."""

    def __init__(self, names):
        self.backends = {
            name: backend for name, backend in _ours().items() if name in names
        }
        self._timers = {}
        self._searches = {}

    def timer(self, name, problem):
        # Rows of another batch are another shape.
        rows = problem.normalized_rows
        shape = (
            name,
            tuple(problem.fields.shape),
            None if rows is None else tuple(rows.shape),
        )
        if shape not in self._timers:
            self._timers[shape] = _Timer(self.backends[name], problem)
        return self._timers[shape]

    def reference(self, problem):
        """States of a long search."""
        shape = tuple(problem.fields.shape)
        if shape not in self._searches:

            @tf.function(jit_compile=True, autograph=False)
            def search(problem, seed):
                states = local_search.tabu(problem, seed, 60 * shape[0], 16)
                return ops.never_ascend(states, problem.fields)

            self._searches[shape] = search
        return self._searches[shape](problem, tf.constant([0, 1])).numpy()


def _layer(cell, n, index, solvers, others, columns):
    """Gaps and times of all solvers on one instance."""
    seed = 1000 * CELLS.index(cell) + index
    instance = instances.Instance.of_cell(cell, n, SIZES[n], seed)
    problem = instance.trained_problem
    few, qubo = instance.first(columns)
    found = {}
    times = {}
    for name in solvers.backends:
        timer = solvers.timer(name, problem)
        times[name] = timer.measure(problem)
        found[name] = timer.states(problem)[:, :columns]
    seconds = {}
    for rival in others:
        count = min(rival.columns_for(n, cell), columns)
        if count:
            found[rival.name], seconds[rival.name] = rival.run(
                instance.qubo, count
            )
    for name in solvers.backends:
        times[name] += solvers.timer(name, problem).measure(problem)
        seconds[name] = statistics.median(times[name])
    energies = {
        name: qubo.columns(0, states.shape[1]).energy(states)
        for name, states in found.items()
    }
    best, optimum = _best(solvers.reference(few), qubo, energies)
    rows = {}
    for name, energy in energies.items():
        part = qubo.columns(0, len(energy))
        gap = instances.gaps(energy, best[: len(energy)], part)
        rows[name] = {
            "gap": float(np.mean(gap)),
            "seconds": seconds[name],
            "columns": len(energy),
        }
    return {
        "n": n,
        "m": SIZES[n],
        "batch": cell.batch,
        "kind": cell.name,
        "sigma": cell.sigma,
        "instance": index,
        "optimum": optimum,
        "solvers": rows,
    }


def _best(reference, qubo, energies):
    """The least energies known, and how they are known."""
    n = qubo.num_variables
    if n <= 16:
        states = sphere_decoder.enumerate_states(qubo)
        return qubo.energy(states), "exact"
    if n <= PROVEN_SIZE:
        states = sphere_decoder.decode(qubo, reference)
        return qubo.energy(states), "proven"
    best = qubo.energy(reference)
    for energy in energies.values():
        few = best[: len(energy)]
        best[: len(energy)] = np.minimum(few, energy)
    return best, "best known"


def _optimum(wanted):
    """How often `accurate` finds the proven optimum."""
    backend = backends.get({"name": "native", "preset": "accurate"})
    counts = []
    cells = itertools.cycle(CELLS)
    done = 0
    while done < wanted:
        cell = next(cells)
        m = min(PROVEN_SIZE, wanted - done)
        say(f"proven optimum, n = {PROVEN_SIZE}: {done} of {wanted} columns")
        instance = instances.Instance.of_cell(
            cell, PROVEN_SIZE, m, 50_000 + done
        )
        states = backend.solve_in_graph(
            instance.problem, tf.constant([done, 0])
        ).numpy()
        qubo = instance.qubo
        least = qubo.energy(sphere_decoder.decode(qubo, states))
        excess = (qubo.energy(states) - least) / qubo.random_energy()
        counts.append(
            {
                "batch": cell.batch,
                "kind": cell.name,
                "columns": m,
                "found": int(np.sum(excess <= FOUND)),
                "worst": float(excess.max()),
            }
        )
        done += m
    return counts


# The report

NOTE = """\
Gaps are those of the first 16 columns (4 from n = 256 on) or fewer, times those
of all m; others than ours solve a few columns and are scaled to all. `-`: too
slow, or the licence is too small."""


def table(results):
    """Gaps and times as text."""
    blocks = []
    for result in results.values():
        for n in sorted({layer["n"] for layer in result["layers"]}):
            blocks.append(_table_of_size(result, n))
        if result["optimum"]:
            blocks.append(_table_of_optimum(result["optimum"]))
        if result["layers"]:
            blocks.append(NOTE)
        if result["missing"]:
            blocks.append(f"Not installed: {', '.join(result['missing'])}")
    return "\n\n".join(blocks)


def _table_of_size(result, n):
    layers = [layer for layer in result["layers"] if layer["n"] == n]
    known = sorted({layer["optimum"] for layer in layers})
    # A column of the table holds all instances of its cell.
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


def _table_of_optimum(counts):
    lines = [
        f"accurate, n = {PROVEN_SIZE}, against the optimum proven by sphere "
        "decoding",
        f"{'B':>4}{'kind':>9}{'columns':>9}{'found':>8}"
        f"{'worst (E - E*) / E_rand':>25}",
    ]
    lines.append("-" * len(lines[-1]))
    for cell in dict.fromkeys((row["batch"], row["kind"]) for row in counts):
        rows = [row for row in counts if (row["batch"], row["kind"]) == cell]
        lines.append(
            f"{cell[0]:>4}{cell[1]:>9}{sum(row['columns'] for row in rows):>9}"
            f"{sum(row['found'] for row in rows):>8}"
            f"{max(row['worst'] for row in rows):>25.1e}"
        )
    return "\n".join(lines)


def verdicts(results):
    """Whether the two targets are reached."""
    found = []
    for result in results.values():
        found += _annealing_verdicts(result["layers"])
        if result["optimum"]:
            found.append(_optimum_verdict(result["optimum"]))
    return found


def _annealing_verdicts(layers):
    layers = [
        layer
        for layer in layers
        if layer["n"] == COMPARED
        and layer["kind"] in instances.KINDS
        and {"accurate", "SA 10"} <= set(layer["solvers"])
    ]
    cells = {(layer["batch"], layer["kind"]) for layer in layers}
    if len(cells) < len(instances.CELLS):
        return [(None, f"accurate, n = {COMPARED}: not run against SA 10")]
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
            f"{size}: gap <= that of SA 10 in {good} of {len(cells)} cells "
            f"(>= {TARGET_CELLS})",
        ),
        (
            min(ratios) >= TARGET_RATIO,
            f"{size}: SA 10 / ours, CPU time: least {min(ratios):.0f} "
            f"(>= {TARGET_RATIO}), median {statistics.median(ratios):.0f}",
        ),
    ]


def _optimum_verdict(counts):
    columns = sum(row["columns"] for row in counts)
    found = sum(row["found"] for row in counts)
    return (
        found >= TARGET_FOUND * columns,
        f"accurate, n = {PROVEN_SIZE}: optimum of {found} of {columns} "
        f"columns, {100 * found / columns:.1f} % "
        f"(>= {100 * TARGET_FOUND:.1f} %)",
    )


def draw(results, path):
    """Draws gap over CPU time, a panel for each number of inputs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    result = next(iter(results.values()))
    sizes = sorted({layer["n"] for layer in result["layers"]})
    if not sizes:
        sizes = [None]
    wide = min(3, len(sizes))
    high = -(-len(sizes) // wide)
    figure = Figure(
        figsize=(3.3 * wide + 1.5, 2.9 * high + 0.6), layout="constrained"
    )
    FigureCanvasAgg(figure)
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
        "Solvers of layer problems: lower and further left is better",
        fontsize=11,
    )
    figure.savefig(path, dpi=150)


# Ours filled and large, others open; colours of Okabe and Ito.
_COLORS = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#cc79a7", "#000000")
_OTHER_COLORS = ("#d55e00", "#777777")
_MARKERS = "osD^vP*X"
LEAST_GAP = 1e-6


def _draw_size(panel, layers, names, n):
    other_names = [rival.name for rival in rivals.RIVALS]
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
    panel.set_yscale("symlog", linthresh=LEAST_GAP, linscale=0.5)
    panel.set_ylim(0, 10)
    panel.set_yticks([0, 1e-6, 1e-4, 1e-2, 1])
    panel.grid(color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
