"""Two simulated anneals of a small problem: how often is the answer optimal?"""

import numpy as np

from research.analysis.spectrum import all_energies
from research.analysis.spectrum import flips
from research.analysis.spectrum import optimal


def thermal(qubo, num_reads=100, num_sweeps=100, seed=0):
    """Share of optimal reads of the mock QPU's simulated annealing.

    Args:
        qubo: `Qubo` of one column, scaled to the ranges of the chip.
        num_reads: number of reads.
        num_sweeps: sweeps per read.
        seed: seed of the sampler.
    """
    from dwave.samplers import SimulatedAnnealingSampler

    found = SimulatedAnnealingSampler().sample(
        qubo.to_bqm(),
        num_reads=num_reads,
        num_sweeps=num_sweeps,
        beta_range=(0.1, 10.0),  # as in `backends/dwave/mock.py`
        seed=seed,
    )
    states, energies = all_energies(qubo)
    order = np.argsort(found.variables)
    samples = found.record.sample[:, order]
    index = ((samples < 0) << np.arange(samples.shape[1])).sum(axis=1)
    hits = optimal(energies)[index]
    return float(np.average(hits, weights=found.record.num_occurrences))


def quantum(qubo, duration=10.0, steps=200):
    """Probability of an optimal state after an anneal without noise.

    Solves Schroedinger's equation for H(s) = -(1-s)/2 sum X + s/2 problem, from
    the ground state of the first term.

    Args:
        qubo: `Qubo` of one column.
        duration: time of the anneal, in units of 1 / A(0).
        steps: number of steps in which H is constant.
    """
    _, energies = all_energies(qubo)
    size = len(energies)
    index = np.arange(size)
    s = (np.arange(steps) + 0.5) / steps
    matrices = -(1 - s)[:, None, None] / 2 * flips(qubo.num_variables)
    matrices[:, index, index] = s[:, None] / 2 * energies
    values, vectors = np.linalg.eigh(matrices)
    phases = np.exp(-1j * values * duration / steps)
    state = np.full(size, size**-0.5, complex)
    for phase, basis in zip(phases, vectors):
        state = basis @ (phase * (basis.T @ state))
    return float((np.abs(state[optimal(energies)]) ** 2).sum())
