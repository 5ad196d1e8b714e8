"""The page of `python -m research few-solves`, made from its records alone."""

import pathlib

from keras_qpsbgd import disk
from keras_qpsbgd.compare.report import canvas
from research.experiments.pages.markdown import item
from research.experiments.pages.markdown import paragraph
from research.few_solves import annealer_page
from research.few_solves.numbers import TOLERANCE
from research.few_solves.numbers import Numbers
from research.few_solves.tasks.catalogue import TASKS

TITLE = "# Few solver calls"
QUESTION = (
    "How far does a network get with 1 to 100 updates, which is the number of "
    "solver calls per column? The update is that of QP-SBGD, a "
    "binary Newton rule with several solvers and options, `kq.fit_columns`, or "
    "a rule without a QUBO."
)
REMOVED = (
    "**Version 0.1.** These methods ran with the rules of version 0.1 "
    '(`gradient_scale="max"`, `update="newton"`), which are removed, and '
    "cannot be run again: {titles}. *QP-SBGD, averaged* is the rule of "
    "`QPSBGD` since, with 4 configurations: two learning rates, each with and "
    "without momentum."
)
END = "\N{DAGGER}"
PROTOCOL = (
    "All methods of a task have the same number of configurations. For each "
    "number of updates, the one with the lowest mean validation loss on the "
    "tuning seeds is chosen, and other seeds are reported. Seeds differ in "
    "data, batches and initial weights, and all methods share them. Tables "
    "show means, and in the column SE the largest standard error of the row. "
    f"{END} marks a chosen configuration that is the first or last one of its "
    "grid: one beyond it might be better. p-values are those of paired t-tests "
    "and not corrected for the number of comparisons. Updates that were not "
    "evaluated have a dash."
)
COLUMNS = (
    "The numbers of updates of `fit_columns` are solves per column: a sweep "
    "makes one solve for each damping. It computes the gradient again for each "
    "column, so it takes more time than an update of the others."
)
# Conclusions, written by hand after reading the tables.
NOTE = "note.md"
COLORS = (
    "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
    "#000000", "#999999", "#7a5230",
)  # fmt: skip


def write(out):
    """Writes RESULTS.md and the figures, and returns the path of the page."""
    out = pathlib.Path(out)
    parts = [TITLE, paragraph(QUESTION), "## Protocol"]
    parts += [paragraph(PROTOCOL), paragraph(COLUMNS)]
    parts += _removed(out)
    parts.append("Command: `python -m research few-solves`")
    note = out / NOTE
    if note.exists():
        parts += ["## Findings", note.read_text().strip()]
    for task in TASKS.values():
        numbers = Numbers(out, task)
        if numbers.methods and _counts(numbers):
            parts += _section(numbers, out)
    parts += annealer_page.section(out)
    path = out / "RESULTS.md"
    disk.write(path, "\n\n".join(parts) + "\n")
    return path


def _removed(out):
    """Returns a paragraph about methods that cannot run again, if any."""
    titles = {
        f"*{task.methods[method].title}*"
        for task in TASKS.values()
        for method in Numbers(out, task).methods
        if not task.methods[method].can_run
    }
    if not titles:
        return []
    return [paragraph(REMOVED.format(titles="; ".join(sorted(titles))))]


def _section(numbers, out):
    """Returns the paragraphs of one task."""
    task = numbers.task
    figure = f"{task.name}.png"
    canvas.save(_figure(numbers), out / figure)
    parts = [f"## {task.title}", paragraph(f"{task.about} {_seeds(numbers)}")]
    parts.append(f"![Training loss by updates]({figure})")
    parts.append("Training loss:")
    parts.append(_table(numbers, "train_loss", "{:.4f}", 1.0))
    parts.append("Test accuracy, percent:")
    shown = f"{{:.{task.accuracy_digits}f}}"
    parts.append(_table(numbers, "test_accuracy", shown, 100.0))
    optimum = numbers.optimum()
    if optimum is not None:
        parts.append(
            paragraph(
                "The best possible weights of the layer, found by enumeration, "
                f"have a mean training loss of {optimum:.4f}. Share of the "
                "seeds in which a method reaches them "
                f"(within {TOLERANCE:g}):"
            )
        )
        parts.append(_optima(numbers))
    parts.append(_tests(numbers))
    return [part for part in parts if part]


