"""Overhead of the adapters between layers and solvers, as ratios.

    python -m research.bench.adapters

1. QPU time of the columns of a layer in one call, compared to one call per
   column, according to Ocean's cost model (no QPU is called).
2. CPU time of a layer with the adapter, compared to a loop over
   `sampler.sample(bqm)` with existing models. The difference is everything
   except the time of the sampler itself.
3. CPU time of QPU calls without the chip, compared to the QPU time that is
   charged for them.
4. Benefit of scaling every column to the ranges of the chip separately.

The script first prints how many columns fit on a chip, and the cost of
optimality proofs with Gurobi.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tempfile
import time

import numpy as np
from dwave.samplers import SimulatedAnnealingSampler

import keras_qpsbgd as kq
from keras_qpsbgd.backends.dwave import cost
from keras_qpsbgd.backends.dwave import ranges
from keras_qpsbgd.backends.dwave.cliques import Cliques
from keras_qpsbgd.backends.dwave.cliques import longest_chain
from keras_qpsbgd.backends.dwave.mock import MockQPU
from keras_qpsbgd.backends.host.samplers import beta_range

# Real chips of these topologies have about this many dead qubits.
DEAD = (("pegasus", 0), ("zephyr", 0), ("pegasus", 28), ("zephyr", 223))
COLUMNS = 64
INPUTS = 16
REPEATS = 15


def problem(n=INPUTS, m=COLUMNS, seed=0):
    rng = np.random.default_rng(seed)
    return kq.Qubo.from_rows(rng.normal(size=(64, n)), rng.normal(size=(64, m)))


def cpu_seconds(function, *args):
    start = time.process_time()
    function(*args)
    return time.process_time() - start


def one_call():
    print("QPU time of a layer, 100 reads: one call per column / fewest calls")
    for topology in ("pegasus", "zephyr"):
        backend = kq.backends.get(
            {"name": "dwave", "mock": True, "topology": topology}
        )
        for n, m in ((8, 64), (16, 64), (32, 64), (64, 64)):
            layer = cost.layer_cost(backend, n, m)
            print(
                f"  {topology:<8} {n:>3} x {m}: {layer.calls:>2} call(s), "
                f"{1000 * layer.one_by_one_seconds:7.1f} / "
                f"{1000 * layer.seconds:6.1f} ms = "
                f"{layer.one_by_one_seconds / layer.seconds:5.1f}"
            )


def adapter():
    """Alternates both, so that other load on the machine affects both."""
    sampler = SimulatedAnnealingSampler()
    qubo = problem()
    print(f"\n{COLUMNS} columns of {INPUTS} inputs, simulated annealing:")
    for reads, sweeps in ((10, 1000), (10, 100), (1, 1000), (1, 100)):
        backend = kq.backends.get(
            {
                "name": "simulated_annealing",
                "num_reads": reads,
                "num_sweeps": sweeps,
            }
        )
        models = [qubo.to_bqm(column) for column in range(COLUMNS)]
        # Both get the same range, computed once. Computing its default range
        # takes the sampler longer than annealing and would favor the adapter.
        parameters = {
            "num_reads": reads,
            "num_sweeps": sweeps,
            "beta_range": beta_range(qubo),
        }
        ratios = [
            cpu_seconds(backend.solve, qubo)
            / cpu_seconds(_loop, sampler, models, parameters)
            for _ in range(REPEATS)
        ]
        print(
            f"  {reads:>2} reads of {sweeps:>4} sweeps: adapter / loop "
            f"{np.median(ratios):.2f} (quartiles "
            f"{np.quantile(ratios, 0.25):.2f} to "
            f"{np.quantile(ratios, 0.75):.2f})"
        )


def _loop(sampler, models, parameters):
    for seed, model in enumerate(models):
        sampler.sample(model, seed=seed, **parameters)


def client():
    """CPU time of a QPU call on the client side."""
    annealing = []

    class Timed(MockQPU):
        def sample(self, *args, **kwargs):
            start = time.process_time()
            answer = super().sample(*args, **kwargs)
            annealing.append(time.process_time() - start)
            return answer

    print("\nCPU time without the chip / QPU time, per call of 100 reads:")
    for n, m in ((16, 4), (16, 64), (64, 7)):
        backend = kq.backends.get({"name": "dwave", "mock": True})
        backend.sampler = Timed()
        qubo = problem(n, m)
        backend.solve(qubo)  # embeds
        ratios = []
        for _ in range(5):
            annealing.clear()
            took = cpu_seconds(backend.solve, qubo) - sum(annealing)
            charged = backend.estimate(n, m)
            ratios.append(took / charged)
        print(
            f"  {n:>3} x {m:<3} {1000 * charged:5.1f} ms of QPU time: "
            f"{np.median(ratios):.1f}"
        )


def scaling():
    """Columns with gradients from 10 down to 0.1, on the mock QPU.

    The mock QPU has the temperature of a chip but not its control errors, which
    would increase the difference.
    """
    sizes = np.logspace(1, -1, 32)
    gaps, breaks = {}, {}
    for seed in range(12):
        whole = problem(INPUTS, 32, seed)
        qubo = kq.Qubo(whole.couplings, whole.fields * sizes)
        best = kq.backends.get("exact").solve(qubo).energies
        trace = np.trace(qubo.couplings)
        for name, scales in (
            ("each column scaled separately", ranges.Limits.scales),
            ("same scale for all columns", _one_scale),
        ):
            original, ranges.Limits.scales = ranges.Limits.scales, scales
            found = kq.backends.get({"name": "dwave", "mock": True}).solve(qubo)
            ranges.Limits.scales = original
            gap = (found.energies - best) / (trace - best)
            gaps.setdefault(name, []).append(gap.mean())
            broken = found.info["chain_break_fraction"].mean()
            breaks.setdefault(name, []).append(broken)
    print(
        "\nMean gap of 32 columns with gradients from 10 to 0.1, 100 reads, "
        "12 problems:"
    )
    for name, values in gaps.items():
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        print(
            f"  {name:<29} {np.mean(values):.4f} +- {error:.4f}, "
            f"chain breaks {np.mean(breaks[name]):.4f}"
        )


def _one_scale(limits, linear, pairs, part, num_parts):
    """Returns the scale of the whole problem, for every column."""
    del part
    return np.full(num_parts, 1 / limits.excess(linear, pairs)[0])


def copies():
    """Number of columns that a chip anneals at once, without a cache."""
    sizes = (4, 8, 16, 32, 64)
    print("\nColumns in one call (longest chain), largest complete graph:")
    print(f"  {'':<18}" + "".join(f"{f'K{n}':>12}" for n in sizes))
    for topology, dead in DEAD:
        nodes = MockQPU(topology).nodelist
        rng = np.random.default_rng(0)
        graph = MockQPU(
            topology, dead_qubits=rng.choice(nodes, dead, replace=False)
        ).to_networkx_graph()
        with tempfile.TemporaryDirectory() as directory:
            known = Cliques(graph, directory)
            start = time.process_time()
            found = [known.copies(n) for n in sizes]
            cells = [f"{len(c)} ({longest_chain(c)})" for c in found]
            largest = known.largest()
            seconds = time.process_time() - start
        name = f"{topology}, {dead} dead"
        print(
            f"  {name:<18}" + "".join(f"{cell:>12}" for cell in cells),
            f"K{largest}, {seconds:.0f} s of CPU",
        )


def gurobi():
    """Cost of a proof, by number of inputs and size of the gradient."""
    print("\nGurobi, 4 columns, 64 rows: CPU ms per column (share proven):")
    for scale in (0.1, 1.0):
        cells = []
        for n in (16, 24, 32, 64, 128):
            whole = problem(n, 4)
            qubo = kq.Qubo(whole.couplings, scale * whole.fields)
            backend = kq.backends.get("gurobi")
            backend.check(n, 4)
            start = time.process_time()
            proven = backend.solve(qubo).info["proven_optimal"].mean()
            each = 1000 * (time.process_time() - start) / 4
            cells.append(f"n={n}: {each:.1f} ({100 * proven:.0f} %)")
        print(f"  gradient {scale}: " + ", ".join(cells))


if __name__ == "__main__":
    copies()
    gurobi()
    one_call()
    adapter()
    client()
    scaling()
