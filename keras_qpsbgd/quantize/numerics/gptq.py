r"""GPTQ: rounds the weights one after the other and corrects the others.

The best real kernel is \(w^*_j = H^{-1} c_j\). With the Cholesky factor
\(H = R^T R\), the damped error is

$$\lVert R (\hat w_j - w^*_j) \rVert^2 + \mathrm{const} .$$

The weights are rounded from the last to the first. Each weight is rounded to
the level next to the value that cancels the errors of the weights rounded
before it. This is GPTQ with the Cholesky factor of \(H\) in place of that of
\(H^{-1}\), which gives the same result in the reverse order. Inputs with a
large \(H_{ii}\) are rounded first (GPTQ's `act_order`).

Reference: Frantar et al., 2023, https://arxiv.org/abs/2210.17323
"""

import numpy as np

from keras_qpsbgd.quantize.numerics import grid

# Errors are passed on to this many weights at once, by a matrix product.
BLOCK = 64


class Gptq:
    """Rounds the kernel of a layer with error feedback.

    The factorization is computed once and serves all scales.

    Args:
        problem: An `OutputError`.
    """

    def __init__(self, problem):
        # The last weight is rounded first.
        self._order = np.argsort(np.diag(problem.couplings), kind="stable")
        couplings = problem.couplings[np.ix_(self._order, self._order)]
        self._target = np.linalg.solve(couplings, problem.products[self._order])
        # Row i passes the errors of the weights after i on to weight i.
        self._feedback = np.linalg.cholesky(couplings).T
        self._feedback /= np.diag(self._feedback).copy()[:, None]

    def levels(self, scales, bits):
        """Returns the levels for given scales.

        Args:
            scales: Array of shape `(m,)`.
            bits: Integer.

        Returns:
            Array of shape `(n, m)`.
        """
        n = len(self._order)
        target = grid.divide(self._target, scales)
        levels = np.zeros_like(target)
        rest = np.zeros_like(target)  # target minus levels, where rounded
        for end in range(n, 0, -BLOCK):
            begin = max(0, end - BLOCK)
            block = self._feedback[begin:end, end:] @ rest[end:]
            block += target[begin:end]
            for i in range(end - 1, begin - 1, -1):
                inner = self._feedback[i, i + 1 : end] @ rest[i + 1 : end]
                value = block[i - begin] + inner
                levels[i] = grid.nearest_levels(value, bits)
                rest[i] = target[i] - levels[i]
        unsorted = np.empty_like(levels)
        unsorted[self._order] = levels
        return unsorted
