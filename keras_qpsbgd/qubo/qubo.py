"""The QUBO of a binary layer, in NumPy.

`Qubo` holds the problems of all columns of one layer. The columns share the
couplings and differ in their fields. `Qubo` does not depend on TensorFlow or on
layers. Host backends receive it, and `binary_map` and the analysis tools
work with it.
"""

from __future__ import annotations

import dimod
import numpy as np
from numpy.typing import ArrayLike

# Maximum number of products that `varying_energies` computes at once, 2 MB.
_MAX_PRODUCTS = 2**18


class Qubo:
    r"""The QUBOs of one layer, one for each column.

    The problem of column \(j\) is to minimize the energy

    $$E_j(g) = g^T Q g + s_j^T g + \mathrm{offset}_j$$

    over all states \(g \in \{-1, +1\}^n\). All columns share the couplings
    \(Q\).

    Args:
        couplings: Array of shape `(n, n)`. The symmetric matrix \(Q\).
        fields: Array of shape `(n, m)`. Column \(j\) is \(s_j\).
        offset: Array of shape `(m,)` (optional). The constant part of the
            energy of each column. Defaults to zeros.

    Raises:
        ValueError: If `fields` or `couplings` has the wrong shape.

    Example:
        ```python
        rows = np.array([[1.0, 1.0], [1.0, -1.0]])
        qubo = keras_qpsbgd.Qubo.from_rows(rows, v=np.array([1.0, 0.5]))
        qubo.energy([1, 1])  # array([0.25])
        ```

    Reference:
        - [Krahn et al., 2024](https://arxiv.org/abs/2310.15128), Definition 1
    """

    def __init__(
        self,
        couplings: ArrayLike,
        fields: ArrayLike,
        offset: ArrayLike | None = None,
    ) -> None:
        self.fields = np.asarray(fields)
        if self.fields.ndim != 2:
            raise ValueError(
                "`fields` must have shape (variables, columns). Received: "
                f"fields.shape={self.fields.shape}"
            )
        n, m = self.fields.shape
        self.couplings = np.asarray(couplings)
        if self.couplings.shape != (n, n):
            raise ValueError(
                f"`couplings` must have shape {(n, n)} to match `fields` of "
                f"shape {(n, m)}. Received: "
                f"couplings.shape={self.couplings.shape}"
            )
        if offset is None:
            offset = np.zeros(m, self.fields.dtype)
        self.offset = np.broadcast_to(np.asarray(offset), (m,)).copy()

    @classmethod
    def from_rows(cls, rows: ArrayLike, v: ArrayLike) -> Qubo:
        r"""Builds the QUBO of Definition 1 of the paper.

        Normalizes each row to \(x / \lVert x \rVert^2\). Leaves out rows whose
        gradient is zero in all columns.

        Args:
            rows: Array of shape `(B, n)`. The rows \(x\) that a layer
                multiplies by its kernel.
            v: Array of shape `(B,)` or `(B, m)`. The gradient of the loss with
                respect to the product of `rows` and the kernel.

        Returns:
            A `Qubo` with `n` variables and `m` columns.

        Raises:
            ValueError: If the shapes do not match.
        """
        rows = np.asarray(rows, dtype=np.float64)
        v = np.asarray(v, dtype=np.float64)
        v = v[:, None] if v.ndim == 1 else v
        if rows.ndim != 2 or v.ndim != 2 or len(rows) != len(v):
            raise ValueError(
                "`rows` must have shape (B, n) and `v` shape (B,) or (B, m) "
                f"with the same B. Received: rows.shape={rows.shape}, "
                f"v.shape={v.shape}"
            )
        kept = (v != 0).any(axis=1)
        rows, v = rows[kept], v[kept]
        squares = (rows**2).sum(axis=1, keepdims=True)
        z = np.divide(rows, squares, out=np.zeros_like(rows), where=squares > 0)
        return cls(z.T @ z, -2 * z.T @ v, (v**2).sum(axis=0))

    @classmethod
    def from_bqm(cls, bqm: dimod.BinaryQuadraticModel) -> Qubo:
        """Converts a `dimod.BinaryQuadraticModel` to a `Qubo` with one column.

        Args:
            bqm: A `dimod.BinaryQuadraticModel` of either vartype.

        Returns:
            A `Qubo` whose variables have the order of `bqm.variables`.
        """
        spin = bqm.spin
        n = spin.num_variables
        linear, (rows, columns, values), offset = spin.to_numpy_vectors(
            variable_order=list(spin.variables)
        )
        couplings = np.zeros((n, n))
        couplings[rows, columns] = values / 2
        couplings[columns, rows] = values / 2
        return cls(couplings, np.reshape(linear, (n, 1)), [offset])

    @property
    def num_variables(self) -> int:
        """The number of variables `n` of each column."""
        return self.fields.shape[0]

    @property
    def num_columns(self) -> int:
        """The number of columns `m`."""
        return self.fields.shape[1]

    # The index of the first column in the layer, if this is a part of a layer.
    first_column = 0
    # Optional states of shape (n, m). A backend may start from them, and the
    # energies of its solution are at most theirs.
    start: np.ndarray | None = None

    def columns(self, start: int, stop: int) -> Qubo:
        """Selects the columns from `start` up to, but not including, `stop`.

        Args:
            start: Integer. Index of the first column.
            stop: Integer. Index after the last column.

        Returns:
            A `Qubo` with `stop - start` columns.
        """
        if (start, stop) == (0, self.num_columns):
            return self
        part = Qubo(
            self.couplings,
            self.fields[:, start:stop],
            self.offset[start:stop],
        )
        part.first_column = self.first_column + start
        if self.start is not None:
            part.start = self.start[:, start:stop]
        return part

    def copy(self) -> Qubo:
        """Returns a `Qubo` with copies of all arrays."""
        copied = Qubo(
            self.couplings.copy(), self.fields.copy(), self.offset.copy()
        )
        copied.first_column = self.first_column
        copied.start = None if self.start is None else self.start.copy()
        return copied

    def energy(self, states: ArrayLike) -> np.ndarray:
        r"""Computes the energies of states.

        If the problem was built from rows, the energy of column \(j\) is the
        sum of squared residuals \(\sum_b (v_{bj} - z_b^T g_j)^2\), which is
        never negative.

        Args:
            states: Array of +1 and -1 of shape `(n, m)`, one state per column,
                or of shape `(n,)`, one state for all columns.

        Returns:
            Array of shape `(m,)`.

        Raises:
            ValueError: If `states` does not have `n` rows.
        """
        states = np.asarray(states, dtype=np.float64)
        states = states[:, None] if states.ndim == 1 else states
        if states.shape[0] != self.num_variables:
            raise ValueError(
                f"`states` must have {self.num_variables} rows. Received: "
                f"states.shape={states.shape}"
            )
        quadratic = np.einsum("ij,ij->j", states, self.couplings @ states)
        return quadratic + (self.fields * states).sum(axis=0) + self.offset

    def varying_energies(self, samples: ArrayLike) -> np.ndarray:
        """Computes the energies of samples minus `random_energy`.

        The offset and the diagonal of Q add the same constant to the energies
        of all states. Use this method to compare states: without the constant,
        small differences are not lost to rounding.

        Args:
            samples: Array of +1 and -1 of shape `(reads, n, m)`.

        Returns:
            Array of shape `(reads, m)`.
        """
        couplings = _off_diagonal(self.couplings)
        fields = np.asarray(self.fields, dtype=np.float64)
        samples = np.asarray(samples)
        # All products at once may need too much memory, and one read at a time
        # is slow for small layers.
        count = max(1, _MAX_PRODUCTS // max(1, fields.size))
        parts = [
            samples[start : start + count]
            for start in range(0, max(1, len(samples)), count)
        ]
        return np.concatenate(
            [((couplings @ p + fields) * p).sum(axis=1) for p in parts]
        )

    def random_energy(self) -> np.ndarray:
        r"""Computes the mean energy of a random state, offset + tr Q.

        It is the reference point \(E_\mathrm{rand}\) of the gap
        \((E - E_\mathrm{best}) / (E_\mathrm{rand} - E_\mathrm{best})\).

        Returns:
            Array of shape `(m,)`.
        """
        return self.offset + np.trace(self.couplings)

    def to_bqm(self, column: int = 0) -> dimod.BinaryQuadraticModel:
        """Converts one column to a `dimod.BinaryQuadraticModel`.

        Args:
            column: Integer. Index of the column. Defaults to `0`.

        Returns:
            A `dimod.BinaryQuadraticModel` with vartype `SPIN`.
        """
        # dimod reads the quadratic part of a spin model from the off-diagonal
        # entries. The diagonal is constant for spins (g_i^2 = 1).
        bqm = dimod.BinaryQuadraticModel(
            np.asarray(self.fields[:, column], dtype=np.float64),
            _off_diagonal(self.couplings),
            float(self.offset[column]) + float(np.trace(self.couplings)),
            dimod.SPIN,
        )
        return bqm

    def to_union_bqm(
        self, scales: ArrayLike | None = None
    ) -> dimod.BinaryQuadraticModel:
        """Converts all columns to one `dimod.BinaryQuadraticModel`.

        There are no couplings between columns. Variable `i` of column `j` has
        the label `j * num_variables + i`. The energy of the model is the sum of
        the energies of the columns.

        Args:
            scales: Array of shape `(m,)` (optional). Positive factor for each
                column. The factors do not change the optimum of any column.
                Defaults to ones.

        Returns:
            A `dimod.BinaryQuadraticModel` with vartype `SPIN`.
        """
        n, m = self.num_variables, self.num_columns
        scales = np.ones(m) if scales is None else np.asarray(scales)
        first, second = np.triu_indices(n, 1)
        starts = n * np.arange(m)[:, None]
        couplings = np.asarray(self.couplings, dtype=np.float64)
        pairs = 2 * couplings[first, second]
        return dimod.BinaryQuadraticModel.from_numpy_vectors(
            (scales * np.asarray(self.fields, dtype=np.float64)).T.ravel(),
            (
                (starts + first).ravel(),
                (starts + second).ravel(),
                np.outer(scales, pairs).ravel(),
            ),
            float((scales * (self.offset + np.trace(couplings))).sum()),
            dimod.SPIN,
        )

    def __repr__(self):
        return (
            f"Qubo(num_variables={self.num_variables}, "
            f"num_columns={self.num_columns})"
        )


def _off_diagonal(couplings):
    """Returns Q without its diagonal. Like g'Qg, dimod counts pairs twice."""
    couplings = np.array(couplings, dtype=np.float64)
    np.fill_diagonal(couplings, 0.0)
    return couplings
