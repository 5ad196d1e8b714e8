r"""Chooses the levels by solving QUBOs with a backend.

The scales are part of the problem. A line search finds scales for which GPTQ
has the lowest error, since the best scales of the activations are often larger
than those of the weights. Then a backend solves the QUBO of these scales, and
the scales are set to their best values for the new levels. A column changes
only if its damped error decreases.

The damped error of column \(j\), divided by \(s_j^2\), is
\(q^T H q - 2 c_j^T q / s_j\) plus a constant. Two encodings of the levels turn
it into a QUBO in \(g \in \{-1, +1\}\), with couplings that do not depend on
the column:

- `rounding`: \(q = f + g\) with even integers \(f\). Each weight can take the
  two levels next to \(f_i\). \(n\) variables, couplings \(H\), fields
  \(2 H f - 2 c_j / s_j\). For one bit, \(f = 0\).
- `full`: \(q = \sum_k 2^k g_k\). Each weight can take all levels.
  \(b n\) variables, couplings \(p p^T \otimes H\) with
  \(p = (1, 2, 4, \dots)\), fields \(-2 p \otimes c_j / s_j\).
"""

import numpy as np

from keras_qpsbgd.ops import max_level
from keras_qpsbgd.quantization.numerics import grid
from keras_qpsbgd.quantization.numerics import heuristics
from keras_qpsbgd.quantization.numerics.output_error import best_of
from keras_qpsbgd.quantization.numerics.output_error import fit_scales
from keras_qpsbgd.qubo import Qubo

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


def solve(problem, start, others, bits, scale, backend, seed):
    """Solves the QUBOs of all columns.

    Args:
        problem: An `OutputError`.
        start: `Candidate` that the solver starts from.
        others: List of `Candidate`. The result is at least as good as each of
            them and `start`.
        bits: Integer.
        scale: `"column"` or `"layer"`.
        backend: A `Backend`.
        seed: Integer.

    Returns:
        A tuple `(candidate, info)`. `info` is the `Solution.info`, or `None`
        if all scales are zero, so that there is nothing to solve.
    """
    best, info = start, None
    columns = np.flatnonzero(start.scales > 0)
    if len(columns):
        encoding = encoding_for(backend, len(start.levels), bits)(
            problem,
            start.levels[:, columns],
            start.scales[columns],
            columns,
            bits,
        )
        seed = int(np.random.default_rng(seed).integers(2**31))
        solution = backend.solve(encoding.qubo, seed)
        info = solution.info
        levels = start.levels.copy()
        levels[:, columns] = encoding.levels(solution.states)
        trial = fit_scales(problem, levels, scale)
        best = best_of([start, *others, trial], scale)
    # Single weights that any level improves, beside those of the encoding.
    polished = heuristics.descend(problem, best, bits, scale)
    return best_of([best, polished], scale), info


def encoding_for(backend, num_inputs, bits):
    """Returns the encoding for a backend and a layer."""
    limit = FULL_UP_TO.get(backend.name, 0)
    return Full if bits > 1 and num_inputs * bits <= limit else Rounding


class Rounding:
    """Chooses between two levels per weight, one of them the current one.

    Args:
        problem: An `OutputError`.
        levels: Array of shape `(n, k)`. The current levels of some columns.
        scales: Array of shape `(k,)`. Their scales, positive.
        columns: Array of shape `(k,)`. The indices of the columns.
        bits: Integer.
    """

    def __init__(self, problem, levels, scales, columns, bits):
        couplings = problem.couplings
        target = problem.products[:, columns] / scales
        diagonal = np.diag(couplings)[:, None]
        # The best real value of each weight, with all others as they are.
        values = levels - (couplings @ levels - target) / diagonal
        self._centers = grid.cell_centers(levels, values, bits)
        product = couplings @ self._centers
        constant = (self._centers * (product - 2 * target)).sum(axis=0)
        self.qubo = Qubo(
            couplings,
            2 * (product - target),
            constant + problem.constant[columns] / scales**2,
        )
        self.qubo.start = (levels - self._centers).astype(np.int8)

    def levels(self, states):
        """Returns the levels of states, shape `(n, k)`."""
        return self._centers + states


class Full:
    """Chooses among all levels. Takes the arguments of `Rounding`."""

    def __init__(self, problem, levels, scales, columns, bits):
        self._powers = 2.0 ** np.arange(bits)
        target = problem.products[:, columns] / scales
        self.qubo = Qubo(
            np.kron(np.outer(self._powers, self._powers), problem.couplings),
            np.kron(self._powers[:, None], -2 * target),
            problem.constant[columns] / scales**2,
        )
        # The bits of (level + L) / 2 are 1 where the state is +1.
        index = (levels.astype(int) + max_level(bits)) // 2
        states = [2 * (index >> k & 1) - 1 for k in range(bits)]
        self.qubo.start = np.concatenate(states).astype(np.int8)

    def levels(self, states):
        """Returns the levels of states, shape `(n, k)`."""
        parts = np.split(np.asarray(states), len(self._powers))
        return sum(power * part for power, part in zip(self._powers, parts))
