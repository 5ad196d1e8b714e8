"""CPU time of the calls of a training step.

The yardstick is the loop that nobody can do without: `sampler.sample(bqm)` of
the mock chip for the same embedded problems with the same parameters, 100 reads
each. A step of the backend does that and everything else: packing (cached),
embedding, scaling, spin reversals, timeouts, the vote of the chains and the
energies of all reads. Both take turns in one process, see
`research.bench.timing`, and the ratio is the median over several blocks.

Simulated annealing takes most of the CPU time of both. A real chip needs none,
so the table also has the difference in milliseconds per call.
"""

import numpy as np

from keras_qpsbgd.backends.dwave.mock import MockQPU
from keras_qpsbgd.backends.dwave.qpu import DWaveBackend
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.qubo import Qubo
from research.bench import timing

NETWORKS = {"16-4-4-2": (16, 4, 4, 2), "64-64-10": (64, 64, 10)}
CHIPS = {"P16": "pegasus", "Z12": "zephyr"}
# Steps per block and number of blocks.
BLOCKS = {"16-4-4-2": (10, 9), "64-64-10": (1, 5)}
ROWS, READS = 64, 100
TARGET = 1.2


class RecordingQPU(MockQPU):
    """A mock chip that remembers the problems it receives."""

    def __init__(self, topology):
        super().__init__(topology)
        self.problems = None

    def sample(self, bqm, **parameters):
        if self.problems is not None:
            self.problems.append((bqm, parameters))
        return super().sample(bqm, **parameters)


def measure(options):
    """Returns one row for each network and chip."""
    rows = []
    chips = options.wanted(CHIPS)
    networks = options.wanted(NETWORKS)
    if options.quick:
        chips, networks = chips[:1], networks[:1]
    for chip in chips:
        for network in networks:
            steps, blocks = BLOCKS[network]
            found = _measure(
                CHIPS[chip],
                NETWORKS[network],
                steps,
                3 if options.quick else blocks,
            )
            rows.append({"network": network, "chip": chip, **found})
    return rows


def random_qubos(units, seed):
    """Returns the QUBOs of a network with random data, one per layer."""
    rng = np.random.default_rng(seed)
    return [
        Qubo.from_rows(rng.normal(size=(ROWS, n)), rng.normal(size=(ROWS, m)))
        for n, m in zip(units, units[1:])
    ]


def _measure(topology, units, steps, blocks):
    sampler = RecordingQPU(topology)
    backend = DWaveBackend(sampler=sampler, num_reads=READS)
    qubos = random_qubos(units, seed=0)
    seeds = list(range(len(qubos)))

    def solve():
        for found in backend.solve_layers(qubos, seeds, True):
            if isinstance(found, Exception):
                raise found

    sampler.problems = []
    solve()
    problems, sampler.problems = sampler.problems, None

    def sample():
        for bqm, parameters in problems:
            # A future resolves when its samples are read.
            sampler.sample(bqm, **parameters).resolve()

    def repeated(function):
        return timing.Side(
            lambda: [function() for _ in range(steps)], steps, blocks
        )

    yardstick, sides = timing.compare(
        repeated(sample), {"backend": repeated(solve)}, show=show_status
    )
    side = sides["backend"]
    return {
        "calls": len(problems),
        "sample_ms": 1000 * yardstick.cpu / len(problems),
        "backend_ms": 1000 * side.cpu / len(problems),
        "ratio": side.cpu_ratio,
    }


def table(rows):
    """Returns CPU milliseconds per call and their ratio, as lines of text."""
    head = (
        f"{'network':<12}{'chip':<6}{'calls':>6}{'sample ms':>12}"
        f"{'backend ms':>12}{'more ms':>10}{'ratio':>8}"
    )
    lines = [f"CPU time of a call, {READS} reads", head, "-" * len(head)]
    for row in rows:
        more = row["sample_ms"] * (row["ratio"] - 1)
        lines.append(
            f"{row['network']:<12}{row['chip']:<6}{row['calls']:>6}"
            f"{row['sample_ms']:>12.1f}{row['backend_ms']:>12.1f}{more:>10.1f}"
            f"{row['ratio']:>8.3f}"
        )
    return lines


def verdicts(rows):
    """Checks the ratio of each network and chip."""
    return [
        (
            row["ratio"] <= TARGET,
            f"CPU time of a call, {row['network']} on {row['chip']}: "
            f"{row['ratio']:.3f} times `sampler.sample` (<= {TARGET:g})",
        )
        for row in rows
    ]