def _seeds(numbers):
    task = numbers.task
    grids = [len(task.methods[method].grid) for method in numbers.methods]
    seeds = "seed" if task.tuning == 1 else "seeds"
    text = (
        f"{max(grids)} configurations, {task.tuning} tuning {seeds}, "
        f"{task.fresh} other seeds."
    )
    if task.chosen_at:
        text += f" Configurations are chosen after {task.chosen_at} updates"
        if task.tuned_on:
            text += f" of the task `{task.tuned_on}`, and not tuned again"
        text += "."
    return text


def _table(numbers, measure, shown, factor):
    """Returns a table with a row for each method."""
    counts = _counts(numbers)
    rows = [["", *map(str, counts), "SE"]]
    for method in numbers.methods:
        cells, errors = [numbers.task.methods[method].title], []
        for count in counts:
            if not numbers.has(method, count):
                cells.append("-")
                continue
            mean, error = numbers.mean(method, count, measure)
            mark = END if numbers.is_at_end(method, count) else ""
            cells.append(shown.format(factor * mean) + mark)
            errors.append(error)
        rows.append([*cells, shown.format(factor * max(errors))])
    return _markdown(rows)


def _counts(numbers):
    """Returns the numbers of updates that at least one method has."""
    return [
        count
        for count in numbers.task.counts
        if any(numbers.has(method, count) for method in numbers.methods)
    ]


def _optima(numbers):
    counts = _counts(numbers)
    rows = [["", *map(str, counts)]]
    for method in numbers.methods:
        shares = [
            f"{numbers.share_of_optima(method, count):.0%}"
            if numbers.has(method, count)
            else "-"
            for count in counts
        ]
        rows.append([numbers.task.methods[method].title, *shares])
    return _markdown(rows)


def _markdown(rows):
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _tests(numbers):
    """Returns a list of comparisons with the reference."""
    task = numbers.task
    reference, updates = task.reference, task.tested
    if not numbers.has(reference, updates):
        return ""
    title = task.methods[reference].title
    lines = [f"After {updates} updates, {title} minus the others:\n"]
    for method in numbers.methods:
        if method == reference or not numbers.has(method, updates):
            continue
        loss = numbers.test(reference, method, updates, "train_loss")
        accuracy = numbers.test(reference, method, updates, "test_accuracy")
        lines.append(
            item(
                f"{task.methods[method].title}: training loss "
                f"{loss.difference:+.4f} (p = {_p(loss.p)}), test accuracy "
                f"{100 * accuracy.difference:+.{task.accuracy_digits}f} points "
                f"(p = {_p(accuracy.p)})"
            )
        )
    if len(lines) == 1:
        return ""  # no other method was run
    return "\n".join(lines)


def _p(value):
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"


def _figure(numbers):
    task = numbers.task
    figure = canvas.figure(8.5, 3.6)
    axes = figure.subplots()
    shown = [method for method in task.shown if method in numbers.methods]
    for color, method in zip(COLORS, shown):
        counts = [u for u in task.counts if numbers.has(method, u)]
        means = [numbers.mean(method, u, "train_loss") for u in counts]
        axes.errorbar(
            counts,
            [mean for mean, _ in means],
            [error for _, error in means],
            color=color,
            marker="o",
            markersize=3,
            linewidth=1.2,
            label=task.methods[method].title.replace("`", ""),
        )
    optimum = numbers.optimum()
    if optimum is not None:
        axes.axhline(optimum, color="#555555", linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.set_xticks(_counts(numbers), _counts(numbers))
    axes.minorticks_off()
    axes.set_xlabel("updates (solver calls per column)")
    axes.set_ylabel("training loss")
    axes.legend(
        fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5)
    )
    axes.spines[["top", "right"]].set_visible(False)
    return figure
