"""The binary map, the paper's Definition 1, as a function."""

import numpy as np
from numpy.typing import ArrayLike

from keras_qpsbgd import backends
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.qubo import Qubo


def binary_map(
    rows: ArrayLike, v: ArrayLike, backend: BackendLike = "exact", seed: int = 0
) -> np.ndarray:
    r"""Maps gradients onto binary variables.

    $$\Pi(v) = \arg\min_{g \in \{-1,+1\}^n}
      \sum_b \left(v_b - \frac{x_b^T g}{\lVert x_b \rVert^2}\right)^2$$

    Args:
        rows: (B, n), the rows x.
        v: (B,) or (B, m), the gradients with respect to the products x'w.
        backend: whatever `backends.get` takes.
        seed: int, for backends that draw random numbers.

    Returns:
        int8 array of +1 and -1, (n,) or (n, m).

    Example:

    >>> import numpy as np
    >>> binary_map(np.eye(3), np.array([0.5, -2.0, 1.0]))
    array([ 1, -1,  1], dtype=int8)
    """
    qubo = Qubo.from_rows(rows, v)
    backend = backends.get(backend)
    backend.check(qubo.num_variables, qubo.num_columns)
    states = backend.solve(qubo, seed).states
    return states[:, 0] if getattr(v, "ndim", 1) == 1 else states
