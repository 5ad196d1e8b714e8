"""Answers of shared calls, compared with one call per layer.

The layers of 16-4-4-2 are solved on a mock Pegasus chip for 30 steps with
random data. Each step is solved twice: in one call for all layers, and with one
call per layer. Simulated annealing with few sweeps takes the place of the chip,
so that not every read is optimal. For every step, the suite has

- `gap`: (E - E_best) / (E_rand - E_best), the mean over all columns,
- `breaks`: the mean fraction of broken chains,
- `seconds`: the QPU time by Ocean's cost model.

**The rule.** Shared calls must not be worse by more than a margin: 0.002 of the
gap and 0.0005 of the chains. The differences are paired by step. A one-sided
paired t test must reject, at the level 0.05, that the mean difference is at
least the margin (a test of non-inferiority). A result that is too noisy
therefore does not pass. Margins and level were fixed before the two sides were
first compared under this rule. They rest on the noise of separate calls alone:
two runs of 30 other problems with different seeds differ with a standard
deviation of 0.0034 per step (gap) and 0.0008 (breaks), so the test passes with
a probability of about 0.9 if both sides are equal.
"""

import numpy as np
from scipy import stats

from keras_qpsbgd import backends
from keras_qpsbgd.backends.dwave.mock import MockQPU
from keras_qpsbgd.backends.dwave.qpu import DWaveBackend
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.qubo import Qubo

HELP = "answers of shared calls (1 minute)"
THREADS = (1,)

UNITS = (16, 4, 4, 2)
STEPS, READS, SWEEPS = 30, 10, 10
FIGURES = ("gap", "breaks", "seconds")
# Largest mean differences that count as no worse, and the level of the test.
MARGINS = {"gap": 0.002, "breaks": 0.0005}
LEVEL = 0.05
# How many times less QPU time a step must take.
QPU_TARGET = 2.4
ROWS = 64


def names():
    """Returns the names that `--only` accepts."""
    return []


def measure(options):
    """Solves all steps in both ways."""
    sampler = MockQPU("pegasus", num_sweeps=SWEEPS)
    backend = DWaveBackend(sampler=sampler, num_reads=READS)
    exact = backends.get("exact")
    found = {side: {name: [] for name in FIGURES} for side in ("shared", "own")}
    for step in range(5 if options.quick else STEPS):
        show_status(f"step {step}")
        qubos = random_qubos(UNITS, step)
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


def table(results):
    """Returns the means of both sides and their differences as text."""
    head = (
        f"{'figure':<10}{'one call':>12}{'per layer':>12}{'difference':>14}"
        f"{'error':>12}{'margin':>9}{'p':>9}"
    )
    lines = []
    for result in results.values():
        count = len(result["own"]["gap"])
        lines += [f"16-4-4-2 on a mock P16, {count} steps", head]
        lines.append("-" * len(head))
        for name in FIGURES:
            sides = result["shared"][name], result["own"][name]
            mean, error, p = compare(*sides, MARGINS.get(name, 0.0))
            line = (
                f"{name:<10}{np.mean(sides[0]):>12.5f}{np.mean(sides[1]):>12.5f}"
                f"{mean:>14.5f}{error:>12.5f}"
            )
            if name in MARGINS:
                line += f"{MARGINS[name]:>9g}{p:>9.4f}"
            lines.append(line)
    return "\n".join(lines)


def verdicts(results):
    """Checks that shared calls are no worse, by the rule of this module."""
    found = []
    for result in results.values():
        own, shared = result["own"], result["shared"]
        for name, margin in MARGINS.items():
            mean, error, p = compare(shared[name], own[name], margin)
            found.append(
                (
                    p < LEVEL,
                    f"{name}: {mean:+.5f} with a standard error of "
                    f"{error:.5f}, worse by less than {margin:g} (p = {p:.4f})",
                )
            )
        ratio = sum(own["seconds"]) / sum(shared["seconds"])
        found.append(
            (
                ratio >= QPU_TARGET,
                f"QPU time: {ratio:.2f} times less (>= {QPU_TARGET:g})",
            )
        )
    return found
