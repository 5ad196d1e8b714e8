"""Optima that `native` finds, and its CPU time next to simulated annealing.

`optimum` counts the columns for which the native backend finds the optimum:

- With up to 16 inputs, the backend enumerates all states. All presets are the
  same there, so only the default is measured. The layers have 8 columns, all
  kinds of rows, 1 to 64 rows, and small to large gradients, some of them
  planted. A separate enumeration in float64 computes the optimum.
- With 32 inputs, `once` searches. A sphere decoder proves the optimum.

An optimum counts as found if the energy is equal up to rounding, relative to
E_rand, the mean energy of a random state. The energy itself can be close to
zero, where float32 is not precise enough for a relative comparison.

`annealing` divides the CPU time of dwave-samplers' simulated annealing with 10
reads of 1,000 sweeps by that of `native` in a graph, for the 16 columns of a
layer with 16 inputs. The sampler gets existing models, and temperatures that
are computed once per layer.
"""

import itertools

import numpy as np
import tensorflow as tf

from keras_qpsbgd import backends
from keras_qpsbgd import ops
from keras_qpsbgd.backends.host import samplers
from keras_qpsbgd.cli.console import show_status
from research.bench import instances
from research.bench import sphere_decoder
from research.bench import step
from research.bench import timing

HELP = "optima of native, CPU time of annealing / native (5 minutes)"
THREADS = (1,)

OPTIMUM = "optimum"
ANNEALING = "annealing"
CELLS = instances.CELLS + instances.PLANTED_CELLS
SMALL_SIZES = (2, 3, 5, 8, 10, 12, 14, 16)
SMALL_COLUMNS = 8
SMALL_BATCHES = (1, 4, 16, 64)
SMALL_SIGMAS = (0.001, 0.01, 0.1, 1.0)
SMALL_FOUND = 1e-5
PROVEN_SIZE = 32
PROVEN_COLUMNS = 512
FOUND = 1e-6
SEED = tf.constant([0, 0])
# The layer, the calls of `native` in a graph, and the reads of annealing.
ANNEALED_SIZE = 16
CALLS = 32
NUM_READS = 10
NUM_SWEEPS = 1000


def names():
    """Returns the names that `--only` accepts."""
    return [OPTIMUM, ANNEALING]


