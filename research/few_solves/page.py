"""The tables and figures of `python -m research few-solves`.

They are made from the records alone. `README.md` is written text with these
tables.
"""

import pathlib

from research import pages
from research.engine import figures
from research.engine.statistics import LEVEL
from research.engine.tables import markdown_table
from research.few_solves.methods import COLUMNS
from research.few_solves.numbers import Numbers
from research.few_solves.tasks import TASKS

TITLE = "Few solver calls"
END = "\N{DAGGER}"
AXES = {
    "gradients": "gradient evaluations",
    "qpu_seconds": "QPU seconds (estimate)",
    "cpu_seconds": "CPU seconds",
}
ACCURACY, LOSS, TEST_LOSS = "test_accuracy", "train_loss", "test_loss"
LABELS = {ACCURACY: "test accuracy [%]", LOSS: "training loss"}
# The method that others are compared with, and its rivals. Each rival is the
# variant with the lowest validation loss.
OURS = "columns"
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
# The default number of sweeps.
SWEEPS = 3
STYLES = {
    "columns": ("#0072b2", "o", "-"),
    "columns-three": ("#56b4e9", "s", "--"),
    "columns-qpu": ("#000000", "x", ":"),
    "averaged": ("#d55e00", "^", "-"),
    "averaged-mini": ("#e69f00", "v", "--"),
    "signum": ("#cc79a7", "P", "-"),
    "adam": ("#009e73", "D", "-"),
    "adam-mini": ("#555555", "*", "--"),
}


def write(out):
    """Writes README.md and the figures, and returns the path of the page."""
    out = pathlib.Path(out)
    found = [Numbers(out, task) for task in TASKS.values()]
    found = [numbers for numbers in found if OURS in numbers.methods]
    blocks = {"conclusion": _conclusion(found)}
    for measure in (ACCURACY, LOSS):
        blocks[f"equal/{measure}"] = _equal(found, measure)
    blocks["optima"] = _optima(found)
    blocks["variants"] = _variants(found)
    blocks["costs"] = _costs(found)
    for numbers in found:
        name = numbers.task.name
        blocks[name] = _ends(numbers)
        figures.save(_figure(numbers), out / f"{name}.png")
    pictures = {
        numbers.task.name: f"{numbers.task.name}.png" for numbers in found
    }
    return pages.write(out / pages.NAME, TITLE, blocks, pictures)


# Comparisons at equal cost


