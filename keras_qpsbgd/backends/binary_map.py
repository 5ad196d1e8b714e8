"""The binary map (Definition 1 of the paper) as a function."""

import numpy as np
from numpy.typing import ArrayLike

from keras_qpsbgd import backends
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.qubo import Qubo


def binary_map(
    rows: ArrayLike, v: ArrayLike, backend: BackendLike = "exact", seed: int = 0
) -> np.ndarray:
    r"""Maps gradients onto binary variables.

    This is Definition 1 of the paper, which `QPSBGD(rule="paper")` applies in
    every step:

    $$\Pi(v) = \mathrm{argmin}_{g \in \{-1,+1\}^n}
      \sum_b \left(v_b - \frac{x_b^T g}{\lVert x_b \rVert^2}\right)^2$$

    Args:
        rows: Array of shape `(B, n)`. The rows \(x_b\).
        v: Array of shape `(B,)` or `(B, m)`. The gradients of the loss with
            respect to the products \(x_b^T w\). Every column is mapped
            separately.
        backend: String, dictionary, `keras_qpsbgd.backends.Backend` or
            `dimod.Sampler`. The solver of the QUBO, as in `QPSBGD`. Defaults to
            `"exact"`.
        seed: Integer. The seed of backends that use random numbers. Defaults to
            `0`.

    Returns:
        An int8 array of +1 and -1 with shape `(n,)` or `(n, m)`.

    Raises:
        ValueError: If the shapes do not match, or if `backend` is invalid.
        BackendUnavailable: If the backend cannot solve the problem, for example
            because it has too many variables.
        SolverError: If the solver fails.

    Example:
        ```python
        import numpy as np

        import keras_qpsbgd as kq

        g = kq.binary_map(np.eye(3), np.array([0.5, -2.0, 1.0]))
        print(g)  # [ 1 -1  1]
        ```

    Reference:
        - [Krahn et al., 2024](https://arxiv.org/abs/2310.15128)
    """
    qubo = Qubo.from_rows(rows, v)
    backend = backends.get(backend)
    backend.check(qubo.num_variables, qubo.num_columns)
    states = backend.solve(qubo, seed).states
    return states[:, 0] if np.ndim(v) == 1 else states
