"""The page of `python -m research few-solves`, made from its records alone."""

import pathlib

from keras_qpsbgd import disk
from keras_qpsbgd.compare.report import canvas
from research.experiments.pages.markdown import item
from research.experiments.pages.markdown import paragraph
from research.few_solves import annealer_page
from research.few_solves.methods import METHODS
from research.few_solves.numbers import TOLERANCE
from research.few_solves.numbers import Numbers
from research.few_solves.study import UPDATES
from research.few_solves.tasks import TASKS

TITLE = "# Few solver calls"
QUESTION = (
    "How far does a network get with 1 to 100 updates, which is the number of "
    "solver calls per column? The update is the gradient rule of the paper, "
    'the binary Newton rule (`update="newton"`) with several solvers and '
    "options, `kq.fit_columns`, or a rule without a QUBO."
)
PROTOCOL = (
    "Every method has four configurations. For each number of updates, the one "
    "with the lowest mean validation loss on {tuning} tuning seeds is chosen, "
    "and other seeds are reported: means +- standard errors. Seeds differ in "
    "data and initial weights, and all methods share them. p-values are those "
    "of paired t-tests and not corrected for the number of comparisons. All "
    "updates use all training samples. A sweep of `fit_columns` has one "
    "damping, so it makes one solve per column. It computes the gradient again "
    "for each column, so it takes more time than an update of the others."
)
# Conclusions, written by hand after reading the tables.
NOTE = "note.md"
# The reference and the numbers of updates that are tested.
REFERENCES = {True: "newton", False: "average"}
TESTED = {True: 2, False: 20}
COLORS = (
    "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
)  # fmt: skip
SHOWN = ("newton", "average", "columns", "gradient", "whitened", "top", "adam")


def write(out):
    """Writes RESULTS.md and the figures, and returns the path of the page."""
    out = pathlib.Path(out)
    parts = [TITLE, paragraph(QUESTION), "## Protocol"]
    tuning = max(task.tuning for task in TASKS.values())
    parts.append(paragraph(PROTOCOL.format(tuning=tuning)))
    parts.append("Command: `python -m research few-solves`")
    note = out / NOTE
    if note.exists():
        parts += ["## Findings", note.read_text().strip()]
    for name, task in TASKS.items():
        numbers = Numbers(out, name)
        if numbers.methods:
            parts += _section(numbers, task, out)
    parts += annealer_page.section(out)
    path = out / "RESULTS.md"
    disk.write(path, "\n\n".join(parts) + "\n")
    return path


def _section(numbers, task, out):
    """Returns the paragraphs of one task."""
    figure = f"{task.name}.png"
    canvas.save(_figure(numbers), out / figure)
    parts = [f"## {task.title}", f"![Training loss by updates]({figure})"]
    parts.append("Training loss:")
    parts.append(_table(numbers, "train_loss", "{:.4f}", 1.0))
    parts.append("Test accuracy, percent:")
    parts.append(_table(numbers, "test_accuracy", "{:.1f}", 100.0))
    optimum = numbers.optimum()
    if optimum is not None:
        parts.append(
            paragraph(
                "The best of all layers, found by enumeration, has a mean "
                f"training loss of {optimum:.4f}. Share of the seeds in which "
                f"a method reaches it (within {TOLERANCE:g}):"
            )
        )
        parts.append(_optima(numbers))
    parts.append(_tests(numbers))
    return parts


def _table(numbers, measure, shown, factor):
    head = ["", *map(str, UPDATES)]
    rows = [head, ["---"] * len(head)]
    for method in numbers.methods:
        cells = [METHODS[method].title]
        for updates in UPDATES:
            if not numbers.has(method, updates):
                cells.append("-")
                continue
            mean, error = numbers.mean(method, updates, measure)
            mean, error = shown.format(factor * mean), factor * error
            cells.append(f"{mean} +- {shown.format(error)}")
        rows.append(cells)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _optima(numbers):
    counts = UPDATES
    rows = [["", *map(str, counts)], ["---"] * (len(counts) + 1)]
    for method in numbers.methods:
        rows.append(
            [
                METHODS[method].title,
                *(
                    f"{numbers.share_of_optima(method, updates):.0%}"
                    if numbers.has(method, updates)
                    else "-"
                    for updates in counts
                ),
            ]
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _tests(numbers):
    """Returns a list of comparisons with the reference."""
    reference = REFERENCES[numbers.task.is_single]
    updates = TESTED[numbers.task.is_single]
    if not numbers.has(reference, updates):
        return ""
    title = METHODS[reference].title
    lines = [f"After {updates} updates, {title} minus the others:\n"]
    for method in numbers.methods:
        if method == reference or not numbers.has(method, updates):
            continue
        loss = numbers.test(reference, method, updates, "train_loss")
        accuracy = numbers.test(reference, method, updates, "test_accuracy")
        lines.append(
            item(
                f"{METHODS[method].title}: training loss "
                f"{loss.difference:+.4f} (p = {_p(loss.p)}), test accuracy "
                f"{100 * accuracy.difference:+.1f} points "
                f"(p = {_p(accuracy.p)})"
            )
        )
    return "\n".join(lines)


def _p(value):
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"


def _figure(numbers):
    figure = canvas.figure(8.5, 3.6)
    axes = figure.subplots()
    shown = [method for method in SHOWN if method in numbers.methods]
    for color, method in zip(COLORS, shown):
        counts = [u for u in UPDATES if numbers.has(method, u)]
        means = [numbers.mean(method, u, "train_loss") for u in counts]
        axes.errorbar(
            counts,
            [mean for mean, _ in means],
            [error for _, error in means],
            color=color,
            marker="o",
            markersize=3,
            linewidth=1.2,
            label=METHODS[method].title.replace("`", ""),
        )
    optimum = numbers.optimum()
    if optimum is not None:
        axes.axhline(optimum, color="#555555", linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.set_xticks(UPDATES, UPDATES)
    axes.minorticks_off()
    axes.set_xlabel("updates (solver calls per column)")
    axes.set_ylabel("training loss")
    axes.legend(
        fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5)
    )
    axes.spines[["top", "right"]].set_visible(False)
    return figure