def _conclusion(found):
    """Returns a list of what the records show."""
    lines = []
    if any(numbers.has_optimum for numbers in found):
        lines.append(_optima_line(found))
    for numbers in found:
        parts = []
        for axis, label in AXES.items():
            budget, ours, rivals = _at_equal(numbers, axis)
            verdicts = [
                f"{_verdict(numbers.test(ours, rival, ACCURACY), ACCURACY)} "
                f"{name}"
                for name, rival in rivals.items()
                if rival
            ]
            if verdicts:
                label = label.removesuffix(" (estimate)")
                cost = f"{_number(budget)} {label}"
                parts.append(f"{pages.joined(verdicts)} at {cost}")
        sweeps = _sweeps(numbers)
        lines.append(
            f"**{numbers.task.title}:** at the cost of {sweeps} sweeps, the "
            f"test accuracy of `fit_columns` is {'; '.join(parts)}."
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

    def share(methods, count=None):
        shares = [
            max(
                numbers.share_of_optima(method, one)
                for method in methods
                if method in numbers.methods
                for one in numbers.counts(method)
                if count in (None, one)
            )
            for numbers in found
        ]
        return f"{sum(shares) / len(shares):.0%}"

    others = " and ".join(
        f"{share(methods)} ({name})"
        for name, methods in RIVALS.items()
        if all(set(methods) & set(numbers.methods) for numbers in found)
    )
    return (
        f"**Single layers:** one sweep of `fit_columns` with one damping "
        f"finds the best possible weights of a layer in "
        f"{share([OURS], 1)} of the problems. The largest shares of the "
        f"others, after any number of updates, are {others or 'unknown'}."
    )


def _at_equal(numbers, axis):
    """Returns the budget, our best, and that of each rival or `None`."""
    budget = numbers.cost(OURS, _sweeps(numbers), axis)
    rivals = {}
    for name, methods in RIVALS.items():
        rival = numbers.best_within(methods, axis, budget)
        if rival and not numbers.cost(*rival, axis):
            rival = None  # needs no QPU
        rivals[name] = rival
    return budget, numbers.best_within([OURS], axis, budget), rivals


def _equal(found, measure):
    """Returns a table of all methods at the cost of sweeps of ours."""
    rows = []
    for numbers in found:
        for axis, label in AXES.items():
            budget, ours, rivals = _at_equal(numbers, axis)
            cost = f"{_number(budget)} {label.removesuffix(' (estimate)')}"
            cells = [numbers.task.title, cost, _mean(numbers, *ours, measure)]
            for rival in rivals.values():
                cells += _against(numbers, ours, rival, measure)
            rows.append(cells)
    head = ["", "cost", _title(found, OURS)]
    for rival in RIVALS:
        head += [rival, "`fit_columns` is"]
    return markdown_table(head, rows)


def _sweeps(numbers):
    """Returns the number of sweeps of comparisons. Quick runs have fewer."""
    return min(SWEEPS, numbers.counts(OURS)[-1])


def _against(numbers, ours, rival, measure):
    """Returns the mean of a rival, and a verdict."""
    if rival is None:
        return ["-", "-"]
    test = numbers.test(ours, rival, measure)
    verdict = f"{_verdict(test, measure)} (p = {_p(test.p)})"
    return [_mean(numbers, *rival, measure), verdict]


def _verdict(test, measure):
    """Returns whether the first method is better."""
    if not test.p < LEVEL:
        return "level with"
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
    if measure == ACCURACY:
        return f"{100 * test.difference:+.2f}"
    return f"{test.difference:+.4f}"


def _costs(found):
    """Returns a table of what a sweep or an update costs."""
    rows = []
    for numbers in found:
        cells = [numbers.task.title]
        for name, axis in COSTS.values():
            known = name in numbers.methods
            cost = _number(numbers.cost(name, 1, axis)) if known else "-"
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


def _title(found, method):
    return found[0].task.methods[method].title


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


# The figure


def _figure(numbers):
    """Returns a figure of accuracy and loss against all costs."""
    task = numbers.task
    figure = figures.blank(11.0, 6.2)
    axes = figure.subplots(2, len(AXES), sharey="row", squeeze=False)
    for row, measure in zip(axes, LABELS):
        for panel, axis in zip(row, AXES):
            _draw(panel, numbers, axis, measure)
            panel.set_xscale("log")
            _set_ticks(panel.xaxis)
            panel.spines[["top", "right"]].set_visible(False)
            if measure == LOSS:
                panel.set_xlabel(AXES[axis])
                if numbers.has_optimum:
                    panel.axhline(
                        numbers.optimum(),
                        color="#555555",
                        linewidth=0.8,
                        linestyle="--",
                        label="best possible",
                    )
        row[0].set_ylabel(LABELS[measure])
    handles, labels = axes[1][0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=9,
        handlelength=3.0,
    )
    seeds = len(numbers.values(OURS, numbers.counts(OURS)[0], LOSS))
    figure.suptitle(f"{task.title}, {seeds} seeds", fontsize=11)
    return figure


def _draw(panel, numbers, axis, measure):
    """Draws the best that each method reaches with at most some cost."""
    factor = 100 if measure == ACCURACY else 1
    for name in numbers.methods:
        costs = sorted(
            numbers.cost(name, c, axis) for c in numbers.counts(name)
        )
        if not costs[0]:
            continue  # uses no QPU
        means = [
            numbers.mean(*numbers.best_within([name], axis, cost), measure)
            for cost in costs
        ]
        color, marker, line = STYLES[name]
        panel.errorbar(
            costs,
            [factor * mean for mean, _ in means],
            [factor * error for _, error in means],
            color=color,
            marker=marker,
            linestyle=line,
            markersize=4,
            linewidth=1.3,
            label=numbers.task.methods[name].title.replace("`", ""),
        )


def _set_ticks(axis):
    """Sets ticks of a logarithmic axis, as plain numbers."""
    from matplotlib import ticker

    low, high = axis.get_view_interval()
    is_narrow = high < 50 * low
    axis.set_major_locator(
        ticker.LogLocator(subs=(1.0, 2.0, 5.0) if is_narrow else (1.0,))
    )
    axis.set_major_formatter(
        ticker.FuncFormatter(lambda value, _: f"{value:g}")
    )
    axis.set_minor_formatter(ticker.NullFormatter())
