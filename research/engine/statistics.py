"""Measures, means, errors, paired tests and the choice of a configuration."""

import dataclasses
import itertools
import math

import numpy as np

from research.engine import records

LEVEL = 0.05  # a lower p-value is significant


@dataclasses.dataclass(frozen=True)
class Measure:
    """A measure in a table or a figure.

    Attributes:
        key: name in `result` and `curves` of a record.
        label: name in tables and figures.
        higher_is_better: whether higher values are better.
        percent: whether to show a fraction such as 0.8 as 80 %.
    """

    key: str
    label: str
    higher_is_better: bool
    percent: bool = False

    @property
    def sign(self):
        """+1 if higher values are better, else -1."""
        return 1 if self.higher_is_better else -1


TRAIN_LOSS = Measure("train_loss", "training loss", False)
TRAIN_ACCURACY = Measure(
    "train_accuracy", "training accuracy", True, percent=True
)
VALIDATION_LOSS = Measure("validation_loss", "validation loss", False)
VALIDATION_ACCURACY = Measure(
    "validation_accuracy", "validation accuracy", True, percent=True
)
TEST_LOSS = Measure("test_loss", "test loss", False)
TEST_ACCURACY = Measure("test_accuracy", "test accuracy", True, percent=True)


def mean_and_error(values):
    r"""Returns the mean and its standard error along the first axis.

    $$ \bar x = \frac1k \sum_i x_i, \qquad
       \sqrt{\frac{1}{k (k - 1)} \sum_i (x_i - \bar x)^2} $$

    The error of a single value is NaN.
    """
    values = np.asarray(values, dtype=float)
    if len(values) == 1:
        return values[0], np.full_like(values[0], np.nan)
    error = values.std(axis=0, ddof=1) / math.sqrt(len(values))
    return values.mean(axis=0), error


@dataclasses.dataclass(frozen=True)
class PairedTest:
    """A test of two methods on their common seeds.

    Attributes:
        difference: mean of the first method minus mean of the second.
        p: p-value of the two-sided paired t-test, or NaN.
        pairs: number of common seeds.
        low, high: ends of the 95 % interval of the difference, or NaN.
    """

    difference: float
    p: float
    pairs: int
    low: float = math.nan
    high: float = math.nan

    def reversed(self):
        """Returns the same test with the methods in the other order."""
        return dataclasses.replace(
            self, difference=-self.difference, low=-self.high, high=-self.low
        )


def paired_test(ours, theirs):
    r"""Runs a paired t-test on common seeds.

    With differences $d_i$ of $k$ pairs, their mean $\bar d$ and the standard
    error $e$ of that mean, $t = \bar d / e$ has $k - 1$ degrees of freedom. If
    the difference is the same for all seeds, the error is zero. Then p is 1 if
    the difference is zero, and NaN otherwise. With a single pair or a value
    that is not finite, p is also NaN. The interval is $\bar d \pm t^* e$ with
    the 97.5 % quantile $t^*$ of the same distribution.

    The test is about seeds: other first weights, batches and, where the seed
    draws them, splits. It says nothing about other test data of the same kind
    if all seeds have the same test data.

    Args:
        ours: dict that maps seeds to values.
        theirs: dict that maps seeds to values.

    Returns:
        A `PairedTest`.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    differences = np.array([ours[seed] - theirs[seed] for seed in seeds])
    if not len(differences):
        return PairedTest(math.nan, math.nan, 0)
    mean, error = mean_and_error(differences)
    reach = t_quantile(len(seeds)) * error
    return PairedTest(
        float(mean),
        _p_value(differences),
        len(seeds),
        float(mean - reach),
        float(mean + reach),
    )


def t_quantile(number):
    """Returns the factor of the 95 % interval of a mean of some values."""
    if number < 2:
        return math.nan
    from scipy import stats

    return float(stats.t.ppf(0.975, number - 1))


def holm(tests):
    r"""Corrects p-values for the number of tests, by Holm's method.

    The p-values $p_1 \le \dots \le p_m$ become
    $\max_{i \le k} (m - i + 1) p_i$, at most 1. If all with $p < 0.05$ are
    called significant, the probability that any of these verdicts is wrong is
    at most 5 %.

    Args:
        tests: list of `PairedTest`. Those without a p-value do not count.

    Returns:
        List of `PairedTest` in the same order. Their intervals are not changed.
    """
    corrected = list(tests)
    order = [k for k, test in enumerate(tests) if not math.isnan(test.p)]
    highest = 0.0
    for place, k in enumerate(sorted(order, key=lambda k: tests[k].p)):
        highest = max(highest, min(1.0, (len(order) - place) * tests[k].p))
        corrected[k] = dataclasses.replace(tests[k], p=highest)
    return corrected


def _p_value(differences):
    if len(differences) < 2 or not np.isfinite(differences).all():
        return math.nan
    # Records have six digits, so smaller differences are rounding errors.
    if np.ptp(differences) < 1e-9 * max(1.0, np.abs(differences).max()):
        return 1.0 if np.abs(differences).max() < 1e-9 else math.nan
    from scipy import stats

    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def verdict(comparison, measure):
    """Returns whether a method is better or worse than the reference.

    Args:
        comparison: a `PairedTest` of the reference and the method.
        measure: the `Measure` of the test.

    Returns:
        "better" or "worse" if p < 0.05, otherwise "tie", or "not tested" if p
        is NaN.
    """
    if math.isnan(comparison.p):
        return "not tested"
    if comparison.p >= LEVEL:
        return "tie"
    is_higher = comparison.difference < 0
    return "better" if is_higher == measure.higher_is_better else "worse"


def by_seed(runs, measure):
    """Returns a dict that maps seeds to values, with NaN for missing ones."""
    return {
        run["seed"]: run["result"].get(measure.key, math.nan) for run in runs
    }


def by_configuration(runs):
    """Returns sorted pairs of a configuration and its runs."""
    key = lambda run: records.order_of(run["configuration"])
    groups = itertools.groupby(sorted(runs, key=key), key)
    found = [list(group) for _, group in groups]
    return [(group[0]["configuration"], group) for group in found]


def choose(runs, measure, grid):
    """Returns the configuration with the best mean of a measure.

    A configuration with a run that diverged (NaN) is worst. Ties go to the
    first configuration in the grid.

    Args:
        runs: tuning runs of one task and one method.
        measure: a `Measure` of validation data.
        grid: list of configurations. All have the same seeds in `runs`.

    Returns:
        A configuration.
    """

    def score_of(configuration):
        found = [run for run in runs if run["configuration"] == configuration]
        return score(found, measure)

    return max(grid, key=score_of)


def edge(configuration, grid, name):
    """Returns whether a setting is the lowest or the highest in a grid.

    Args:
        configuration: the chosen configuration.
        grid: all configurations.
        name: name of the setting, such as `"rate"`.

    Returns:
        `"lowest"`, `"highest"`, or `None` if it is neither or if the grid has
        fewer than three values.
    """
    values = sorted({other[name] for other in grid if name in other})
    if len(values) < 3:
        return None
    ends = {values[0]: "lowest", values[-1]: "highest"}
    return ends.get(configuration.get(name))


def score(runs, measure):
    """Returns the mean of a measure, negated if lower values are better.

    If a run diverged (NaN), the result is minus infinity.
    """
    mean = float(np.mean(list(by_seed(runs, measure).values())))
    if math.isnan(mean):
        return -math.inf
    # Rounding errors of the sum must not break a tie.
    return round(measure.sign * mean, 9)
