"""The tables and figures of `python -m research few-solves`.

They are made from the records alone. `README.md` is written text with these
tables.
"""

import pathlib

from research import code_version
from research import pages
from research.engine import figures
from research.engine import statistics
from research.engine.tables import markdown_table
from research.few_solves import study
from research.few_solves.curves import ACCURACY
from research.few_solves.curves import AXES
from research.few_solves.curves import LOSS
from research.few_solves.curves import figure
from research.few_solves.methods import COLUMNS
from research.few_solves.methods import OURS
from research.few_solves.methods import SWEEPS
from research.few_solves.numbers import Numbers
from research.few_solves.numbers import sign_test
from research.few_solves.tasks import TASKS

TITLE = "Few solver calls"
END = "\N{DAGGER}"
TEST_LOSS = "test_loss"
NO_RUNS = "*No runs are stored.*"
# The rivals of `OURS`. Each is the variant with the lowest validation loss.
RIVALS = {
    "QP-SBGD": ("averaged", "averaged-mini"),
    "Adam": ("adam", "adam-mini"),
}
# Columns of the table of costs: methods and what is counted.
COSTS = {
    "gradients of a sweep of `fit_columns`": ("columns", "gradients"),
    "of an update of QP-SBGD": ("averaged", "gradients"),
    "of one of Adam with as many samples": ("adam", "gradients"),
    "QPU seconds of a sweep": ("columns", "qpu_seconds"),
    "of an update of QP-SBGD ": ("averaged", "qpu_seconds"),
}


def write(out):
    """Writes README.md and the figures, and returns the path of the page."""
    out = pathlib.Path(out)
    found = [Numbers(out, task) for task in TASKS.values()]
    found = [numbers for numbers in found if OURS in numbers.methods]
    older = [n.task.title for n in found if study.is_older(out, n.task.name)]
    blocks = {"conclusion": code_version.note(older) + _conclusion(found)}
    for measure in (ACCURACY, LOSS):
        blocks[f"equal/{measure}"] = _equal(found, measure)
    blocks["optima"] = _optima(found)
    blocks["variants"] = _variants(found)
    blocks["costs"] = _costs(found)
    for numbers in found:
        name = numbers.task.name
        blocks[name] = _ends(numbers)
        figures.save(figure(numbers), out / f"{name}.png")
    for name in set(TASKS) - {numbers.task.name for numbers in found}:
        blocks[name] = NO_RUNS
    pictures = {
        numbers.task.name: f"{numbers.task.name}.png" for numbers in found
    }
    return pages.write(out / pages.NAME, TITLE, blocks, pictures)


# Comparisons at equal cost


def _pairs(found, measure):
    """Returns the comparisons at equal cost, with corrected p-values.

    Args:
        found: List of `Numbers`.
        measure: String.

    Returns:
        A list of tuples `(numbers, axis, name, rival, test)`. `rival` is a pair
        of a method and a number, and `test` compares it with the default sweeps
        of `OURS`.
    """
    pairs = []
    for numbers in found:
        ours = OURS, _sweeps(numbers)
        for axis in AXES:
            budget = numbers.cost(*ours, axis)
            for name, methods in RIVALS.items():
                rival = numbers.at_budget(methods, axis, budget)
                if rival:
                    test = numbers.test(ours, rival, measure)
                    pairs.append((numbers, axis, name, rival, test))
    tests = statistics.holm([test for *_, test in pairs])
    return [(*pair[:-1], test) for pair, test in zip(pairs, tests)]


def _conclusion(found):
    """Returns a list of what the records show."""
    lines = []
    if any(numbers.has_optimum for numbers in found):
        lines.append(_optima_line(found))
    pairs = _pairs(found, ACCURACY)
    for numbers in found:
        parts = []
        for axis in AXES:
            verdicts = [
                f"{_verdict(test, ACCURACY)} {name} "
                f"({_difference(test, ACCURACY)})"
                for one, other, name, _, test in pairs
                if one is numbers and other == axis
            ]
            if verdicts:
                parts.append(
                    f"at {_budget(numbers, axis)}, {pages.joined(verdicts)}"
                )
        lines.append(
            f"**{numbers.task.title}:** after {_sweeps(numbers)} sweeps, the "
            f"test accuracy of `fit_columns` is, {'; '.join(parts)}."
        )
    missing = set(TASKS) - {numbers.task.name for numbers in found}
    if missing:
        titles = [TASKS[name].title for name in TASKS if name in missing]
        lines.append(
            f"**Not run yet**, so nothing is known about them: "
            f"{'; '.join(titles)}."
        )
    return "\n".join(f"- {line}" for line in lines)


def _optima_line(found):
    """Returns how many of the best layers the methods find."""
    found = [numbers for numbers in found if numbers.has_optimum]
    ours = _reached(found, lambda numbers: (OURS, 1))
    others = []
    for name, methods in RIVALS.items():
        if all(set(methods) & set(numbers.methods) for numbers in found):
            best = _reached(found, lambda n, m=methods: n.best_of_optima(m))
            p = _p(sign_test(ours, best))
            others.append(f"{_share(best)} ({name}, p = {p})")
    rest = pages.joined(others or ["unknown"])
    return (
        f"**Single layers:** one sweep of `fit_columns` with one damping "
        f"finds the best possible weights of a layer in {_share(ours)} of "
        f"{len(ours)} problems. The largest shares of the others, with the "
        f"numbers of updates in the study, are {rest}."
    )


