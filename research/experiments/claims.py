"""The paper's claims, and what the same experiments give here."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from research.engine import statistics
from research.engine import tables
from research.engine.methods import METHODS
from research.engine.statistics import TEST_ACCURACY
from research.engine.statistics import TRAIN_LOSS
from research.experiments.options import LOSSES
from research.experiments.overview import OURS
from research.experiments.overview import name_of
from research.experiments.readings import reading_text
from research.experiments.tasks import direction
from research.experiments.tasks import mnist_pairs

BASELINES = ("sgd", "signsgd", "proxquant")
NOT_TESTABLE = "not testable here"
FIGURE = "a figure"
ENCODER = "the encoder of real weights does most of the work"
# The loss of an answer of 0.5 to every row of two classes.
COIN = math.log(2)
# A mean this close to a number or to another mean agrees with it: a share, or a
# share of a loss.
POINTS, SHARE = 0.02, 0.1


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Attributes:
        text: what the paper claims.
        paper: its number.
        check: function of `Readings` that returns a list of the reading, a
            text, and whether it agrees with the claim: `True`, `False`, or
            `None` if that cannot be tested. The reading of a claim that does
            not depend on it is `None`.
        note: what may explain a claim that is not reproduced, or limits one
            that is.
    """

    text: str
    paper: str
    check: Callable
    note: str = ""


def _of_readings(name, check):
    """Returns a function that checks every reading of a task."""

    def checked(readings):
        known = readings.of_task(name)
        found = [(reading, *check(readings, reading)) for reading in known]
        for loss in LOSSES:
            if not readings.fresh(loss, name):
                found.append(((loss, "last"), "not run", None))
        return found

    return checked


def against(name, keys, measure, fits):
    """Returns a check of QP-SBGD against other methods.

    Args:
        name: name of the task.
        keys: keys of the methods.
        measure: the `Measure` to compare.
        fits: `ahead` or `level`.
    """

    def check(readings, reading):
        values = readings.values(reading, name, measure)
        labels = [METHODS[key].label for key in keys]
        if not {OURS, *labels} <= {*values}:
            return "not all methods were run", None
        tests = statistics.holm(
            [
                statistics.paired_test(values[OURS], values[label])
                for label in labels
            ]
        )
        means = [np.mean(list(values[label].values())) for label in labels]
        agrees = [fits(*one, measure) for one in zip(tests, means)]
        texts = [
            f"{name_of(label)} {_mean(values[label], measure)}"
            for label in labels
        ]
        text = f"{_mean(values[OURS], measure)} against {', '.join(texts)}"
        better = all(measure.sign * test.difference > 0 for test in tests)
        if fits is ahead and better and not all(agrees):
            text += ", not significant"
        return text, all(agrees)

    return _of_readings(name, check)


def _mean(values, measure):
    return tables.mean_text(values.values(), measure)


def ahead(test, mean, measure):
    """Whether QP-SBGD is significantly better than a method."""
    del mean
    return statistics.verdict(test, measure) == "worse"


def level(test, mean, measure):
    """Whether QP-SBGD is better than a method or close to it.

    Two methods that learn nothing are not level.
    """
    if measure.key == TRAIN_LOSS.key and mean + test.difference > COIN:
        return False
    is_behind = statistics.verdict(test, measure) == "better"
    room = POINTS if measure.percent else SHARE * abs(mean)
    return not is_behind and measure.sign * test.difference >= -room


def reaches(name, low, measure, key="native", high=math.inf):
    """Returns a check that a method reaches a number, or lies in a range."""

    def check(readings, reading):
        values = readings.values(reading, name, measure)
        values = values.get(METHODS[key].label)
        if values is None:
            return "not run", None
        mean = np.mean(list(values.values()))
        agrees = low - POINTS <= mean <= high + POINTS
        return _mean(values, measure), bool(agrees)

    return _of_readings(name, check)


def fails(name, key, others):
    """Returns a check that a method alone is worse than the constant answer."""

    def check(readings, reading):
        losses = readings.values(reading, name, TRAIN_LOSS)
        labels = [METHODS[k].label for k in (key, *others)]
        if not {*labels} <= {*losses}:
            return "not all methods were run", None
        texts = [_mean(losses[label], TRAIN_LOSS) for label in labels]
        means = [np.mean(list(losses[label].values())) for label in labels]
        names = [name_of(label) for label in labels[1:]]
        text = f"training loss {texts[0]} against " + ", ".join(
            " ".join(pair) for pair in zip(names, texts[1:])
        )
        return text, bool(means[0] > COIN >= max(means[1:]))

    return _of_readings(name, check)


def robust(readings):
    """The accuracies of Cora over learning rates and batch sizes."""
    found = []
    for loss in LOSSES:
        runs = readings.fresh(loss, "cora-ablation")
        if not runs:
            continue
        means = [
            statistics.mean_and_error(
                list(statistics.by_seed(group, TEST_ACCURACY).values())
            )[0]
            for _, group in statistics.by_configuration(runs)
        ]
        low, high = (
            tables.number(end(means), TEST_ACCURACY) for end in (min, max)
        )
        text = f"{low} to {high} with {len(means)} settings"
        found.append(((loss, "best"), text, max(means) - min(means) < 0.05))
    return found


