"""Optima that the solvers find, and their CPU time.

The problems are those of the default rule for layers with 32 inputs and 32
outputs, with random gradients and random rows of three kinds: +1 and -1 (`pm1`,
as after a binary activation), clipped normal (`htanh`, as after hard tanh), or
0 and 1 with density 0.11 (`sparse`, one-hot features as in Adult). Every solver
solves them from scratch, with `backend.solve`. In training, `native` continues
from the states of the last step instead.

- `optima`: columns whose energy is that of the optimum, up to rounding. A
  Gurobi proves the optimum.
- `gap`: (E - E*) / (E_rand - E*), where E* is the optimum and E_rand is the
  mean energy of a random state. The mean over all columns.
- `time`: CPU time of a call, relative to `native`, with which the others take
  turns (see `timing.py`).
"""

import dataclasses
import inspect

import numpy as np
import tensorflow as tf

from keras_qpsbgd import backends
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.optimizers import QPSBGD
from keras_qpsbgd.optimizers import averaged_rule
from keras_qpsbgd.qubo import Qubo
from research.bench import timing
from research.engine import tables

HELP = "optima and CPU time of the solvers (1 minute)"
KINDS = ("pm1", "htanh", "sparse")
DENSITY = 0.11
# The parameters of the solvers were tuned on other seeds.
FIRST_SEED = 1000
YARDSTICK = "native"
ANNEALING = "simulated_annealing"
SOLVERS = {
    YARDSTICK: "native",
    "once": {"name": "native", "preset": "once"},
    "ridge": "ridge",
    "sign": "sign",
    "annealing-1": {"name": ANNEALING, "num_reads": 1},
    "annealing-10": {"name": ANNEALING, "num_reads": 10},
}
LABELS = {
    "once": '`native`, `preset="once"`',
    "annealing-1": f"`{ANNEALING}`, 1 read",
    "annealing-10": f"`{ANNEALING}`, 10 reads",
}
INPUTS = OUTPUTS = 32
ROWS = 640  # about as many as a moving average has
LAYERS = 3  # of each kind
KAPPA = inspect.signature(QPSBGD).parameters["kappa"].default
FOUND = 1e-6  # of E_rand - E*
SECONDS, BLOCKS = 0.05, 9


def measure(quick):
    """Solves all problems with all solvers."""
    layers = 1 if quick else LAYERS
    problems = [problem(kind, seed) for kind in KINDS for seed in range(layers)]
    solvers = {name: backends.get(found) for name, found in SOLVERS.items()}
    gurobi = backends.get("gurobi")
    found = {name: [] for name in solvers}
    for index, qubo in enumerate(problems):
        show_status(f"problem {index + 1} of {len(problems)}")
        states = {
            name: backend.solve(qubo, index).states
            for name, backend in solvers.items()
        }
        energies = {name: qubo.energy(each) for name, each in states.items()}
        exact = gurobi.solve(qubo)
        assert exact.info["proven_optimal"].all()
        optimum = qubo.energy(exact.states)
        for name, each in energies.items():
            found[name] += list(gaps_of(each, optimum, qubo))
    return {
        "columns": len(problems) * OUTPUTS,
        "solvers": {
            name: {
                "optima": int(np.sum(np.array(gaps) <= FOUND)),
                "gap": float(np.mean(gaps)),
            }
            for name, gaps in found.items()
        },
        "times": _times(problems[0], solvers, quick),
    }


def problem(kind, seed):
    """Returns the `Qubo` of a layer by the default rule.

    Args:
        kind: One of `KINDS`.
        seed: Integer.
    """
    rng = np.random.default_rng(FIRST_SEED + seed)
    rows = tf.constant(rows_of(kind, ROWS, INPUTS, rng), tf.float32)
    v = tf.constant(rng.standard_normal((ROWS, OUTPUTS)), tf.float32)
    gradient = tf.matmul(rows, v, transpose_a=True)
    moments = tf.matmul(rows, rows, transpose_a=True)
    covariance = moments / tf.linalg.trace(moments)
    (found,) = first_problems(gradient, covariance[None])
    return Qubo(np.float64(found.couplings), np.float64(found.fields))


def first_problems(gradient, covariance):
    """Returns the problems of a first update, without earlier averages.

    Args:
        gradient: Tensor of shape `(n, m)`.
        covariance: Tensor of shape `(blocks, width, width)`.
    """
    zeros = tf.zeros_like(gradient), tf.zeros((averaged_rule.SCALARS,))
    found = averaged_rule.averages(gradient, *zeros, beta=0.0)
    scales = averaged_rule.scales(found, covariance, KAPPA)
    return averaged_rule.scaled(covariance, gradient, gradient, *scales)


def rows_of(kind, batch, n, rng):
    """Returns random rows.

    Args:
        kind: One of `KINDS`.
        batch: Number of rows.
        n: Number of inputs.
        rng: `numpy.random.Generator`.
    """
    if kind == "pm1":
        return rng.choice([-1.0, 1.0], size=(batch, n))
    if kind == "htanh":
        return np.clip(rng.standard_normal((batch, n)), -1.0, 1.0)
    if kind == "sparse":
        return (rng.random((batch, n)) < DENSITY).astype(np.float64)
    raise ValueError(f"`kind` must be one of {KINDS}. Received: {kind}")


def gaps_of(energies, best, qubo):
    """Returns (E - E_best) / (E_rand - E_best) of each column."""
    reach = np.maximum(qubo.random_energy() - best, 1e-30)
    return (energies - best) / reach


def _times(qubo, solvers, quick):
    sides = {name: _side(each, qubo, quick) for name, each in solvers.items()}
    yardstick = backends.get(SOLVERS[YARDSTICK])
    _, found = timing.compare(
        _side(yardstick, qubo, quick), sides, show=show_status
    )
    return {name: dataclasses.asdict(times) for name, times in found.items()}


def _side(backend, qubo, quick):
    """Returns blocks of about `SECONDS` each."""
    backend.solve(qubo, 0)  # compiles
    once = timing.Side(lambda: backend.solve(qubo, 0), 1, 1)
    steps = max(1, round(SECONDS / timing.per_step(once)[1]))

    def block():
        for seed in range(steps):
            backend.solve(qubo, seed)

    return timing.Side(block, steps, 2 if quick else BLOCKS)


def blocks(result):
    """Returns the block `solver`."""
    head = ["solver", f"optima of {result['columns']}", "mean gap"]
    head += [f"CPU time / `{YARDSTICK}`"]
    lines = [
        [
            LABELS.get(name, f"`{name}`"),
            f"{found['optima']}",
            f"{found['gap']:.4f}",
            timing.text(result["times"][name]["cpu_ratios"]),
        ]
        for name, found in result["solvers"].items()
    ]
    return {"solver": tables.markdown_table(head, lines)}
