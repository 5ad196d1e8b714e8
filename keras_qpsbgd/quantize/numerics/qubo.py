"""Chooses the levels by solving QUBOs with a backend.

The scales are part of the problem. A line search finds scales for which GPTQ
has the lowest error, since the best scales of the activations are often larger
than those of the weights. Then each round solves the QUBO of the current scales
and sets the scales to their best values for the new levels. A column changes
only if its damped error decreases.
"""

import numpy as np

from keras_qpsbgd.quantize.numerics import descent
from keras_qpsbgd.quantize.numerics.candidate import best_of
from keras_qpsbgd.quantize.numerics.candidate import fit_scales
from keras_qpsbgd.quantize.numerics.encoding import Full
from keras_qpsbgd.quantize.numerics.encoding import Rounding

# Scales of the line search, relative to those of the weights.
SCALES = {1: (1.25, 1.5, 1.75, 2.0, 2.5), 2: (0.7, 0.85, 1.15, 1.3, 1.5)}
# Up to this many variables, all levels of a weight are tried at once.
FULL_UP_TO = {"native": 16, "exact": 16, "gurobi": 64}


def search_scales(problem, gptq, candidate, weight_scales, bits, scale):
    """Returns the best result of GPTQ over several scales.

    Args:
        problem: An `OutputError`.
        gptq: A `Gptq`.
        candidate: `Candidate`. The result of GPTQ with `weight_scales`.
        weight_scales: Array of shape `(m,)`.
        bits: Integer.
        scale: `"column"` or `"layer"`.

    Returns:
        A `Candidate`.
    """
    best = candidate
    for factor in SCALES[min(bits, 2)]:
        levels = gptq.levels(factor * weight_scales, bits)
        trial = fit_scales(problem, levels, scale)
        best = best_of([best, trial], scale)
    return best


def solve(problem, start, others, bits, scale, backend, rounds, seed):
    """Solves the QUBOs of all columns, in rounds.

    Args:
        problem: An `OutputError`.
        start: `Candidate` that the first round starts from.
        others: List of `Candidate`. The result is at least as good as each of
            them and `start`. Later rounds start from the best candidate.
        bits: Integer.
        scale: `"column"` or `"layer"`.
        backend: A `Backend`.
        rounds: Integer. Number of solves per column.
        seed: Integer.

    Returns:
        A tuple `(candidate, infos)`. `infos` has the `Solution.info` of each
        round.
    """
    best, infos = start, []
    seeds = np.random.default_rng(seed).integers(2**31, size=rounds)
    for number in range(rounds):
        columns = np.flatnonzero(best.scales > 0)
        if not len(columns):
            break
        encoding = encoding_for(backend, len(best.levels), bits)(
            problem,
            best.levels[:, columns],
            best.scales[columns],
            columns,
            bits,
        )
        solution = backend.solve(encoding.qubo, int(seeds[number]))
        infos.append(solution.info)
        levels = best.levels.copy()
        levels[:, columns] = encoding.levels(solution.states)
        trial = fit_scales(problem, levels, scale)
        best = best_of([best, *others, trial], scale)
    # Single weights that any level improves, beside those of the encoding.
    polished = descent.descend(problem, best, bits, scale)
    return best_of([best, polished], scale), infos


def encoding_for(backend, num_inputs, bits):
    """Returns the encoding for a backend and a layer."""
    limit = FULL_UP_TO.get(backend.name, 0)
    return Full if bits > 1 and num_inputs * bits <= limit else Rounding
