"""The figure of a task: accuracy and loss against costs."""

from research.engine import figures
from research.few_solves.methods import OURS

AXES = {
    "gradients": "gradient evaluations",
    "qpu_seconds": "QPU seconds (estimate)",
    "cpu_seconds": "CPU seconds",
}
ACCURACY, LOSS = "test_accuracy", "train_loss"
LABELS = {ACCURACY: "test accuracy [%]", LOSS: "training loss"}
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


def figure(numbers):
    """Returns a figure of accuracy and loss against all costs."""
    task = numbers.task
    found = figures.blank(11.0, 6.2)
    axes = found.subplots(2, len(AXES), sharey="row", squeeze=False)
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
    found.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=9,
        handlelength=3.0,
    )
    seeds = len(numbers.values(OURS, numbers.counts(OURS)[0], LOSS))
    found.suptitle(f"{task.title}, {seeds} seeds", fontsize=11)
    return found


def _draw(panel, numbers, axis, measure):
    """Draws what each method reaches at each of its costs."""
    factor = 100 if measure == ACCURACY else 1
    for name in numbers.methods:
        counts = numbers.counts(name)
        costs = [numbers.cost(name, count, axis) for count in counts]
        if not costs[0]:
            continue  # uses no QPU
        means = [numbers.mean(name, count, measure) for count in counts]
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
