"""Share of columns for which the native backend finds the optimum.

- With up to 16 inputs, the backend enumerates all states. All presets are the
  same there, so only the default is measured. The layers have 8 columns, all
  kinds of rows, 1 to 64 rows, and small to large gradients, some of them
  planted. A separate enumeration in float64 computes the optimum.
- With 32 inputs, `once` searches. A sphere decoder proves the optimum.

An optimum counts as found if the energy is equal up to rounding, relative to
E_rand. The energy itself can be close to zero, where float32 is not precise
enough for a relative comparison.
"""

import itertools

import numpy as np
import tensorflow as tf

from keras_qpsbgd import backends
from keras_qpsbgd.cli.console import show_status
from research.bench.solvers import instances
from research.bench.solvers import sphere_decoder

SMALL_SIZES = (2, 3, 5, 8, 10, 12, 14, 16)
SMALL_COLUMNS = 8
SMALL_BATCHES = (1, 4, 16, 64)
SMALL_SIGMAS = (0.001, 0.01, 0.1, 1.0)
SMALL_FOUND = 1e-5
PROVEN_SIZE = 32
PROVEN_COLUMNS = 512
TARGET_FOUND = 0.995
FOUND = 1e-6
SEED = tf.constant([0, 0])


def measure(quick):
    """Returns the numbers of columns and of optima found.

    Args:
        quick: Whether to measure only an eighth of the columns.
    """
    part = 8 if quick else 1
    return {
        "small": _small(part),
        "proven": _proven(PROVEN_COLUMNS // part),
    }


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
    cells = itertools.cycle(instances.CELLS + instances.PLANTED_CELLS)
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


def table(result):
    """Returns the counts as text."""
    small = [
        "native, up to 16 inputs, compared to the enumerated optimum",
        *_rows(("n",), result["small"]),
    ]
    proven = [
        f"once, n = {PROVEN_SIZE}, compared to the optimum proven by "
        "sphere decoding",
        *_rows(("batch", "kind"), result["proven"]),
    ]
    return "\n".join(small) + "\n\n" + "\n".join(proven)


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


def verdicts(result):
    """Returns whether both targets are met."""
    small, small_found = _totals(result["small"])
    columns, found = _totals(result["proven"])
    return [
        (
            small_found == small,
            f"native, n <= 16: optimum of {small_found} of {small} columns "
            "(target: all)",
        ),
        (
            found >= TARGET_FOUND * columns,
            f"once, n = {PROVEN_SIZE}: optimum of {found} of {columns} "
            f"columns, {100 * found / columns:.1f} % "
            f"(>= {100 * TARGET_FOUND:.1f} %)",
        ),
    ]
