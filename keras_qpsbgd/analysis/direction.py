"""Does an update point along the gradient?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_qpsbgd.analysis.common import new_axes
from keras_qpsbgd.analysis.common import require

_ALTERNATIVES = ("two-sided", "greater", "less")


@dataclasses.dataclass(frozen=True)
class DirectionTest:
    """How often the signs of an update and a gradient agree.

    Attributes:
        agreed: Integer. Number of comparisons with equal signs.
        comparisons: Integer. Number of comparisons.
        alternative: `"two-sided"`, `"greater"` or `"less"`. The hypothesis that
            `p_value` tests against a fair coin. Defaults to `"two-sided"`.
    """

    agreed: int
    comparisons: int
    alternative: str = "two-sided"

    @property
    def agreement(self) -> float:
        """The share of comparisons with equal signs, `nan` without any."""
        if not self.comparisons:
            return math.nan
        return self.agreed / self.comparisons

    @property
    def z(self) -> float:
        """The agreement minus 1/2, in standard deviations of a fair coin."""
        return (self.agreement - 0.5) * 2.0 * math.sqrt(self.comparisons)

    @property
    def p_value(self) -> float:
        """The p-value of the exact binomial test, `nan` without comparisons.

        It assumes that comparisons are independent. Weights of one layer
        usually are not, so a p-value over many weights is too small. Needs
        scipy (extra `analysis`).
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
    one of the two (held weights, zero gradients) are left out. With the share
    \(p\) of \(N\) comparisons, the statistic

    $$Z = \frac{p - 1/2}{\sqrt{1 / (4 N)}}$$

    is approximately standard normal if the signs are those of a fair coin.

    Args:
        states: Array of binary gradients, or a list of arrays, such as one for
            each layer or step. The update subtracts them from the weights, so
            for a change of weights pass its negative.
        gradient: Array or list of arrays with the same shapes. The gradient of
            the loss with respect to the same weights.
        alternative: `"two-sided"`, `"greater"` or `"less"`. The hypothesis of
            the p-value: that signs agree not as often as those of a fair coin,
            more often, or less often. Defaults to `"two-sided"`.

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
    """Returns a list of arrays. Signs do not fit into unsigned integers."""
    values = values if isinstance(values, (list, tuple)) else [values]
    return [np.asarray(value, dtype=np.float64) for value in values]


def _binomial(test):
    """Returns the binomial test of scipy, against a fair coin."""
    stats = require("scipy.stats")
    return stats.binomtest(
        test.agreed, test.comparisons, alternative=test.alternative
    )


def plot_direction_test(
    tests: DirectionTest | Mapping[str, DirectionTest], ax: Any = None
) -> Any:
    """Draws agreements with 95 % intervals, and a line for a fair coin.

    Args:
        tests: A `DirectionTest`, or a dictionary of several, such as one for
            each layer.
        ax: Matplotlib axes (optional). `None` creates a figure. Defaults to
            `None`.

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
