"""Solvers of the layer problems: quality and CPU time, ours against annealing.

    python benchmarks/solvers.py            # all of it, about ten minutes
    python benchmarks/solvers.py --quick    # fewer columns, about two minutes

Three targets, each with a PASS or FAIL line; the exit status is 1 if one fails.

1. Up to 16 inputs `native` is exact: the energy of every column equals that of
   `dimod.ExactSolver` to 1e-5 of the energy of a random state (E itself can be
   nearly zero, which no float32 solver could resolve). A layer of n = 16, m = 4
   costs at least 10 times less than 10 reads of simulated annealing.
2. n = m = 128: `accurate` is no worse than 10 reads of annealing in 5 of 6
   cells, at 50 times less CPU time; `balanced` has at most 1.25 times the gap
   of 1 read (or .003) in all 6, at 200 times less.
3. No backend ever ascends: s'g <= 0 in every column.

How it is measured. Problems: rows of +-1 (`pm1`), clipped normal rows (`htanh`)
or 0/1 rows of density .11 (`sparse`); gradients v normal with standard
deviation sigma, or planted (v = Zg for a hidden g, plus noise). All solvers get
the same float32 couplings and fields; energies are computed in float64. The gap
of a column is (E - E_best) / (E_rand - E_best), where E_best is the best of all
that is run here and of a reference tabu search 32 times as long as `accurate`.

CPU time of the process, one thread. Ours is the time of
`backend.solve_in_graph` from couplings and fields to states, compiled, inside a
graph, as training calls it (from Python a call costs up to a millisecond more);
median of several. Annealing (dwave-samplers, 1000
sweeps) is called as well as we know how: one model per layer of which only the
linear part changes from column to column, and temperatures computed once per
layer (`samplers.beta_range`; "own" is its own default, which takes longer, for
comparison). It is run on the first 16 columns and its time scaled to all of
them; gaps are compared on the same columns.

Parameters of the solvers were compared on other instances than those used here.
"""

import argparse
import os
import sys
import time

# Before TensorFlow is imported: one thread, and no GPU.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
os.environ["TF_NUM_INTEROP_THREADS"] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import dimod
import numpy as np
import tensorflow as tf
from dwave.samplers import SimulatedAnnealingSampler

import keras_qpsbgd as kq
from keras_qpsbgd import ops
from keras_qpsbgd.backends.graph import local_search
from keras_qpsbgd.backends.graph import native
from keras_qpsbgd.backends.graph import sweeps
from keras_qpsbgd.backends.host import samplers
from research.bench.solvers import instances
from research.bench.solvers.instances import CELLS
from research.bench.solvers.instances import KINDS
from research.bench.solvers.instances import Instance

CALLS_PER_GRAPH = 8
NUM_SWEEPS = 1000


def gap(energies, best, qubo):
    """Mean gap of the columns."""
    return float(np.mean(instances.gaps(energies, best, qubo)))


def cpu_seconds(function, problem, repeats):
    """Median CPU time of `function(problem, seed)` inside a graph.

    That is where training calls it. Several calls in one graph, so that the
    call of the graph from Python hardly counts.
    """

    @tf.function(autograph=False)
    def graph(problems):
        found = [
            function(problem, tf.constant([seed, 0]))
            for seed, problem in enumerate(problems)
        ]
        return tf.add_n(found)

    problems = instances.copies(problem, CALLS_PER_GRAPH)
    graph(problems).numpy()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        graph(problems).numpy()
        times.append((time.process_time() - start) / CALLS_PER_GRAPH)
    return float(np.median(times))


def solve(backend, problem, seed=0):
    """States of a graph backend, as training calls it."""
    return backend.solve_in_graph(problem, tf.constant([seed, 0])).numpy()


