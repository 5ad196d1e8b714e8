r"""The QUBO of a binary layer as a value, in NumPy.

`Qubo` holds the problems of all columns of one layer: they share the couplings
and differ in their fields. It knows no TensorFlow and no layer; this is what
host backends receive and what `binary_map` and the analysis tools work on.
"""

from __future__ import annotations

from typing import Any

import dimod
import numpy as np
from numpy.typing import ArrayLike


class Qubo:
    r"""Minimise g'Qg + s_j'g + offset_j over g in {-1, +1}^n, for each j.

    Args:
        couplings: Q, symmetric, (n, n). May be `None` if `normalized_rows` is
            given: it is then computed when first needed.
        fields: s, (n, m).
        offset: (m,), the constant part of each column's energy. Zeros if
            `None`.
        normalized_rows: Z, (B, n), where the problem came from rows and they
            were kept: Q = Z'Z.
        row_gradients: V, (B, m), likewise: s = -2 Z'V.

    Example:

    >>> import numpy as np
    >>> rows = np.array([[1.0, 1.0], [1.0, -1.0]])
    >>> qubo = Qubo.from_rows(rows, v=np.array([1.0, 0.5]))
    >>> qubo.energy(np.array([[1], [1]]))
    array([0.25])
    """

    def __init__(
        self,
        couplings: ArrayLike | None,
        fields: ArrayLike,
        offset: ArrayLike | None = None,
        normalized_rows: ArrayLike | None = None,
        row_gradients: ArrayLike | None = None,
    ) -> None:
        self.fields = np.asarray(fields)
        if self.fields.ndim != 2:
            raise ValueError(
                "`fields` must have shape (variables, columns). Received: "
                f"fields.shape={self.fields.shape}"
            )
        n, m = self.fields.shape
        # What is wanted of them is that of an array, whatever they are.
        self._couplings: Any = (
            None if couplings is None else np.asarray(couplings)
        )
        self.normalized_rows: Any = normalized_rows
        self.row_gradients: Any = row_gradients
        if couplings is None and normalized_rows is None:
            raise ValueError(
                "One of `couplings` and `normalized_rows` is required. "
                "Received: None for both"
            )
        if self._couplings is not None and self._couplings.shape != (n, n):
            raise ValueError(
                "`couplings` must be square and fit `fields` of shape "
                f"{(n, m)}. Received: couplings.shape={self._couplings.shape}"
            )
        if offset is None:
            offset = np.zeros(m, self.fields.dtype)
        self.offset = np.broadcast_to(np.asarray(offset), (m,))

    @classmethod
    def from_rows(cls, rows: ArrayLike, v: ArrayLike) -> Qubo:
        """The paper's Definition 1 for rows (B, n), gradients (B,) or (B, m).

        Rows are normalised to x / ||x||^2. Rows whose gradient is zero in all
        columns do not enter.
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
        return cls(z.T @ z, -2 * z.T @ v, (v**2).sum(axis=0), z, v)

    @classmethod
    def from_bqm(cls, bqm: dimod.BinaryQuadraticModel) -> Qubo:
        """One column from a `dimod.BinaryQuadraticModel` of either vartype.

        Variables keep the order of `bqm.variables`.
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
    def couplings(self) -> np.ndarray:
        """Q, (n, n)."""
        if self._couplings is None:
            self._couplings = self.normalized_rows.T @ self.normalized_rows
        return self._couplings

    @property
    def num_variables(self) -> int:
        return self.fields.shape[0]

    @property
    def num_columns(self) -> int:
        return self.fields.shape[1]

    # Index in the layer of the first column, where this is a part of a layer.
    first_column = 0

    def columns(self, start: int, stop: int) -> Qubo:
        """The problem of some of the columns."""
        if (start, stop) == (0, self.num_columns):
            return self
        gradients = self.row_gradients
        part = Qubo(
            self._couplings,
            self.fields[:, start:stop],
            self.offset[start:stop],
            self.normalized_rows,
            None if gradients is None else gradients[:, start:stop],
        )
        part.first_column = self.first_column + start
        return part

    def copy(self) -> Qubo:
        """A `Qubo` with arrays of its own."""
        copied = Qubo(
            _copy(self._couplings),
            self.fields.copy(),
            None,
            _copy(self.normalized_rows),
            _copy(self.row_gradients),
        )
        copied.offset = self.offset.copy()
        copied.first_column = self.first_column
        return copied

    def energy(self, states: ArrayLike) -> np.ndarray:
        """Energies (m,) of `states` (n, m), or of one state (n,) per column.

        Equal to the sum of squared residuals sum_b (v_bj - z_b'g_j)^2, so never
        negative where the problem came from rows.
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
        """Energies (reads, m) of samples (reads, n, m), less `random_energy`.

        The offset and the diagonal of Q add the same to all states of +1 and
        -1. Compare states by this: small differences keep their digits, however
        large the constant is.
        """
        couplings = _pairs(self.couplings)
        fields = np.asarray(self.fields, dtype=np.float64)
        # One after the other: all forces at once may need much memory.
        return np.stack(
            [
                ((couplings @ states + fields) * states).sum(axis=0)
                for states in np.asarray(samples)
            ]
        )

    def random_energy(self) -> np.ndarray:
        """Mean energy (m,) over random states: offset + tr Q.

        The reference point of the gap (E - E_best) / (E_rand - E_best).
        """
        return self.offset + np.trace(self.couplings)

    def to_bqm(self, column: int = 0) -> dimod.BinaryQuadraticModel:
        """The problem of one column as a spin `dimod.BinaryQuadraticModel`."""
        # dimod reads the quadratic part of a spin model from the off-diagonal;
        # the diagonal is constant for spins (g_i^2 = 1).
        bqm = dimod.BinaryQuadraticModel(
            np.asarray(self.fields[:, column], dtype=np.float64),
            _pairs(self.couplings),
            float(self.offset[column]) + float(np.trace(self.couplings)),
            dimod.SPIN,
        )
        return bqm

    def to_union_bqm(
        self, scales: ArrayLike | None = None
    ) -> dimod.BinaryQuadraticModel:
        """All columns as one spin model without couplings between them.

        Variable i of column j has the label `j * num_variables + i`. Its energy
        is the sum of the columns' energies.

        Args:
            scales: (m,), factors of the columns. They change no column's
                optimum. `None` is 1.
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


def _copy(array):
    return None if array is None else np.array(array)


def _pairs(couplings):
    """Q without its diagonal: dimod counts pairs twice, as g'Qg does."""
    pairs = np.array(couplings, dtype=np.float64)
    np.fill_diagonal(pairs, 0.0)
    return pairs
