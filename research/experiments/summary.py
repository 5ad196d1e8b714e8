"""What the comparisons say, in sentences that are made from the records.

Every sentence rests on one paired t-test per task. Their p-values are corrected
by Holm's method for all tests of the sentence.
"""

import dataclasses

from research.engine import statistics
from research.engine import tables
from research.engine.methods import METHODS
from research.experiments.overview import FROM_OUR_SIDE
from research.experiments.overview import OURS
from research.experiments.overview import name_of
from research.experiments.tables import median_seconds

AHEAD, BEHIND = "ahead", "behind"
WORDS = (AHEAD, BEHIND, statistics.NO_DIFFERENCE)
ADAM = METHODS["adam"].label
KINDS = ("accuracy", "loss")


@dataclasses.dataclass(frozen=True)
class Group:
    """Tasks of one kind of network.

    Attributes:
        title: what they are.
        names: `name` of their `overview.Results`.
    """

    title: str
    names: tuple


GROUPS = (
    Group("convolutions with binary weights", ("cifar10/relu",)),
    Group(
        "convolutions with binary weights and activations", ("cifar10/binary",)
    ),
    Group("graph networks", ("cora", "pubmed", "karate")),
    Group(
        "dense networks",
        (
            *("mnist", "mnist-pairs", "logistic"),
            *("adult-2layer", "adult-10layer", "adult-small"),
        ),
    ),
)


def blocks(results, described, times):
    """Returns all sentences by the names of their blocks.

    Args:
        results: list of `overview.Results`.
        described: list of pairs of a `Description` and its records.
        times: dict that maps names of experiments to the times of their runs.
    """
    lines = [cost(described, times)]
    signum, paper = METHODS["signum"].label, METHODS["paper"].label
    lines += [
        f"- **Without couplings** ({name_of(signum)} has the same averages): "
        f"{sentences(results, signum)}",
        f"- **The paper's rule**: {sentences(results, paper)}",
    ]
    return {
        "summary/groups": "\n".join(group_lines(results)),
        "summary/more": "\n".join(filter(None, lines)),
    }


# Sentences


def outcomes(results, method, place):
    """Returns the tests against a method on all tasks, by verdict.

    Args:
        results: list of `overview.Results`.
        method: label.
        place: 0 is the accuracy, 1 the loss.

    Returns:
        A dict that maps each of `WORDS` to a list of pairs of a title and a
        text of the difference.
    """
    found = [
        one
        for one in results
        if len(one.values[place].get(method, ())) > 1
        and len(one.values[place].get(OURS, ())) > 1
    ]
    tests = statistics.holm([one.test(method, place) for one in found])
    words = {word: [] for word in WORDS}
    for one, test in zip(found, tests):
        measure = one.measures[place]
        word = FROM_OUR_SIDE.get(statistics.verdict(test, measure))
        if word is not None:
            text = tables.difference_text(test, measure)
            words[word].append((one.title, text))
    return words


def sentence(words, method, kind):
    """Returns a sentence about the `outcomes` against a method."""
    total = sum(map(len, words.values()))
    if not total:
        return f"The {kind} was not compared with that of {name_of(method)}."
    parts = []
    for word, preposition in ((AHEAD, "of "), (BEHIND, "")):
        if words[word]:
            which = "; ".join(f"{title}: {text}" for title, text in words[word])
            parts.append(
                f"{word} {preposition}{name_of(method)} on "
                f"{len(words[word])} of {_tasks(total)} ({which})"
            )
    rest = len(words[statistics.NO_DIFFERENCE])
    if rest:
        where = "the others" if parts else _all(total)
        parts.append(
            f"{statistics.NO_DIFFERENCE} "
            + ("" if parts else f"from {name_of(method)} ")
            + f"on {where}"
        )
    return f"In {kind}, {', '.join(parts)}."


def _tasks(number):
    return "1 task" if number == 1 else f"{number} tasks"


def _all(number):
    return "the only task" if number == 1 else f"any of {number} tasks"


def sentences(results, method):
    """Returns the sentences about accuracy and loss."""
    return " ".join(
        sentence(outcomes(results, method, place), method, kind)
        for place, kind in enumerate(KINDS)
    )


def group_lines(results):
    """Returns a line for each group of tasks: the best come first."""
    found = []
    for group in GROUPS:
        of_group = [one for one in results if one.name in group.names]
        if not of_group:
            continue
        words = outcomes(of_group, ADAM, 0)
        head = headline(words)
        line = f"- **{head}: {group.title}.** {sentences(of_group, ADAM)}"
        found.append((HEADLINES.index(head), line))
    return [line for _, line in sorted(found, key=lambda pair: pair[0])]


HEADLINES = (
    "Ahead of Adam",
    "Ahead and behind, by task",
    "No significant difference from Adam",
    "Behind Adam",
)


def headline(words):
    """Returns the one of `HEADLINES` that fits to the accuracies."""
    if words[AHEAD]:
        return HEADLINES[1 if words[BEHIND] else 0]
    return HEADLINES[3 if words[BEHIND] else 2]


def cost(described, times):
    """Returns a line about CPU times, or `""` if none are stored."""
    ratios = []
    for description, _ in described:
        for task in description.tasks:
            seconds = median_seconds(times.get(description.name, ()), task)
            if OURS in seconds and ADAM in seconds:
                ratios.append(seconds[OURS] / seconds[ADAM])
    if not ratios:
        return ""
    low, *_, high = sorted(ratios) if len(ratios) > 1 else ratios * 2
    middle = sorted(ratios)[len(ratios) // 2]
    return (
        f"- **Cost**: a run takes {low:.1f} to {high:.1f} times the CPU time of "
        f"a run with Adam (median of {len(ratios)} tasks: {middle:.1f})."
    )


# The ablation


def parts(described):
    """Returns a line for each part of the rule that the ablation changes.

    Args:
        described: list of pairs of a `Description` and its records.
    """
    found = {}
    for description, runs in described:
        for task in description.tasks:
            if not task.variants:
                continue
            measure = task.measures[0]
            rows = tables.rows_of(runs, task, OURS)
            ours = {row.method: row.values[measure.key] for row in rows}
            for method, values in ours.items():
                if method != OURS and OURS in ours:
                    test = statistics.paired_test(ours[OURS], values)
                    found.setdefault(method, []).append((task, test))
    return "\n".join(_part(method, tests) for method, tests in found.items())


def _part(method, pairs):
    tests = statistics.holm([test for _, test in pairs])
    texts = []
    for (task, _), test in zip(pairs, tests):
        measure = task.measures[0]
        word = statistics.verdict(test, measure)
        difference = tables.difference_text(test.reversed(), measure)
        texts.append(f"{task.title}: {word} ({difference})")
    return f"- **{method}**. {'; '.join(texts)}."
