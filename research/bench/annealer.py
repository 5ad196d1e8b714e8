"""What fits on a chip, and shared calls compared with one call per layer.

`chips` has the number of columns with 16 inputs that a chip anneals at once,
and the largest complete graph on it, by the embeddings of the backend.

`time` is the QPU time of a training step by Ocean's cost model with 100 reads,
for each network and chip:

- `separate`: one call per layer, or more if its columns do not fit;
- `packed`: the columns of all layers side by side.

Chips with defects have as many dead qubits as real ones (28 and 223, drawn at
random) and 60 dead couplers. Layers that are wider than the largest complete
graph on a chip are solved in blocks.

`answers` solves the layers of 16-4-4-2 on a mock Pegasus chip for 30 steps with
random data, each step twice: in one call for all layers, and with one call per
layer. Simulated annealing with few sweeps takes the place of the chip, so that
not every read is optimal. For every step, the suite has

- `gap`: (E - E_best) / (E_rand - E_best), the mean over all columns,
- `breaks`: the mean fraction of broken chains,
- `seconds`: the QPU time by Ocean's cost model.

Shared calls must not be worse by more than a margin: 0.002 of the gap and
0.0005 of the chains. The differences are paired by step. `p` is the p-value of
a one-sided paired t test of the hypothesis that the mean difference is at least
the margin (a test of non-inferiority). Margins and the level 0.05 were fixed
before the two sides were first compared. They rest on the noise of separate
calls alone: two runs of 30 other problems with different seeds differ with a
standard deviation of 0.0034 per step (gap) and 0.0008 (breaks), so `p` is below
the level with a probability of about 0.9 if both sides are equal.
"""

import random

import numpy as np
from scipy import stats

from keras_qpsbgd import backends
from keras_qpsbgd.backends import block_descent
from keras_qpsbgd.backends.dwave.cost import step_calls
from keras_qpsbgd.backends.dwave.mock import MockQPU
from keras_qpsbgd.backends.dwave.qpu import DWaveBackend
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.qubo import Qubo
from research.engine import tables

HELP = "what fits on a QPU, time and answers of shared calls (4 minutes)"
FIT, TIME, ANSWERS = "chips", "time", "answers"
INPUTS = 16
NETWORKS = {
    "16-4-4-2": (16, 4, 4, 2),
    "64-64-10": (64, 64, 10),
    "123-128x9-1": (123, *9 * [128], 1),
}
# Topology, number of dead qubits and of dead couplers.
CHIPS = {
    "P16": ("pegasus", 0, 0),
    "P16-defects": ("pegasus", 28, 60),
    "Z12": ("zephyr", 0, 0),
    "Z12-defects": ("zephyr", 223, 60),
}
STEPS, READS, SWEEPS = 30, 10, 10
FIGURES = ("gap", "breaks", "seconds")
# Largest mean differences that count as no worse.
MARGINS = {"gap": 0.002, "breaks": 0.0005}
ROWS = 64


def measure(quick):
    """Measures all parts."""
    return {
        FIT: _measure_chips(),
        TIME: _measure_time(quick),
        ANSWERS: _measure_answers(quick),
    }


# What fits on a chip


def _measure_chips():
    """Measures all chips."""
    found = {}
    for name in CHIPS:
        show_status(f"embeddings on {name}")
        sampler = open_chip(*CHIPS[name])
        cliques = DWaveBackend(sampler=sampler).open().cliques
        found[name] = {
            "columns": len(cliques.copies(INPUTS)),
            "largest": cliques.largest(),
        }
    return found


# QPU time


def _measure_time(quick):
    """Measures all networks on all chips."""
    rows = []
    networks = list(NETWORKS)[:1] if quick else NETWORKS
    for name in CHIPS:
        sampler = open_chip(*CHIPS[name])
        for network in networks:
            show_status(f"{network} on {name}")
            units = NETWORKS[network]
            sizes = tuple(zip(units, units[1:]))
            row = {"network": network, "chip": name}
            rows.append({**row, **measure_network(sampler, sizes)})
    return rows


def open_chip(topology, dead_qubits, dead_couplers):
    """Returns a mock of a whole chip, without some of its qubits."""
    whole = MockQPU(topology)
    rng = random.Random(0)
    sampler = MockQPU(
        topology, dead_qubits=rng.sample(whole.nodelist, dead_qubits)
    )
    dead = set(rng.sample(sampler.edgelist, dead_couplers))
    sampler.edgelist = [edge for edge in sampler.edgelist if edge not in dead]
    return sampler


def measure_network(sampler, sizes):
    """Returns the calls and QPU seconds of a network."""
    backend = DWaveBackend(sampler=sampler, num_reads=100)
    backend.open()
    step = step_calls(backend, sizes)
    separate = [seconds_per_call(backend, *size) for size in sizes]
    return {
        "calls": step.num_calls,
        "separate_calls": sum(map(len, separate)),
        "seconds": step.seconds,
        "separate_seconds": sum(map(sum, separate)),
    }