def anneal(qubo, columns, reads, temperatures):
    """Annealing as its users would call it for a layer.

    Returns:
        States of the first `columns` columns, the CPU time of what is done once
        per layer and that of one column.
    """
    sampler = SimulatedAnnealingSampler()
    start = time.process_time()
    if temperatures == "layer":
        temperatures = samplers.beta_range(qubo)
    model = qubo.to_bqm(0)
    once = time.process_time() - start
    states = np.empty((qubo.num_variables, columns), np.int8)
    start = time.process_time()
    for column in range(columns):
        if column:
            change = qubo.fields[:, column] - qubo.fields[:, column - 1]
            model.add_linear_from_array(change)
        record = sampler.sample(
            model,
            num_reads=reads,
            num_sweeps=NUM_SWEEPS,
            beta_range=temperatures,
            seed=column,
        ).record
        states[:, column] = record.sample[record.energy.argmin()]
    each = (time.process_time() - start) / columns
    # The check against ascent that our backend adds costs nothing and helps.
    ascent = (qubo.fields[:, :columns] * states).sum(axis=0) > 0
    return np.where(ascent, -states, states), once, each


class Report:
    """Prints verdicts and remembers failures."""

    def __init__(self):
        self.verdicts = []

    def check(self, passed, text):
        line = f"{'PASS' if passed else 'FAIL'}  {text}"
        self.verdicts.append((passed, line))
        print(line, flush=True)

    def close(self):
        print("\nAll targets")
        for _, line in self.verdicts:
            print(line)
        return 0 if all(passed for passed, _ in self.verdicts) else 1


def small_layers(report, quick):
    """Target 1."""
    print("1. Up to 16 inputs: native against dimod.ExactSolver")
    print(f"{'n':>4}{'columns':>9}{'optimal':>9}{'max (E-E*)/E_rand':>20}")
    backend = kq.backends.get("native")
    exact = dimod.ExactSolver()
    m = 8
    counted = found = 0
    for n in (2, 3, 5, 8, 10, 12, 14, 16):
        excess = []
        cells = [
            (kind, batch, sigma, planted)
            for kind in KINDS
            for batch in ((4, 64) if quick else (1, 4, 16, 64))
            for sigma in (0.001, 0.01, 0.1, 1.0)
            for planted in (False, True)
            # Planted once per sigma: the batch hardly matters there.
            if not (planted and batch != 64)
        ]
        if quick:
            cells = cells[:: 1 if n < 12 else 4]
        for seed, (kind, batch, sigma, planted) in enumerate(cells):
            instance = Instance(
                kind, batch, n, m, sigma, 100 * n + seed, planted
            )
            qubo = instance.qubo
            energies = qubo.energy(solve(backend, instance.problem))
            for column in range(m):
                record = exact.sample(qubo.to_bqm(column)).record
                state = record.sample[record.energy.argmin()]
                best = qubo.energy(np.repeat(state[:, None], m, 1))[column]
                reach = qubo.random_energy()[column]
                # No information at all: every state is as good.
                excess.append(
                    (energies[column] - best) / reach if reach > 0 else 0.0
                )
        optimal = np.sum(np.array(excess) <= 1e-5)
        counted += len(excess)
        found += optimal
        print(
            f"{n:>4}{len(excess):>9}{optimal / len(excess):>9.2%}"
            f"{max(excess):>20.1e}",
            flush=True,
        )
    enough = quick or counted >= 2000
    report.check(
        found == counted and enough,
        f"n <= 16: optimal in {found} of {counted} columns",
    )

    print("\n   n = 16, m = 4, B = 16, CPU ms per layer")
    print(f"{'kind':>8}{'sigma':>8}{'native':>9}{'SA10':>9}{'ratio':>8}")
    ratios = []
    for seed, kind in enumerate(KINDS):
        for sigma in (0.01, 1.0):
            instance = Instance(kind, 16, 16, 4, sigma, seed)
            ours = cpu_seconds(backend.solve_in_graph, instance.problem, 50)
            times = []
            for _ in range(5):
                _, once, each = anneal(instance.qubo, 4, 10, "layer")
                times.append(once + 4 * each)
            theirs = float(np.median(times))
            ratios.append(theirs / ours)
            print(
                f"{kind:>8}{sigma:>8}{1e3 * ours:>9.2f}{1e3 * theirs:>9.1f}"
                f"{ratios[-1]:>7.1f}x",
                flush=True,
            )
    report.check(
        min(ratios) >= 10,
        f"n = 16, m = 4: {min(ratios):.1f}x to {max(ratios):.1f}x less CPU "
        "than SA10 (10x)",
    )


