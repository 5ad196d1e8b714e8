"""Energy gap and CPU time of our solvers and the baselines on layer problems.

The layers have n = 16 to 784 inputs and n columns (256 columns for n = 784),
see `instances.py`. The gap of a column is (E - E_best) / (E_rand - E_best) in
float64, where E_rand is the mean energy of a random state. E_best is exact for
n = 16 (enumeration) and proven for n = 32 (sphere decoder). For larger n, it is
the best of all solvers measured here. Gaps are averaged over the first 16
columns (4 from n = 256 on).

CPU time is the time of a layer with all its columns on one thread. For our
searches for training, it is the time of `backend.solve_in_graph`, compiled
inside a graph. It is measured before and after the baselines, and the median is
reported. In training, a layer with 784 inputs has several smaller problems. The
preset `once` solves all columns on the host, and the baselines (`baselines.py`)
solve the columns one by one. Slow baselines do not solve all columns, and their
time is extrapolated to all columns.

The targets are:

- With n = 128, the gap of `once` is at most the gap of annealing with 10 reads
  in 5 of 6 cells.
- With up to 16 inputs, the optimum of every column is found (`optimum.py`).
- With n = 32, `once` finds the optimum of at least 99.5 % of 500 columns
  (`optimum.py`).

`parallel` is the default with `search="parallel"`, the search for GPUs. Only
its gaps matter here.

`--only` accepts sizes such as `n=128`, `optimum` and names of solvers.
"""

import itertools
import statistics
import time

import numpy as np
import tensorflow as tf

from keras_qpsbgd import backends
from keras_qpsbgd.cli.console import show_status
from research.bench.solvers import baselines
from research.bench.solvers import instances
from research.bench.solvers import optimum
from research.bench.solvers import sphere_decoder

HELP = "energy gap and CPU time of solvers (12 minutes)"
THREADS = (1,)

# Inputs -> columns.
SIZES = {16: 16, 32: 32, 64: 64, 128: 128, 256: 256, 784: 256}
QUICK_SIZES = (16, 32, 128)
QUICK_BASELINES = ("once", "SA 1", "SA 10", "descent")
CELLS = instances.CELLS + instances.PLANTED_CELLS
OPTIMUM = "optimum"
# Layers per cell for the comparison with annealing.
INSTANCES = 4
# Minimum duration of a measurement, which has at least two calls.
BLOCK_SECONDS = 0.05
MAX_CALLS = 32
# Inputs of the layers in the comparison with annealing.
COMPARED = 128
TARGET_CELLS = 5
NOTE = """\
Gaps are means over the first 16 columns (4 from n = 256 on) or fewer. Times are
for all m columns. Solvers from other packages solve a few columns, and their
time is extrapolated. `-`: too slow, or not allowed by the license."""


def names():
    """Returns the names that `--only` accepts."""
    sizes = [f"n={n}" for n in SIZES]
    return [
        *sizes,
        OPTIMUM,
        *_ours(),
        *(baseline.name for baseline in baselines.BASELINES),
    ]


