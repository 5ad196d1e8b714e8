"""Quality of the answers with shared calls, compared with one call per layer.

The layers of 16-4-4-2 are solved on a mock Pegasus chip for 30 steps with
random data. Each step is solved twice: in one call for all layers, and with one
call per layer. Simulated annealing with few sweeps takes the place of the chip,
so that not every read is optimal. For every step, the suite has

- `gap`: (E - E_best) / (E_rand - E_best), the mean over all columns,
- `breaks`: the mean fraction of broken chains,
- `QPU`: the QPU time by Ocean's cost model.

The differences are paired by step. Shared calls pass unless they are worse by
more than two standard errors.
"""

import numpy as np

from keras_qpsbgd import backends
from keras_qpsbgd.backends.dwave.mock import MockQPU
from keras_qpsbgd.backends.dwave.qpu import DWaveBackend
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.compare.report import canvas
from keras_qpsbgd.qubo import Qubo

HELP = "gap and broken chains with shared calls (1 minute)"
THREADS = (1,)

SIZES = ((16, 4), (4, 4), (4, 2))
ROWS, READS, SWEEPS = 64, 10, 10
FIGURES = ("gap", "breaks", "seconds")


def names():
    """Returns the names that `--only` accepts."""
    return []


def measure(options):
    """Solves all steps in both ways."""
    sampler = MockQPU("pegasus", num_sweeps=SWEEPS)
    backend = DWaveBackend(sampler=sampler, num_reads=READS)
    exact = backends.get("exact")
    found = {side: {name: [] for name in FIGURES} for side in ("shared", "own")}
    for step in range(5 if options.quick else 30):
        show_status(f"step {step}")
        qubos = _qubos(step)
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


def _qubos(step):
    rng = np.random.default_rng(step)
    return [
        Qubo.from_rows(rng.normal(size=(ROWS, n)), rng.normal(size=(ROWS, m)))
        for n, m in SIZES
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


def _difference(result, name):
    """Returns the mean of the paired differences and its standard error."""
    pairs = np.subtract(result["shared"][name], result["own"][name])
    return pairs.mean(), pairs.std(ddof=1) / np.sqrt(len(pairs))


def table(results):
    """Returns the means of both sides and their differences as text."""
    head = (
        f"{'figure':<10}{'one call':>12}{'per layer':>12}{'difference':>14}"
        f"{'error':>12}"
    )
    lines = []
    for result in results.values():
        count = len(result["own"]["gap"])
        lines += [f"16-4-4-2 on a mock P16, {count} steps", head]
        lines.append("-" * len(head))
        for name in FIGURES:
            mean, error = _difference(result, name)
            lines.append(
                f"{name:<10}{np.mean(result['shared'][name]):>12.5f}"
                f"{np.mean(result['own'][name]):>12.5f}{mean:>14.5f}"
                f"{error:>12.5f}"
            )
    return "\n".join(lines)


def verdicts(results):
    """Checks that shared calls are no worse."""
    found = []
    for result in results.values():
        for name in ("gap", "breaks"):
            mean, error = _difference(result, name)
            found.append(
                (
                    bool(mean <= 2 * error),
                    f"{name}: {mean:+.5f} with a standard error of "
                    f"{error:.5f} (<= 2 standard errors)",
                )
            )
        ratio = sum(result["own"]["seconds"]) / sum(result["shared"]["seconds"])
        found.append((ratio >= 2.4, f"QPU time: {ratio:.2f} times less"))
    return found


def draw(results, path):
    """Draws the gaps of all steps, one call against one per layer.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    figure = canvas.figure(4.5, 4.5)
    axes = figure.subplots()
    for result in results.values():
        axes.plot(
            result["own"]["gap"], result["shared"]["gap"], ".", color="#0072b2"
        )
    end = max(*axes.get_xlim(), *axes.get_ylim())
    axes.plot([0, end], [0, end], color="#777777", linewidth=1)
    axes.set_xlabel("mean gap, one call per layer")
    axes.set_ylabel("mean gap, one call")
    canvas.save(figure, path)
