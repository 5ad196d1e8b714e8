r"""The QUBO of a layer's levels.

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
from keras_qpsbgd.quantize.numerics import grid
from keras_qpsbgd.qubo import Qubo


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