def measure(options):
    """Runs the measurements described in the module docstring."""
    sizes = QUICK_SIZES if options.quick else tuple(SIZES)
    parts = options.wanted([*(f"n={n}" for n in sizes), OPTIMUM])
    others = {
        baseline.name: baseline
        for baseline in baselines.BASELINES
        if not options.quick or baseline.name in QUICK_BASELINES
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
            show_status(
                f"n = {n}, B = {cell.batch}, {cell.name}, layer {index}"
            )
            # Only these are measured on all layers of a cell.
            wanted = [
                baseline
                for name, baseline in others.items()
                if name in names
                and name not in missing
                and (index == 0 or name in ("once", "SA 1", "SA 10"))
            ]
            layers.append(_layer(cell, n, index, solvers, wanted, columns))
    return {
        "default": backends.get("native").preset,
        "names": [name for name in names if name not in missing],
        "missing": missing,
        "layers": layers,
        "optimum": optimum.measure(options.quick) if OPTIMUM in parts else None,
    }


def _ours():
    return {
        "fast": backends.get("native"),
        # The search for GPUs. Its CPU time says nothing about a GPU.
        "parallel": backends.get({"name": "native", "search": "parallel"}),
        "ridge": backends.get("ridge"),
        "sign": backends.get("sign"),
    }


class _Timer:
    """Measures the CPU time of a backend inside a graph, as in training.

    The graph contains several calls, so that the overhead of calling it from
    Python is small. All problems of the same shape share one graph, because
    compiling takes longer than solving.
    """

    def __init__(self, backend, problem):
        self._backend = backend
        start = time.process_time()
        self.states(problem, 1)
        start = time.process_time()
        self.states(problem, 2)
        once = max(time.process_time() - start, 1e-6)
        self._calls = min(max(int(BLOCK_SECONDS / once), 2), MAX_CALLS)

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
        """Returns several measurements of the seconds per call."""
        times = []
        problems = instances.copies(problem, self._calls)
        for _ in range(repeats):
            start = time.process_time()
            self._graph(problems).numpy()
            seconds = time.process_time() - start
            times.append(seconds / self._calls)
        return times


class _Solvers:
    """Our solvers and their compiled graphs."""

    def __init__(self, names):
        self.backends = {
            name: backend for name, backend in _ours().items() if name in names
        }
        self._timers = {}

    def timer(self, name, problem):
        shape = (name, *problem.fields.shape)
        if shape not in self._timers:
            self._timers[shape] = _Timer(self.backends[name], problem)
        return self._timers[shape]


def _layer(cell, n, index, solvers, others, columns):
    """Measures gaps and times of all solvers on one instance."""
    seed = 1000 * CELLS.index(cell) + index
    instance = instances.Instance.of_cell(cell, n, SIZES[n], seed)
    problem = instance.problem
    qubo = instance.qubo.columns(0, columns)
    found = {}
    times = {}
    for name in solvers.backends:
        timer = solvers.timer(name, problem)
        times[name] = timer.measure(problem)
        found[name] = timer.states(problem)[:, :columns]
    seconds = {}
    for baseline in others:
        count = min(baseline.columns_for(n, cell), columns)
        if count:
            found[baseline.name], seconds[baseline.name] = baseline.run(
                instance.qubo, count
            )
    for name in solvers.backends:
        times[name] += solvers.timer(name, problem).measure(problem)
        seconds[name] = statistics.median(times[name])
    energies = {
        name: qubo.columns(0, states.shape[1]).energy(states)
        for name, states in found.items()
    }
    best, known = _best(qubo, energies)
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
        "optimum": known,
        "solvers": rows,
    }


def _best(qubo, energies):
    """Returns the lowest known energies, and how they are known."""
    once = backends.get({"name": "native", "preset": "once"})
    reference = once.solve(qubo, seed=1).states
    n = qubo.num_variables
    if n <= 16:
        states = sphere_decoder.enumerate_states(qubo)
        return qubo.energy(states), "exact"
    if n <= optimum.PROVEN_SIZE:
        states = sphere_decoder.decode(qubo, reference)
        return qubo.energy(states), "proven"
    best = qubo.energy(reference)
    for energy in energies.values():
        few = best[: len(energy)]
        best[: len(energy)] = np.minimum(few, energy)
    return best, "best known"


# The report


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
    """Compares the gap of `once` with that of 10 reads of annealing."""
    layers = [
        layer
        for layer in layers
        if layer["n"] == COMPARED
        and layer["kind"] in instances.KINDS
        and {"once", "SA 10"} <= set(layer["solvers"])
    ]
    cells = {(layer["batch"], layer["kind"]) for layer in layers}
    if len(cells) < len(instances.CELLS):
        return [(None, f"once, n = {COMPARED}: not compared with SA 10")]
    good = sum(
        _mean(layers, cell, "once", "gap")
        <= _mean(layers, cell, "SA 10", "gap")
        for cell in cells
    )
    return [
        (
            good >= TARGET_CELLS,
            f"once, n = {COMPARED}: gap <= gap of SA 10 in {good} of "
            f"{len(cells)} cells (>= {TARGET_CELLS})",
        )
    ]


def verdicts(results):
    """Returns whether the targets are met."""
    found = []
    for result in results.values():
        found += annealing_verdicts(result["layers"])
        if result["optimum"]:
            found += optimum.verdicts(result["optimum"])
    return found
