r"""Chooses the levels by solving QUBOs with a backend.

The solver starts from the best levels of coordinate descent. A backend solves
the QUBO with fixed scales, and the scales are then set to their best values for
the new levels. A column changes only if its damped error decreases.

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

from keras_qpsbgd.backends.solution import merge_column_info
from keras_qpsbgd.bits import max_level
from keras_qpsbgd.quantization.numerics import grid
from keras_qpsbgd.quantization.numerics import heuristics
from keras_qpsbgd.quantization.numerics.output_error import best_of
from keras_qpsbgd.quantization.numerics.output_error import fit_scales
from keras_qpsbgd.qubo import Qubo

# Up to this many variables, the QUBO contains all levels of each weight.
FULL_UP_TO = {"native": 16, "exact": 16, "gurobi": 64}
# Layers with more groups are left to coordinate descent. A depthwise
# convolution has one group per channel, and each would need a solver call.
MAX_GROUPS = 64


def solve(problem, start, bits, backend, seed):
    """Solves the QUBOs of all columns.

    Args:
        problem: An `OutputError`.
        start: `Candidate` that the solver starts from.
        bits: Integer.
        backend: A `Backend`.
        seed: Integer.

    Returns:
        A tuple `(candidate, info)`. `info` is the `Solution.info`, or `None`
        if there is nothing to solve. The candidate is at least as good as
        `start`.
    """
    groups = len(problem.kernel)
    if groups > MAX_GROUPS:
        return start, None
    random = np.random.default_rng(seed)
    levels = start.levels.copy()
    infos = []
    for group in range(groups):
        columns = np.flatnonzero(start.scales[group, 0] > 0)
        # An optimum for inputs that are always zero would prove nothing.
        if not len(columns) or not problem.has_data[group]:
            continue
        scales = start.scales[group, 0, columns]
        encoding = encoding_for(backend, levels.shape[1], bits)(
            problem.couplings[group],
            problem.products[group][:, columns] / scales,
            problem.constant[group, 0, columns] / scales**2,
            levels[group][:, columns],
            bits,
        )
        solution = backend.solve(encoding.qubo, int(random.integers(2**31)))
        infos.append(solution.info)
        levels[group][:, columns] = encoding.levels(solution.states)
    if not infos:
        return start, None
    best = best_of([start, fit_scales(problem, levels)])
    # Also try the levels that the encoding does not contain, weight by weight.
    polished = heuristics.descend(problem, best, bits)
    info = infos[0] if len(infos) == 1 else merge_column_info(infos)
    return best_of([best, polished]), info


def encoding_for(backend, num_inputs, bits):
    """Returns the encoding for a backend and a layer."""
    limit = FULL_UP_TO.get(backend.name, 0)
    return Full if bits > 1 and num_inputs * bits <= limit else Rounding


class Rounding:
    """Chooses between the current level of each weight and a neighbor.

    Args:
        couplings: Array of shape `(n, n)`. The matrix H.
        target: Array of shape `(n, k)`. The products C of k columns, divided by
            their scales.
        constant: Array of shape `(k,)`. The damped errors of kernels of zeros,
            divided by the squared scales.
        levels: Array of shape `(n, k)`. The current levels.
        bits: Integer.
    """

    def __init__(self, couplings, target, constant, levels, bits):
        self._centers = product = np.zeros_like(levels)
        if bits > 1:
            diagonal = np.diag(couplings)[:, None]
            # The best real value of each weight, with all others as they are.
            values = levels - (couplings @ levels - target) / diagonal
            self._centers = grid.cell_centers(levels, values, bits)
            product = couplings @ self._centers
            constant = constant + (self._centers * (product - 2 * target)).sum(
                axis=0
            )
        self.qubo = Qubo(couplings, 2 * (product - target), constant)
        self.qubo.start = (levels - self._centers).astype(np.int8)

    def levels(self, states):
        """Returns the levels of states, of shape `(n, k)`."""
        return self._centers + states


class Full:
    """Chooses among all levels. Takes the arguments of `Rounding`."""

    def __init__(self, couplings, target, constant, levels, bits):
        self._powers = 2.0 ** np.arange(bits)
        self.qubo = Qubo(
            np.kron(np.outer(self._powers, self._powers), couplings),
            np.kron(self._powers[:, None], -2 * target),
            constant,
        )
        # The bits of (level + L) / 2 are 1 where the state is +1.
        index = (levels.astype(int) + max_level(bits)) // 2
        states = [2 * (index >> k & 1) - 1 for k in range(bits)]
        self.qubo.start = np.concatenate(states).astype(np.int8)

    def levels(self, states):
        """Returns the levels of states, of shape `(n, k)`."""
        parts = np.split(np.asarray(states), len(self._powers))
        return sum(power * part for power, part in zip(self._powers, parts))
