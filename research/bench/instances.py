"""Random layer problems that resemble those in training.

Rows are +1 and -1 (`pm1`, as after a binary activation), clipped normal
(`htanh`, as after hard tanh) or 0 and 1 with density 0.11 (`sparse`, one-hot
features as in Adult). Gradients are normal with standard deviation sigma, or
planted: v = Zg for a hidden state g, plus noise of that size.

The sigma of a cell is the size of a scaled gradient for which the couplings
matter but do not fully determine the solution.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_qpsbgd.layers import statistics
from keras_qpsbgd.qubo import Qubo
from keras_qpsbgd.qubo import ops

KINDS = ("pm1", "htanh", "sparse")
DENSITY = 0.11
# The solver parameters were tuned on other seeds.
FIRST_SEED = 1000


class Cell(NamedTuple):
    """The settings that a group of instances shares."""

    batch: int
    kind: str
    sigma: float
    planted: bool = False


def rows(kind, batch, n, rng):
    """Returns random rows.

    Args:
        kind: One of `KINDS`.
        batch: Number of rows.
        n: Number of inputs.
        rng: `numpy.random.Generator`.
    """
    if kind == "pm1":
        return rng.choice([-1.0, 1.0], size=(batch, n))
    if kind == "htanh":
        return np.clip(rng.standard_normal((batch, n)), -1.0, 1.0)
    if kind == "sparse":
        return (rng.random((batch, n)) < DENSITY).astype(np.float64)
    raise ValueError(f"`kind` must be one of {KINDS}. Received: {kind}")


class Instance:
    """The problem of one layer, as tensors and as a `Qubo`.

    Args:
        kind: One of `KINDS`.
        batch: Number of rows.
        n: Number of inputs.
        m: Number of columns.
        sigma: Standard deviation of the gradients, or of their noise if they
            are planted.
        seed: Integer.
        planted: Whether the gradients contain a hidden state.

    Attributes:
        rows: The normalized rows z, a tensor of shape `(B, n)`.
        problem: `ops.Problem` of Definition 1 of the paper.
        qubo: The same problem as a `Qubo`, with float32 values stored as
            float64.
    """

    def __init__(self, kind, batch, n, m, sigma, seed, planted=False):
        rng = np.random.default_rng(FIRST_SEED + seed)
        x = tf.constant(rows(kind, batch, n, rng), tf.float32)
        v = sigma * rng.standard_normal((batch, m))
        if planted:
            hidden = rng.choice([-1.0, 1.0], size=(n, m))
            ones = tf.ones((batch, 1))
            z, _ = statistics.normalized(statistics.LayerCall(x, ones))
            v += z.numpy() @ hidden
        call = statistics.LayerCall(x, tf.constant(v))
        self.rows, v = statistics.normalized(call)
        self.problem = ops.Problem(
            tf.matmul(self.rows, self.rows, transpose_a=True),
            -2.0 * tf.matmul(self.rows, v, transpose_a=True),
        )
        offset = np.square(np.float64(v)).sum(axis=0)
        self.qubo = Qubo(
            np.float64(self.problem.couplings),
            np.float64(self.problem.fields),
            offset,
        )

    @classmethod
    def of_cell(cls, cell, n, m, seed):
        """Creates an instance of a `Cell`."""
        return cls(cell.kind, cell.batch, n, m, cell.sigma, seed, cell.planted)


def gaps(energies, best, qubo):
    """Returns (E - E_best) / (E_rand - E_best) of each column."""
    reach = np.maximum(qubo.random_energy() - best, 1e-30)
    return (energies - best) / reach