def _reached(found, pair_of):
    """Returns whether the best weights are found, by task and seed."""
    return {
        (numbers.task.name, seed): is_best
        for numbers in found
        for seed, is_best in numbers.reached(*pair_of(numbers)).items()
    }


def _share(reached):
    return f"{sum(reached.values()) / len(reached):.0%}"


def _budget(numbers, axis):
    """Returns the cost of the default sweeps as text."""
    cost = numbers.cost(OURS, _sweeps(numbers), axis)
    return f"{_number(cost)} {AXES[axis].removesuffix(' (estimate)')}"


def _equal(found, measure):
    """Returns a table of all methods at the cost of the default sweeps."""
    rows = []
    for numbers, axis, _, (method, count), test in _pairs(found, measure):
        title = numbers.task.methods[method].title
        end = END if numbers.is_at_end(method, count) else ""
        rows.append(
            [
                numbers.task.title,
                _budget(numbers, axis),
                _mean(numbers, OURS, _sweeps(numbers), measure),
                f"{title}, {count} updates{end}",
                _mean(numbers, method, count, measure),
                _difference(test, measure),
                _p(test.p),
                _verdict(test, measure).removesuffix(" from"),
            ]
        )
    head = ["", "cost", "`fit_columns`", "other method", "its result"]
    head += ["difference, 95 % interval", "p (Holm)", "`fit_columns` is"]
    return markdown_table(head, rows)


def _sweeps(numbers):
    """Returns the number of sweeps of comparisons. Quick runs have fewer."""
    return min(SWEEPS, numbers.counts(OURS)[-1])


def _verdict(test, measure):
    """Returns whether the first method is better."""
    if not test.p < statistics.LEVEL:
        return "not significantly different from"
    sign = 1 if measure == ACCURACY else -1
    return "ahead of" if sign * test.difference > 0 else "behind"


def _optima(found):
    """Returns the shares of seeds with the best possible weights."""
    found = [numbers for numbers in found if numbers.has_optimum]
    methods = list(dict.fromkeys(m for one in found for m in one.methods))
    counts = sorted(
        {c for one in found for m in one.methods for c in one.counts(m)}
    )
    rows = []
    for numbers in found:
        for method in methods:
            if method in numbers.methods:
                known = numbers.counts(method)
                shares = [
                    f"{numbers.share_of_optima(method, count):.0%}"
                    if count in known
                    else ""
                    for count in counts
                ]
                title = numbers.task.methods[method].title
                rows.append([numbers.task.title, title, *shares])
    return markdown_table(["", "", *map(str, counts)], rows)


def _variants(found):
    """Returns a table of variants of ours against ours."""
    rows = []
    for numbers in found:
        other = _sweeps(numbers)
        for method, sweeps in (
            ("columns-three", other),
            ("columns-three", 1),
            ("columns-qpu", other),
        ):
            if method not in numbers.methods:
                continue
            cells = [numbers.task.title, _described(numbers, method, sweeps)]
            cells.append(_described(numbers, OURS, other))
            for measure in (LOSS, ACCURACY):
                pair = (method, sweeps), (OURS, other)
                test = numbers.test(*pair, measure)
                cells += [_difference(test, measure), _p(test.p)]
            rows.append(cells)
    head = ["", "this", "minus this", "training loss", "p"]
    return markdown_table([*head, "test accuracy, points", "p"], rows)


def _described(numbers, method, sweeps):
    kind = numbers.task.methods[method]
    dampings = len(kind.grid[0])
    qpu = _number(numbers.cost(method, sweeps, "qpu_seconds"))
    return (
        f"{kind.title}, sweeps: {sweeps}, solves per column: "
        f"{sweeps * dampings}, QPU seconds: {qpu}"
    )


def _difference(test, measure):
    """Returns a difference with its interval, of accuracies in points."""
    factor, digits = (100, 2) if measure == ACCURACY else (1, 4)
    mean, low, high = (
        f"{factor * value:+.{digits}f}"
        for value in (test.difference, test.low, test.high)
    )
    return f"{mean} ({low} to {high})"


def _costs(found):
    """Returns a table of what a sweep or an update costs."""
    rows = []
    for numbers in found:
        cells = [numbers.task.title]
        for name, axis in COSTS.values():
            cost = "-"
            if name in numbers.methods:
                count = numbers.counts(name)[0]
                cost = _number(numbers.cost(name, count, axis) / count)
            cells.append(cost)
        rows.append(cells)
    return markdown_table(["", *COSTS], rows)


def _ends(numbers):
    """Returns a table of the last results of all methods of a task."""
    rows = []
    for name in numbers.methods:
        count = numbers.counts(name)[-1]
        method = numbers.task.methods[name]
        mark = END if numbers.is_at_end(name, count) else ""
        unit = "sweeps" if method.kind == COLUMNS else "updates"
        rows.append(
            [
                f"{method.title}{mark}",
                f"{count} {unit}",
                *(_number(numbers.cost(name, count, axis)) for axis in AXES),
                *(
                    _mean(numbers, name, count, measure)
                    for measure in (LOSS, TEST_LOSS, ACCURACY)
                ),
            ]
        )
    head = ["", "length", *AXES.values(), "training loss", "test loss"]
    return markdown_table([*head, "test accuracy, %"], rows)


def _mean(numbers, method, count, measure):
    mean, error = numbers.mean(method, count, measure)
    if measure == ACCURACY:
        return f"{100 * mean:.2f} +- {100 * error:.2f}"
    return f"{mean:.4f} +- {error:.4f}"


def _number(value):
    """Returns three digits."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _p(value):
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"