def untested(text):
    return lambda readings: [(None, text, None)]


def _digits(pair):
    name = mnist_pairs.task_name(pair)
    numbers = mnist_pairs.PAPER[pair]
    first, second = pair
    return Claim(
        f"Digits {first} and {second}: accuracy of QP-SBGD (table 1)",
        f"{100 * numbers['native']:.0f} %",
        reaches(name, numbers["native"], TEST_ACCURACY),
    )


def _best_of_digits(pair):
    first, second = pair
    numbers = mnist_pairs.PAPER[pair]
    others = ", ".join(
        f"{name_of(METHODS[key].label)} {100 * numbers[key]:.0f}"
        for key in BASELINES
    )
    return Claim(
        f"Digits {first} and {second}: ahead of all (table 1)",
        f"{100 * numbers['native']:.0f} against {others} %",
        against(mnist_pairs.task_name(pair), BASELINES, TEST_ACCURACY, ahead),
        "the paper's differences are small, and it states no errors",
    )


def _graph(name, title, note):
    return Claim(
        f"{title}: ahead of all",
        FIGURE,
        against(name, BASELINES, TEST_ACCURACY, ahead),
        note,
    )


def _agreement(key, text, note=""):
    low, high = direction.PAPER[METHODS[key].label]
    return Claim(
        f"Direction: {text} agrees with the gradient on all data",
        f"{low} to {high}",
        reaches(direction.NAME, low, direction.AGREEMENT, key=key, high=high),
        note,
    )


CLAIMS = (
    Claim(
        "Logistic regression: ahead of signSGD, with Gurobi",
        FIGURE,
        against("logistic", ("signsgd",), TRAIN_LOSS, ahead),
    ),
    Claim(
        "Adult, two layers: similar to BinaryConnect",
        FIGURE,
        against("adult-2layer", ("sgd",), TRAIN_LOSS, level),
        "with unscaled layers, the losses are those of a coin or worse",
    ),
    Claim(
        "Adult, ten layers: ahead of BinaryConnect",
        FIGURE,
        against("adult-10layer", ("sgd",), TRAIN_LOSS, ahead),
        "the public notebook updates only the first layer",
    ),
    Claim(
        "Adult, ten layers: ProxQuant fails, and the others do not",
        FIGURE,
        fails("adult-10layer", "proxquant", ("native", "sgd", "signsgd")),
        "signSGD fails, too, and in most readings also QP-SBGD or SGD",
    ),
    *map(_digits, mnist_pairs.PAPER),
    *(
        _best_of_digits(pair)
        for pair, numbers in mnist_pairs.PAPER.items()
        if max(numbers, key=numbers.get) == "native"
    ),
    _graph(
        "karate",
        "Karate club",
        "features, groups and training members are not stated",
    ),
    _graph("cora", "Cora", ENCODER),
    _graph("pubmed", "PubMed", ENCODER),
    Claim(
        "Adult 3-5-2: ahead of the baselines or level with them",
        FIGURE,
        against("adult-small", BASELINES, TEST_ACCURACY, level),
        "but no method is better than a constant answer",
    ),
    _agreement("native", "QP-SBGD"),
    _agreement(
        "signsgd", "signSGD", "it is not known how the paper counts zeros"
    ),
    Claim(
        "Training converges to a fixed point, if there is one",
        "a theorem",
        untested("[appendix](../appendix/README.md#fixed-points)"),
        "it is not known whether there is one",
    ),
    Claim("Robust to batch size and step size (Cora)", FIGURE, robust),
    Claim(
        "The spectral gap of small networks, and its growth",
        "0.03 and 0.01",
        untested("[gaps](../gaps/README.md)"),
        "features, weights, schedule and units of the paper are not known",
    ),
    Claim(
        "D-Wave is below Gurobi",
        FIGURE,
        untested("no run on a real QPU"),
    ),
)


def table(readings):
    """Returns the table of all claims."""
    rows = []
    for claim in CLAIMS:
        found = claim.check(readings)
        lines = [_line(*one) for one in found] or ["no runs"]
        rows.append(
            [claim.text, claim.paper, "<br>".join(lines), verdict(claim, found)]
        )
    return tables.markdown_table(["claim", "paper", "here", "verdict"], rows)


def _line(reading, text, agrees):
    text = f"**{text}**" if agrees else text
    return f"{reading_text(reading)}: {text}" if reading else text


def verdict(claim, found):
    """Returns the verdict with the readings that agree.

    Args:
        claim: a `Claim`.
        found: what its check returned.
    """
    tested = [one for one in found if one[-1] is not None]
    readings = [reading for reading, _, agrees in tested if agrees]
    if not tested:
        text = NOT_TESTABLE
    elif not readings:
        text = "not reproduced"
    elif len(readings) == len(found) > 1:
        text = "reproduced in all readings"
    else:
        text = f"reproduced ({'; '.join(map(reading_text, readings))})"
    return f"{text}: {claim.note}" if claim.note else text