def middle_layers(report, quick):
    """Target 2."""
    n = m = 128
    columns = 16
    count = 2 if quick else 5
    print(
        f"\n2. n = m = 128, {count} instances per cell: mean gap x 10,000, "
        "CPU ms per layer"
    )
    print(f"{'':>16}" + "".join(f"{'B' + str(cell[0]):>10}" for cell in CELLS))
    print(f"{'':>16}" + "".join(f"{cell[1]:>10}" for cell in CELLS))
    print(f"{'sigma':>16}" + "".join(f"{cell[2]:>10}" for cell in CELLS))
    backends = {
        preset: kq.backends.get({"name": "native", "preset": preset})
        for preset in native.PRESETS
    }

    @tf.function(jit_compile=True)
    def reference(problem, seed):
        states = local_search.tabu(problem, seed, 60 * n, 16)
        return ops.never_ascend(states, problem.fields)

    annealers = {
        "SA1": (1, "layer"),
        "SA1 own": (1, None),
        "SA10": (10, "layer"),
        "SA10 own": (10, None),
    }
    rows = [*backends, *annealers]
    gaps = {row: [] for row in rows}
    times = {row: [] for row in rows}
    for cell, (batch, kind, sigma, _) in enumerate(CELLS):
        cell_gaps = {row: [] for row in rows}
        cell_times = {row: [] for row in rows}
        for seed in range(count):
            instance = Instance(kind, batch, n, m, sigma, 1000 * cell + seed)
            few, qubo = instance.first(columns)
            energies = {}
            for name, backend in backends.items():
                states = solve(backend, instance.problem, seed)
                energies[name] = qubo.energy(states[:, :columns])
                cell_times[name].append(
                    cpu_seconds(backend.solve_in_graph, instance.problem, 7)
                )
            for name, (reads, temperatures) in annealers.items():
                states, once, each = anneal(
                    instance.qubo, columns, reads, temperatures
                )
                energies[name] = qubo.energy(states)
                cell_times[name].append(once + m * each)
            long_run = reference(few, tf.constant([seed, 1])).numpy()
            best = np.min([qubo.energy(long_run), *energies.values()], axis=0)
            for name in rows:
                cell_gaps[name].append(gap(energies[name], best, qubo))
        for row in rows:
            gaps[row].append(np.mean(cell_gaps[row]))
            times[row].append(np.mean(cell_times[row]))
    for row in rows:
        values = "".join(f"{1e4 * value:>10.1f}" for value in gaps[row])
        print(f"{row + ' gap':>16}{values}")
    for row in rows:
        values = "".join(f"{1e3 * value:>10.1f}" for value in times[row])
        print(f"{row + ' ms':>16}{values}")
    _verdict(report, gaps, times)


def _verdict(report, gaps, times):
    for preset, rival in (("accurate", "SA10"), ("balanced", "SA1")):
        ratios = np.array(times[rival]) / np.array(times[preset])
        print(
            f"{rival + '/' + preset:>16}"
            + "".join(f"{ratio:>9.0f}x" for ratio in ratios)
        )
        theirs = np.array(gaps[rival])
        ours = np.array(gaps[preset])
        if preset == "accurate":
            good = np.sum(ours <= theirs)
            report.check(
                good >= 5, f"accurate: gap <= SA10's in {good} of 6 cells (5)"
            )
            least = 50
        else:
            good = np.sum(ours <= np.maximum(1.25 * theirs, 0.003))
            report.check(
                good == 6,
                f"balanced: gap <= max(1.25 x SA1's, .003) in {good} of 6 "
                "cells (6)",
            )
            least = 200
        report.check(
            ratios.min() >= least,
            f"{preset}: {ratios.min():.0f}x to {ratios.max():.0f}x less CPU "
            f"than {rival} ({least}x)",
        )