def measure(options):
    """Measures both parts."""
    part = 8 if options.quick else 1
    wanted = options.wanted(names())
    found = {}
    if OPTIMUM in wanted:
        found[OPTIMUM] = {
            "small": _small(part),
            "proven": _proven(PROVEN_COLUMNS // part),
        }
    if ANNEALING in wanted:
        found[ANNEALING] = [
            _annealing(cell, blocks=1 if options.quick else 5)
            for cell in CELLS[::part]
        ]
    return found


# Optima


def small_cells():
    """Returns the cells for layers with up to 16 inputs."""
    settings = itertools.product(
        instances.KINDS, SMALL_BATCHES, SMALL_SIGMAS, (False, True)
    )
    return [
        instances.Cell(batch, kind, sigma, planted)
        for kind, batch, sigma, planted in settings
        # One batch size for planted cells, as it hardly matters there.
        if not planted or batch == SMALL_BATCHES[-1]
    ]


def _small(part):
    backend = backends.get("native")
    counts = []
    for n in SMALL_SIZES:
        show_status(f"optimum, n = {n}")
        found = []
        for index, cell in enumerate(small_cells()):
            if index % part:
                continue
            instance = instances.Instance.of_cell(
                cell, n, SMALL_COLUMNS, 100 * n + index
            )
            found.append(
                _excess(
                    backend.solve_in_graph(instance.problem, SEED).numpy(),
                    instance.qubo,
                    lambda qubo, _: sphere_decoder.enumerate_states(qubo),
                )
            )
        excess = np.concatenate(found)
        counts.append({"n": n, **_counts(excess, SMALL_FOUND)})
    return counts


def _proven(wanted):
    backend = backends.get({"name": "native", "preset": "once"})
    counts = []
    cells = itertools.cycle(CELLS)
    done = 0
    while done < wanted:
        cell = next(cells)
        m = min(PROVEN_SIZE, wanted - done)
        show_status(
            f"proven optimum, n = {PROVEN_SIZE}: {done} of {wanted} columns"
        )
        instance = instances.Instance.of_cell(
            cell, PROVEN_SIZE, m, 50_000 + done
        )
        found = backend.solve(instance.qubo, done).states
        excess = _excess(found, instance.qubo, sphere_decoder.decode)
        counts.append(
            {"batch": cell.batch, "kind": cell.name, **_counts(excess, FOUND)}
        )
        done += m
    return counts


def _excess(states, qubo, optimum):
    """Returns (E - E*) / E_rand of each column.

    Args:
        states: Array of shape `(n, m)`.
        qubo: A `Qubo`.
        optimum: Function of a `Qubo` and states that returns the best states.
    """
    excess = qubo.energy(states) - qubo.energy(optimum(qubo, states))
    # If no input is ever active, all states have the same energy.
    return excess / np.maximum(qubo.random_energy(), 1e-30)


def _counts(excess, bound):
    return {
        "columns": len(excess),
        "found": int(np.sum(excess <= bound)),
        "worst": float(excess.max()),
    }


# Annealing


def _annealing(cell, blocks):
    """Returns a row with the ratio of the CPU times for one layer."""
    from dwave.samplers import SimulatedAnnealingSampler

    show_status(f"annealing, B = {cell.batch}, {cell.name}")
    size = ANNEALED_SIZE
    instance = instances.Instance.of_cell(cell, size, size, CELLS.index(cell))
    backend = backends.get("native")
    sampler = SimulatedAnnealingSampler()
    temperatures = samplers.beta_range(instance.qubo)
    models = [instance.qubo.to_bqm(column) for column in range(size)]

    def solve(index, *problem):
        seed = tf.constant([index, 0])
        return backend.solve_in_graph(ops.Problem(*problem), seed)

    def anneal():
        for seed, model in enumerate(models):
            sampler.sample(
                model,
                num_reads=NUM_READS,
                num_sweeps=NUM_SWEEPS,
                beta_range=temperatures,
                seed=seed,
            )

    problems = instances.copies(instance.problem, CALLS)
    base, found = timing.compare(
        step.calls_side(solve, problems, repeats=4, blocks=0),
        {"annealing": timing.Side(anneal, steps=1, blocks=blocks)},
    )
    return {
        "batch": cell.batch,
        "kind": cell.name,
        "native_ms": 1000 * base.cpu,
        "annealing_ms": 1000 * found["annealing"].cpu,
        "ratio": found["annealing"].cpu_ratio,
    }


# The report


def table(results):
    """Returns the counts and the times as text."""
    blocks = []
    for result in results.values():
        if OPTIMUM in result:
            counts = result[OPTIMUM]
            blocks += [
                "native, up to 16 inputs, compared to the enumerated optimum\n"
                + "\n".join(_rows(("n",), counts["small"])),
                f"once, n = {PROVEN_SIZE}, compared to the optimum proven by "
                "sphere decoding\n"
                + "\n".join(_rows(("batch", "kind"), counts["proven"])),
            ]
        if ANNEALING in result:
            blocks.append(_annealing_table(result[ANNEALING]))
    return "\n\n".join(blocks)


def _annealing_table(rows):
    head = f"{'batch':>9}{'kind':>9}{'native':>9}{'annealing':>11}{'ratio':>8}"
    lines = [
        f"CPU ms of a layer {ANNEALED_SIZE} x {ANNEALED_SIZE}, and annealing "
        f"with {NUM_READS} reads / native",
        head,
        "-" * len(head),
    ]
    lines += [
        f"{row['batch']:>9}{row['kind']:>9}{row['native_ms']:>9.3f}"
        f"{row['annealing_ms']:>11.1f}{row['ratio']:>8.0f}"
        for row in rows
    ]
    return "\n".join(lines)


def _rows(keys, counts):
    head = "".join(f"{key:>9}" for key in keys)
    head += f"{'columns':>9}{'found':>8}{'worst (E - E*) / E_rand':>25}"
    yield head
    yield "-" * len(head)
    groups = {}
    for row in counts:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    for group, rows in groups.items():
        columns, found = _totals(rows)
        worst = max(row["worst"] for row in rows)
        line = "".join(f"{value:>9}" for value in group)
        yield f"{line}{columns:>9}{found:>8}{worst:>25.1e}"


def _totals(counts):
    return [sum(row[key] for row in counts) for key in ("columns", "found")]
