"""Means, errors, paired tests, and the choice of a configuration."""

import dataclasses
import itertools
import math

import numpy as np

from keras_qpsbgd.compare import records

# A difference below it counts, and below the other also among many rivals.
LEVEL = 0.05
STRICT_LEVEL = 0.005


def mean_and_error(values):
    r"""Mean and standard error of the mean along the first axis.

    $$ \bar x = \frac1k \sum_i x_i, \qquad
       \sqrt{\frac{1}{k (k - 1)} \sum_i (x_i - \bar x)^2} $$

    The error of a single value is not known: NaN.
    """
    values = np.asarray(values, dtype=float)
    if len(values) == 1:
        return values[0], np.full_like(values[0], np.nan)
    error = values.std(axis=0, ddof=1) / math.sqrt(len(values))
    return values.mean(axis=0), error


@dataclasses.dataclass(frozen=True)
class PairedTest:
    """Two methods on the seeds that both have.

    Attributes:
        difference: mean of the one minus mean of the other.
        p: of the two-sided paired t-test; NaN where there is none.
        pairs: how many seeds.
    """

    difference: float
    p: float
    pairs: int


def paired_test(ours, theirs):
    r"""Paired t-test on common seeds.

    With differences $d_i$ of $k$ pairs, their mean $\bar d$ and the standard
    error $e$ of that mean, $t = \bar d / e$ has $k - 1$ degrees of freedom. The
    same difference for all seeds leaves no error to compare with: p is 1 if it
    is zero, and NaN otherwise. One pair, or a value that is not finite, gives
    NaN, too.

    Args:
        ours: dictionary, seed -> value.
        theirs: dictionary, seed -> value.

    Returns:
        A `PairedTest`.
    """
    seeds = sorted(ours.keys() & theirs.keys())
    differences = np.array([ours[seed] - theirs[seed] for seed in seeds])
    if not len(differences):
        return PairedTest(math.nan, math.nan, 0)
    return PairedTest(
        float(differences.mean()), _p_value(differences), len(seeds)
    )


def _p_value(differences):
    if len(differences) < 2 or not np.isfinite(differences).all():
        return math.nan
    # Records have six digits; what is equal in them differs by less than that.
    if np.ptp(differences) < 1e-9 * max(1.0, np.abs(differences).max()):
        return 1.0 if np.abs(differences).max() < 1e-9 else math.nan
    from scipy import stats

    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def verdict(comparison, measure):
    """What the rival is, in a word.

    Args:
        comparison: a `PairedTest` of the reference with the rival.
        measure: the `Measure` compared.

    Returns:
        "tie" unless p < 0.05, else "better" or "worse"; "not tested" where
        there is no p.
    """
    if math.isnan(comparison.p):
        return "not tested"
    if comparison.p >= LEVEL:
        return "tie"
    rival_is_higher = comparison.difference < 0
    return "better" if rival_is_higher == measure.higher_is_better else "worse"


def by_seed(runs, measure):
    """Dictionary, seed -> value of a measure; NaN where it was not taken."""
    return {
        run["seed"]: run["result"].get(measure.key, math.nan) for run in runs
    }


def by_configuration(runs):
    """Pairs of a configuration and its runs, sorted."""
    key = lambda run: records.order_of(run["configuration"])
    groups = itertools.groupby(sorted(runs, key=key), key)
    found = [list(group) for _, group in groups]
    return [(group[0]["configuration"], group) for group in found]


def choose(runs, measure, grid=None):
    """The configuration with the best mean of a measure over its runs.

    Only runs of the stage "tuning" count. A run that diverged (NaN) loses;
    ties go to the first configuration of the grid.

    Args:
        runs: records of one task and one method.
        measure: `Measure` of validation data.
        grid: configurations in their order; `None` sorts them.

    Returns:
        A configuration.

    Raises:
        ValueError: `measure` is one of test data, there is no tuning run, or
            configurations have not the same seeds.
    """
    if measure.key.startswith("test_"):
        raise ValueError(
            f"`measure` must not be one of test data. Received: {measure.key}"
        )
    tuning = [run for run in runs if run["stage"] == "tuning"]
    found = by_configuration(tuning)
    if grid is not None:
        found = [
            (one, [run for run in tuning if _has(run, one)]) for one in grid
        ]
    seeds = {tuple(sorted(run["seed"] for run in group)) for _, group in found}
    if len(seeds) != 1 or () in seeds:
        raise ValueError(
            "`runs` must have the same tuning seeds, at least one, for every "
            f"configuration. Received: {sorted(seeds)}"
        )
    # `max` keeps the first of equals.
    return max(found, key=lambda pair: score(pair[1], measure))[0]


def edge(configuration, grid, name):
    """Whether a setting is the lowest or the highest of a grid.

    Args:
        configuration: the chosen one.
        grid: all configurations.
        name: of the setting, such as `"rate"`.

    Returns:
        `"lowest"`, `"highest"`, or `None` if it is neither or if fewer than
        three values were tried.
    """
    values = sorted({other.get(name) for other in grid} - {None})
    if len(values) < 3 or configuration[name] not in (values[0], values[-1]):
        return None
    return "lowest" if configuration[name] == values[0] else "highest"


def score(runs, measure):
    """Mean of a measure, made so that more is better.

    A run that diverged (NaN) makes it minus infinity.
    """
    mean = float(np.mean(list(by_seed(runs, measure).values())))
    if math.isnan(mean):
        return -math.inf
    # Sums in another order must not break a tie.
    return round(measure.sign * mean, 9)


def _has(run, configuration):
    texts = map(records.text_of, (run["configuration"], configuration))
    return len(set(texts)) == 1
