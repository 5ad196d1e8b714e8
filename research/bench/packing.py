"""QPU time of a training step, with and without shared calls.

For each network and chip, by Ocean's cost model with 100 reads:

- `separate`: one call per layer, or more if its columns do not fit;
- `packed`: the columns of all layers side by side;
- `CPU`: CPU time of the packing.

Chips with defects have as many dead qubits as real ones (28 and 223, drawn at
random) and 60 dead couplers. Layers that are wider than the largest complete
graph on a chip are solved in blocks.
"""

import random
import time

import numpy as np

from keras_qpsbgd.backends.dwave.cost import step_calls
from keras_qpsbgd.backends.dwave.mock import MockQPU
from keras_qpsbgd.backends.dwave.qpu import DWaveBackend
from keras_qpsbgd.backends.host import block_descent
from keras_qpsbgd.cli.console import show_status

HELP = "QPU time of a step with shared calls (3 minutes)"
THREADS = (1,)

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
# How many times less QPU time a step must take.
TARGETS = {"16-4-4-2": 2.4, "64-64-10": 1.0, "123-128x9-1": 1.0}
CPU_TARGET = 10.0


def names():
    """Returns the names that `--only` accepts."""
    return [*NETWORKS, *CHIPS]


def measure(options):
    """Measures all networks on all chips."""
    rows = []
    networks = options.wanted(NETWORKS)
    if options.quick:
        networks = networks[:1]
    for name in options.wanted(CHIPS):
        sampler = open_chip(*CHIPS[name])
        for network in networks:
            show_status(f"{network} on {name}")
            units = NETWORKS[network]
            sizes = tuple(zip(units, units[1:]))
            row = {"network": network, "chip": name}
            rows.append({**row, **measure_network(sampler, sizes)})
    return {"rows": rows}


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
    """Returns the calls, QPU seconds and CPU seconds of a network."""
    backend = DWaveBackend(sampler=sampler, num_reads=100)
    backend.open()
    start = time.process_time()
    step = step_calls(backend, sizes)
    cpu = time.process_time() - start
    separate = [seconds_per_call(backend, *size) for size in sizes]
    return {
        "calls": step.num_calls,
        "separate_calls": sum(map(len, separate)),
        "seconds": step.seconds,
        "separate_seconds": sum(map(sum, separate)),
        "cpu": cpu,
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


def _ratio(row):
    return row["separate_seconds"] / row["seconds"]


def table(results):
    """Returns calls and milliseconds per step, and CPU seconds, as text."""
    head = (
        f"{'network':<13}{'chip':<12}{'calls':>7}{'packed':>8}{'ms':>11}"
        f"{'packed':>11}{'ratio':>7}{'CPU s':>8}"
    )
    lines = ["QPU time of a step, 100 reads", head, "-" * len(head)]
    for result in results.values():
        for row in result["rows"]:
            lines.append(
                f"{row['network']:<13}{row['chip']:<12}"
                f"{row['separate_calls']:>7,}{row['calls']:>8,}"
                f"{1000 * row['separate_seconds']:>11,.1f}"
                f"{1000 * row['seconds']:>11,.1f}{_ratio(row):>7.2f}"
                f"{row['cpu']:>8.2f}"
            )
    return "\n".join(lines)


def verdicts(results):
    """Checks the QPU time of every network, and the CPU time."""
    found = []
    rows = [row for result in results.values() for row in result["rows"]]
    for network, target in TARGETS.items():
        ratios = [_ratio(row) for row in rows if row["network"] == network]
        if ratios:
            found.append(
                (
                    # Sums of the same numbers differ in the last digit.
                    min(ratios) >= target - 1e-9,
                    f"{network}: {min(ratios):.2f} times less QPU time "
                    f"(>= {target:g})",
                )
            )
    cpu = max(row["cpu"] for row in rows)
    found.append(
        (
            cpu <= CPU_TARGET,
            f"CPU time of the packing: {cpu:.1f} s (<= {CPU_TARGET:g})",
        )
    )
    return found
