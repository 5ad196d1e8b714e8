"""Tests whether updates follow the gradient more often than a coin."""

import dataclasses
import math

from scipy import stats


@dataclasses.dataclass(frozen=True)
class DirectionTest:
    """How often the signs of an update and a gradient agree.

    Attributes:
        agreed: Integer. Number of comparisons with equal signs.
        comparisons: Integer. Number of comparisons.
    """

    agreed: int
    comparisons: int

    @property
    def agreement(self):
        """The share of comparisons with equal signs, or NaN without any."""
        if not self.comparisons:
            return math.nan
        return self.agreed / self.comparisons

    @property
    def z(self):
        """The agreement minus 1/2, in standard deviations of a fair coin."""
        return (self.agreement - 0.5) * 2.0 * math.sqrt(self.comparisons)


def plot(tests, ax):
    """Draws agreements with 95 % intervals, and a line at 1/2.

    Args:
        tests: Dictionary that maps names to `DirectionTest`.
        ax: Matplotlib axes.
    """
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


def _interval(test):
    """Returns the Wilson score interval of the agreement."""
    if not test.comparisons:
        return math.nan, math.nan
    found = stats.binomtest(test.agreed, test.comparisons)
    low, high = found.proportion_ci(method="wilson")
    # Rounding must not put the share outside of its interval.
    return min(low, test.agreement), max(high, test.agreement)
