"""Tests whether training has converged and updates follow the gradient."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import backends
from keras_qpsbgd.analysis.common import new_axes
from keras_qpsbgd.analysis.common import require
from keras_qpsbgd.analysis.full_gradient import FullGradient
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.layers.weights import binarize
from keras_qpsbgd.qubo import Qubo
from keras_qpsbgd.qubo import ops

_ALTERNATIVES = ("two-sided", "greater", "less")


# Fixed points


@dataclasses.dataclass(frozen=True)
class FixedPoints:
    """The columns of binary layers that are at a fixed point.

    Attributes:
        columns: Dictionary that maps the name of each layer to a Boolean array
            of shape `(m,)`, with one entry per column.
    """

    columns: dict[str, np.ndarray]

    @property
    def share(self) -> float:
        """The share of all columns that are at a fixed point."""
        return float(np.concatenate(list(self.columns.values())).mean())

    @property
    def shares(self) -> dict[str, float]:
        """The share of columns at a fixed point, for each layer."""
        return {name: float(at.mean()) for name, at in self.columns.items()}

    @property
    def converged(self) -> bool:
        """Whether all columns are at a fixed point."""
        return all(at.all() for at in self.columns.values())


def fixed_points(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    batch_size: int | None = None,
    optimizer: keras.optimizers.Optimizer | None = None,
    backend: BackendLike | None = None,
    seed: int = 0,
) -> FixedPoints:
    r"""Finds the columns of binary layers that training no longer changes.

    Column \(j\) of a layer is at a fixed point if the binary gradient of all
    data points against its weights:

    $$-\Pi(\nabla_j) = \mathrm{sign}(\Omega_j)$$

    A step on all data then moves every latent weight away from zero, so no
    weight changes its sign. With several bits per weight, \(W_j\) takes the
    place of the sign, so a column can only be at a fixed point if all its
    weights are +1 or -1. If all columns of all layers are at a fixed point,
    training on all data has converged (the paper's theorem on fixed points), as
    long as biases and other real variables do not change either.

    Weights that a step would hold are ignored: those of inputs that are zero in
    all samples, and columns without a gradient. If a QUBO is not finite, no
    column of its layer is at a fixed point.

    The function changes no variables and solves each layer once. If the solver
    misses the optimum, the answer for a column can be wrong in either
    direction. The backend `"exact"` finds the optimum of layers with few
    inputs.

    Args:
        model: See `layer_qubos`.
        x: See `layer_qubos`.
        y: See `layer_qubos`.
        sample_weight: See `layer_qubos`.
        batch_size: See `layer_qubos`.
        optimizer: See `layer_qubos`.
        backend: String, dictionary, `keras_qpsbgd.backends.Backend` or
            `dimod.Sampler` (optional). The solver. Defaults to `None`, which
            uses the backend of the optimizer.
        seed: Integer. Seed for backends that use random numbers. Defaults to
            `0`.

    Returns:
        A `FixedPoints`.

    Raises:
        ValueError: See `layer_qubos`.
        BackendUnavailable: If the backend cannot solve a layer.
        SolverError: If a solve fails.

    Example:
        ```python
        import numpy as np
        from tensorflow import keras

        import keras_qpsbgd as kq

        x = np.random.default_rng(0).normal(size=(64, 4))
        y = x @ [[1.0], [-1.0], [1.0], [1.0]]
        model = keras.Sequential([keras.Input((4,)), kq.layers.BinaryDense(1)])
        model.compile(kq.QPSBGD(0.02, real_optimizer="sgd"), "mse")
        model.fit(x, y, epochs=50, verbose=0)
        print(kq.analysis.fixed_points(model, x, y).share)
        ```

    Reference:
        - [Krahn et al., 2024](https://arxiv.org/abs/2310.15128)
    """
    gradient = FullGradient(model, optimizer)
    qubos = gradient.qubos(x, y, sample_weight, batch_size)
    return find(gradient, qubos, backend, seed)


def find(
    gradient: FullGradient,
    qubos: dict[str, Qubo],
    backend: BackendLike | None = None,
    seed: int = 0,
) -> FixedPoints:
    """Compares the solutions of QUBOs with the weights of their layers.

    Args:
        gradient: The `FullGradient` that computed the QUBOs.
        qubos: Dictionary that maps the name of each layer to its `Qubo`.
        backend: See `fixed_points`.
        seed: See `fixed_points`.
    """
    solver = backends.get(
        gradient.optimizer.backend if backend is None else backend
    )
    columns = {}
    for name, qubo in qubos.items():
        mark = gradient.marks[name]
        kernel = tf.convert_to_tensor(mark.kernel)
        weights = binarize(kernel, mark.bits).numpy()
        weights = weights.reshape(qubo.fields.shape)
        columns[name] = _at_fixed_point(qubo, weights, solver, seed)
    return FixedPoints(columns)


def _at_fixed_point(qubo, weights, solver, seed):
    couplings = tf.constant(qubo.couplings, tf.float32)
    fields = tf.constant(qubo.fields, tf.float32)
    if not ops.is_finite([couplings, fields]):
        return np.zeros(qubo.num_columns, bool)  # the step would be skipped
    solver.check(qubo.num_variables, qubo.num_columns)
    states = solver.solve(qubo, seed).states
    # In both rules, a field is a multiple of the gradient.
    moves = ops.has_information(
        fields, ops.has_gradient(fields), ops.squared_forces(couplings) > 0
    ).numpy()
    # The step subtracts the states. It holds weights without information.
    return (~moves | (states == -weights)).all(axis=0)


def plot_fixed_points(points: FixedPoints, ax: Any = None) -> Any:
    """Draws the share of columns at a fixed point for each layer.

    Args:
        points: A `FixedPoints`.
        ax: Matplotlib axes (optional). Defaults to `None`, which creates a
            figure.

    Returns:
        The axes.
    """
    ax = ax if ax is not None else new_axes()
    names = list(points.columns)
    places = range(len(names))
    ax.barh(places, [points.shares[name] for name in names], height=0.6)
    for place, name in enumerate(names):
        at = points.columns[name]
        ax.annotate(
            f"{at.sum()} of {len(at)}",
            (at.mean(), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
        )
    ax.set_yticks(places, names)
    ax.invert_yaxis()
    ax.set_xlim(0, 1.2)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1])
    ax.set_xlabel("share of columns at a fixed point")
    return ax


# Direction of updates


@dataclasses.dataclass(frozen=True)
class DirectionTest:
    """How often the signs of an update and a gradient agree.

    Attributes:
        agreed: Integer. Number of comparisons with equal signs.
        comparisons: Integer. Number of comparisons.
        alternative: `"two-sided"`, `"greater"` or `"less"`. The alternative
            hypothesis of `p_value`, see `direction_test`. Defaults to
            `"two-sided"`.
    """

    agreed: int
    comparisons: int
    alternative: str = "two-sided"

    @property
    def agreement(self) -> float:
        """The share of comparisons with equal signs, or NaN without any."""
        if not self.comparisons:
            return math.nan
        return self.agreed / self.comparisons

    @property
    def z(self) -> float:
        """The agreement minus 1/2, in standard deviations of a fair coin."""
        return (self.agreement - 0.5) * 2.0 * math.sqrt(self.comparisons)

    @property
    def p_value(self) -> float:
        """The p-value of the exact binomial test, or NaN without comparisons.

        The test assumes that comparisons are independent. Weights of one layer
        usually are not, so a p-value over many weights is too small. Requires
        SciPy (extra `analysis`).
        """
        if not self.comparisons:
            return math.nan
        return float(_binomial(self).pvalue)


def direction_test(
    states: Any, gradient: Any, alternative: str = "two-sided"
) -> DirectionTest:
    r"""Tests whether binary gradients have the signs of a gradient.

    The convergence proof of the paper assumes that an entry of the binary
    gradient has the sign of the gradient of the full loss more often than not.
    This function counts how often the signs are equal. Entries that are zero in
    one of the two (held weights, zero gradients) are left out. If a share
    \(p\) of \(N\) comparisons agrees, the statistic

    $$Z = \frac{p - 1/2}{\sqrt{1 / (4 N)}}$$

    is approximately standard normal if signs agree like tosses of a fair coin.

    Args:
        states: Array of binary gradients, or a list of arrays, such as one for
            each layer or step. Updates subtract them from the weights, so pass
            the negative of a change of the weights.
        gradient: Array or list of arrays with the same shapes. The gradient of
            the loss with respect to the same weights.
        alternative: `"two-sided"`, `"greater"` or `"less"`. The alternative
            hypothesis of the p-value: the probability that signs agree differs
            from 1/2, is greater, or is less. Defaults to `"two-sided"`.

    Returns:
        A `DirectionTest` with `agreement`, `comparisons`, `z` and `p_value`.

    Raises:
        ValueError: If the shapes differ or `alternative` is unknown.

    Example:
        ```python
        import numpy as np

        import keras_qpsbgd as kq

        states = np.array([1, -1, 1, 0])
        gradient = np.array([0.3, -0.1, -0.2, 0.5])
        test = kq.analysis.direction_test(states, gradient)
        print(test.agreement, test.comparisons)  # 2 of 3 agree
        ```

    Reference:
        - [Krahn et al., 2024](https://arxiv.org/abs/2310.15128)
    """
    if alternative not in _ALTERNATIVES:
        raise ValueError(
            f"`alternative` must be one of {_ALTERNATIVES}. "
            f"Received: alternative={alternative!r}"
        )
    left, right = _arrays(states), _arrays(gradient)
    shapes = [array.shape for array in left], [array.shape for array in right]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "`states` and `gradient` must have the same shapes. "
            f"Received: {shapes[0]} and {shapes[1]}"
        )
    agreed = comparisons = 0
    for state, slope in zip(left, right):
        product = np.sign(state) * np.sign(slope)
        agreed += int((product > 0).sum())
        comparisons += int((product != 0).sum())
    return DirectionTest(agreed, comparisons, alternative)


def _arrays(values):
    """Returns a list of signed arrays. Unsigned integers hold no signs."""
    values = values if isinstance(values, (list, tuple)) else [values]
    return [np.asarray(value, dtype=np.float64) for value in values]


def _binomial(test):
    """Returns the result of SciPy's binomial test against a fair coin."""
    stats = require("scipy.stats")
    return stats.binomtest(
        test.agreed, test.comparisons, alternative=test.alternative
    )


def plot_direction_test(
    tests: DirectionTest | Mapping[str, DirectionTest], ax: Any = None
) -> Any:
    """Draws agreements with 95 % intervals, and a line at 1/2.

    Args:
        tests: A `DirectionTest`, or a dictionary of several, such as one for
            each layer.
        ax: Matplotlib axes (optional). Defaults to `None`, which creates a
            figure.

    Returns:
        The axes.
    """
    ax = ax if ax is not None else new_axes()
    if isinstance(tests, DirectionTest):
        tests = {"": tests}
    ax.axvline(0.5, color="gray", linestyle="--", linewidth=1)
    for place, test in enumerate(tests.values()):
        low, high = _interval(test)
        share = test.agreement
        bar = [[share - low], [high - share]]
        ax.errorbar(share, place, xerr=bar, fmt="o", color="C0", capsize=4)
        ax.annotate(
            f"Z = {test.z:.1f}, N = {test.comparisons}",
            (share, place),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            # The text may lie on the line.
            bbox={"facecolor": ax.get_facecolor(), "linewidth": 0, "pad": 1},
        )
    ax.set_yticks(range(len(tests)), list(tests))
    ax.set_ylim(len(tests) - 0.5, -0.5)
    ax.set_xlim(0, 1)
    ax.set_xlabel("share of equal signs")
    return ax


def _interval(test):
    """Returns the Wilson score interval of the agreement."""
    if not test.comparisons:
        return math.nan, math.nan
    both_sides = dataclasses.replace(test, alternative="two-sided")
    low, high = _binomial(both_sides).proportion_ci(method="wilson")
    # Rounding must not put the share outside of its interval.
    return min(low, test.agreement), max(high, test.agreement)