def descent(report, quick):
    """Target 3."""
    print("\n3. Columns with s'g > 0 (should be none), n = 12 and n = 40")
    print(f"{'backend':>24}{'columns':>9}{'ascents':>9}")
    total = ascents = 0
    for entry in kq.backends.available():
        if not entry.available:
            print(f"{entry.name:>24}  cannot run here: {entry.missing}")
            continue
        configs = [{"name": entry.name}]
        if entry.name == "native":
            configs = [
                {"name": "native", "preset": preset}
                for preset in native.PRESETS
            ]
        elif entry.name == "tabu":
            # It is the direction that is checked; its defaults search long.
            configs = [{"name": "tabu", "num_restarts": 1, "timeout": 20}]
        for config in configs:
            try:
                backend = kq.backends.get(config)
            except (kq.backends.BackendUnavailable, ImportError) as error:
                print(f"{entry.name:>24}  cannot run here: {error}"[:79])
                continue
            count, wrong = _ascents(backend, quick)
            label = " ".join([entry.name, config.get("preset", "")]).strip()
            print(f"{label:>24}{count:>9}{wrong:>9}", flush=True)
            total += count
            ascents += wrong
    report.check(
        ascents == 0 and total > 0,
        f"never ascend: {total - ascents} of {total} columns",
    )


def _ascents(backend, quick):
    count = wrong = 0
    for n in (12, 40):
        if backend.max_variables and n > backend.max_variables:
            continue
        for seed, kind in enumerate(KINDS):
            for sigma in (0.1,) if quick else (0.001, 0.1, 1.0):
                qubo = Instance(kind, 16, n, 8, sigma, 50 * n + seed).qubo
                states = backend.solve(qubo, seed).states
                # As the backends see it, in float32 rounding: a sum of n
                # products may be off by this much where it is zero.
                slack = 1e-6 * np.abs(qubo.fields).sum(axis=0)
                slope = (qubo.fields * states).sum(axis=0)
                wrong += int(np.sum(slope > slack))
                count += len(slope)
    return count, wrong


def wide_layers():
    """No target: the sweeps of wide layers, with rows and no couplings."""
    print("\nWide layer, n = 784, m = 256, htanh, sigma sqrt(n) = 3, rows form")
    print(f"{'B':>5}{'sweeps':>8}{'ms':>8}{'E/E_rand':>10}")
    for batch in (64, 128):
        problem = Instance(
            "htanh", batch, 784, 256, 3 / np.sqrt(784), 0
        ).rows_problem
        z = np.float64(problem.normalized_rows)
        v = np.float64(problem.row_gradients)
        random = (v**2).sum(axis=0) + (z**2).sum()
        for count in (1, 2, 3, 5):

            @tf.function(jit_compile=True)
            def swept(problem, seed, count=count):
                return sweeps.cyclic_sweeps(problem, seed, count)

            seconds = cpu_seconds(swept, problem, 5)
            residual = v - z @ swept(problem, tf.constant([0, 0])).numpy()
            quality = np.mean((residual**2).sum(axis=0) / random)
            print(
                f"{batch:>5}{count:>8}{1e3 * seconds:>8.1f}{quality:>10.4f}",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer columns and instances"
    )
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    report = Report()
    small_layers(report, arguments.quick)
    middle_layers(report, arguments.quick)
    descent(report, arguments.quick)
    wide_layers()
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