def seconds_per_call(backend, n, m):
    """Returns the QPU seconds of the calls of a layer that shares none.

    The calls have about equal numbers of columns.
    """
    width = max(block_descent.block_sizes(n, backend.block_size_for(n)))
    rounds = 1 if width == n else -(-n // width) * backend.block_sweeps
    copies = backend.open().cliques.copies(width, m)
    per_call = -(-m // -(-m // len(copies)))
    counts = [min(per_call, m - k) for k in range(0, m, per_call)]
    qubits = np.cumsum([sum(map(len, copy.values())) for copy in copies])
    seconds = [backend.call_seconds(int(qubits[k - 1])) for k in counts]
    return rounds * seconds


# Answers


def _measure_answers(quick):
    """Solves all steps in both ways."""
    sampler = MockQPU("pegasus", num_sweeps=SWEEPS)
    backend = DWaveBackend(sampler=sampler, num_reads=READS)
    exact = backends.get("exact")
    found = {side: {name: [] for name in FIGURES} for side in ("shared", "own")}
    for step in range(5 if quick else STEPS):
        show_status(f"step {step}")
        qubos = random_qubos(NETWORKS["16-4-4-2"], step)
        best = [exact.solve(qubo).energies for qubo in qubos]
        # Seeds of the layers, as in training.
        seeds = [7919 * layer + step for layer in range(len(qubos))]
        shared = backend.solve_layers(qubos, seeds, True)
        own = [backend.solve(*problem) for problem in zip(qubos, seeds)]
        for side, solutions in (("shared", shared), ("own", own)):
            for solution in solutions:
                if isinstance(solution, Exception):
                    raise solution
            for name, value in _figures(qubos, best, solutions).items():
                found[side][name].append(value)
    show_status("")
    return found


def random_qubos(units, seed):
    """Returns the QUBOs of a network with random data, one per layer."""
    rng = np.random.default_rng(seed)
    return [
        Qubo.from_rows(rng.normal(size=(ROWS, n)), rng.normal(size=(ROWS, m)))
        for n, m in zip(units, units[1:])
    ]


def _figures(qubos, best, solutions):
    gaps, breaks = [], []
    for qubo, lowest, solution in zip(qubos, best, solutions):
        gaps.append(
            (solution.energies - lowest) / (qubo.random_energy() - lowest)
        )
        breaks.append(solution.info["chain_break_fraction"])
    microseconds = sum(s.info["qpu_access_time"] for s in solutions)
    return {
        "gap": float(np.concatenate(gaps).mean()),
        "breaks": float(np.concatenate(breaks).mean()),
        "seconds": 1e-6 * microseconds,
    }


def compare(shared, own, margin):
    """Tests whether shared calls are worse by less than a margin.

    Args:
        shared: List of floats, one per step.
        own: List of floats, one per step.
        margin: Float.

    Returns:
        A tuple `(mean, error, p)`: the mean of the paired differences, its
        standard error, and the p-value of the hypothesis that the mean is at
        least the margin.
    """
    pairs = np.subtract(shared, own)
    mean, error = pairs.mean(), pairs.std(ddof=1) / np.sqrt(len(pairs))
    if not error:  # the test divides by it
        return mean, error, float(mean >= margin)
    p = stats.ttest_1samp(pairs, margin, alternative="less").pvalue
    return mean, error, float(p)


# The tables of the documentation


def blocks(result):
    """Returns the block `annealer`."""
    ratios = {
        (row["chip"], row["network"]): row["separate_seconds"] / row["seconds"]
        for row in result[TIME]
    }
    chips = result[FIT]
    networks = dict.fromkeys(network for _, network in ratios)
    head = ["", *map(_chip_name, chips)]
    lines = [
        [f"columns of {INPUTS} inputs in one call"]
        + [str(found["columns"]) for found in chips.values()],
        ["inputs of the widest QUBO in one piece"]
        + [str(found["largest"]) for found in chips.values()],
    ]
    lines += [
        [f"{network}, QPU time: one call per layer / shared calls"]
        + [f"{ratios[chip, network]:.2f}" for chip in chips]
        for network in networks
    ]
    return {
        "annealer": f"{tables.markdown_table(head, lines)}\n\n"
        + _answers_text(result[ANSWERS])
    }


def _chip_name(name):
    topology, qubits, couplers = CHIPS[name]
    dead = f", {qubits} dead qubits and {couplers} couplers" if qubits else ""
    return topology.capitalize() + dead


def _answers_text(result):
    parts = []
    for name, word in (("gap", "mean gap"), ("breaks", "broken chains")):
        sides = result["shared"][name], result["own"][name]
        mean, error, p = compare(*sides, MARGINS[name])
        parts.append(
            f"{word} {mean:.4f} +- {error:.4f} (worse by less than "
            f"{MARGINS[name]:g}: p = {p:.3f})"
        )
    return (
        "Times are those of Ocean's cost model with 100 reads. Answers of "
        "16-4-4-2 on the mock QPU, one call minus one call per layer, "
        f"{len(result['own']['gap'])} paired steps: {' and '.join(parts)}."
    )
