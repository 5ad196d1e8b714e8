"""What the comparisons say, in sentences that are made from the records.

Every sentence rests on one paired t-test per task. Their p-values are corrected
by Holm's method for all tests of the sentence. Intervals are not corrected.
"""

import dataclasses
from statistics import median

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
    Group("convolutions with binary weights (CIFAR-10)", ("cifar10/relu",)),
    Group(
        "convolutions with binary weights and activations (CIFAR-10)",
        ("cifar10/binary",),
    ),
    Group("graph networks", ("cora", "pubmed", "karate")),
    Group(
        "dense networks",
        (
            *("mnist", "mnist-pairs", "logistic"),
            *("adult-2layer", "adult-10layer", "adult-small", "digits"),
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
        f"- **Against {name_of(signum)}** (no couplings, steps of one size). "
        f"{sentences(results, signum)}",
        f"- **Against the paper's rule.** {sentences(results, paper)}",
        "- **Against the best other binary method of each task.** "
        f"{_accuracy(outcomes_of_best(results, 0))} "
        f"{_loss(outcomes_of_best(results, 1))}",
    ]
    adam = sentences(results, ADAM)
    return {
        "summary/adam": "Against Adam on the same binary layers, with tests "
        f"corrected for all tasks: {adam[:1].lower()}{adam[1:]}",
        "summary/groups": "\n".join(
            f"- **{group.title[0].upper()}{group.title[1:]}.** "
            f"{sentences(found, ADAM)}"
            for _, group, found in _grouped(results)
        ),
        "summary/choices": choices(results),
        "summary/more": "\n".join(filter(None, lines)),
        "summary/parts": parts(described),
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
        `PairedTest` of QP-SBGD minus the method.
    """
    found = [
        one
        for one in results
        if len(one.values[place].get(method, ())) > 1
        and len(one.values[place].get(OURS, ())) > 1
    ]
    tests = statistics.holm([one.test(method, place) for one in found])
    return _by_verdict(zip(found, tests), place)


def outcomes_of_best(results, place):
    """Returns the tests against the best other method of each task.

    They are corrected for all methods of a task, as in the overview, since the
    best one is chosen by its result. See `outcomes`.
    """
    pairs = [
        (one, test)
        for one in results
        for test in list(one.tests(place).values())[:1]
    ]
    return _by_verdict(pairs, place)


def _by_verdict(pairs, place):
    """Returns titles and tests by verdict, from pairs of results and test."""
    words = {word: [] for word in WORDS}
    for one, test in pairs:
        verdict = statistics.verdict(test, one.measures[place])
        if verdict in FROM_OUR_SIDE:
            words[FROM_OUR_SIDE[verdict]].append((one.title, test))
    return words


def sentences(results, method):
    """Returns sentences about the accuracy and the loss against a method."""
    accuracy, loss = (outcomes(results, method, place) for place in (0, 1))
    return " ".join(filter(None, (_accuracy(accuracy), _loss(loss))))


def _accuracy(words):
    total = sum(map(len, words.values()))
    parts = []
    for word, text in ((AHEAD, "more accurate"), (BEHIND, "less accurate")):
        found = words[word]
        if found:
            sizes = [100 * abs(test.difference) for _, test in found]
            parts.append(
                f"{text} on {_part_of(len(found), total)}{_names(found)}, by "
                f"{_range(sizes)} points"
            )
    rest = words[statistics.NO_DIFFERENCE]
    if rest:
        low = 100 * min(test.low for _, test in rest)
        high = 100 * max(test.high for _, test in rest)
        where = "the others" if parts and len(rest) > 1 else "the other"
        where = where if parts else _any_of(total)
        parts.append(
            f"{statistics.NO_DIFFERENCE} on {where} "
            f"({low:+.1f} to {high:+.1f} points)"
        )
    return _sentence(parts)


def _loss(words):
    parts = [
        f"{text} on {len(words[word])}"
        for word, text in (
            (AHEAD, "a lower loss"),
            (BEHIND, "a higher loss"),
            (statistics.NO_DIFFERENCE, f"{statistics.NO_DIFFERENCE} in loss"),
        )
        if words[word]
    ]
    return _sentence(parts)


def _sentence(parts):
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _part_of(number, total):
    if total == 1:
        return "the only task"
    return f"all {total} tasks" if number == total else f"{number} of {total}"


def _any_of(total):
    return "the only task" if total == 1 else f"any of {total} tasks"


def _names(found):
    """Returns the titles in parentheses, if there are at most two."""
    if len(found) > 2:
        return ""
    return f" ({'; '.join(title.split(' (')[0] for title, _ in found)})"


def _range(sizes):
    low, high = f"{min(sizes):.1f}", f"{max(sizes):.1f}"
    return low if low == high else f"{low} to {high}"


def _grouped(results):
    """Returns headlines, groups and their results: the best come first."""
    found = []
    for group in GROUPS:
        of_group = [one for one in results if one.name in group.names]
        if of_group:
            head = headline(outcomes(of_group, ADAM, 0))
            found.append((head, group, of_group))
    return sorted(found, key=lambda one: list(CHOICES).index(one[0]))


# Headlines by the accuracies against Adam, and what to use.
CHOICES = {
    "Ahead of Adam": "`kq.QPSBGD()`",
    "Ahead and behind, by task": "either: try both",
    "No significant difference from Adam": "Adam, which needs less time",
    "Behind Adam": "Adam",
}


def headline(words):
    """Returns the one of `CHOICES` that fits to the accuracies."""
    heads = list(CHOICES)
    if words[AHEAD]:
        return heads[1 if words[BEHIND] else 0]
    return heads[3 if words[BEHIND] else 2]


def choices(results):
    """Returns a table of what to use for each group of tasks."""
    rows = [
        [group.title, CHOICES[head], sentences(found, ADAM)]
        for head, group, found in _grouped(results)
    ]
    return tables.markdown_table(["network", "use", "why"], rows)


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
    middle = median(ratios)
    return (
        f"- **Cost**: a run takes {_range(ratios)} times the CPU time of a run "
        f"with Adam (median of {len(ratios)} tasks: {middle:.1f})."
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
