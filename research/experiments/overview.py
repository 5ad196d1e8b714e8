"""All tasks at a glance: one table, one picture, and verdicts in words.

Every task is compared by its accuracy and by its loss, with paired t-tests over
the seeds, corrected by Holm's method for all methods of a row. The networks of
`research.cifar10` have records of their own.
"""

import collections
import dataclasses
import math
import pathlib
import textwrap

import numpy as np

from research.cifar10 import records as cifar10
from research.cifar10 import table as cifar10_table
from research.engine import figures
from research.engine import statistics
from research.engine import tables
from research.engine.methods import METHODS
from research.engine.statistics import TEST_ACCURACY
from research.engine.statistics import TEST_LOSS
from research.engine.statistics import mean_and_error
from research.experiments.options import HOST

PICTURE = "overview.png"
# Experiments that come first, after CIFAR-10.
FIRST = ("mnist", "cora", "pubmed", "karate", "adult-10layer", "adult-2layer")
OURS = METHODS["native"].label
REAL = METHODS["real"].label
# Other solvers of the same rule are not other methods.
NOT_COMPARED = (
    REAL,
    *(METHODS[key].label for key in (*HOST, "ridge", "constant")),
)
# The methods in the picture, from left to right in its legend.
SHOWN = ("adam", "momentum", "sgd", "signum", "signsgd", "bop", "proxquant")
SHOWN = tuple(METHODS[key].label for key in (*SHOWN, "paper"))
SHORT = {
    METHODS["paper"].label: "the paper's rule",
    METHODS["momentum"].label: "SGD with momentum",
}
# Of `SHOWN`, all different and readable with color blindness.
COLORS = (
    *("#cc79a7", "#e69f00", "#56b4e9", "#d55e00"),
    *("#5f6b76", "#009e73", "#b8a800", "#000000"),
)
MIN_SEEDS = 3  # of QP-SBGD
MIN_PAIRS = 2  # of seeds that QP-SBGD and another method have
# Limits of the picture; points beyond them become arrows.
POINTS = (-3.0, 7.0)
PERCENT = (-30.0, 80.0)
TITLE_WIDTH = 28  # letters
CIFAR10 = {
    "averaged": "native",
    "paper": "paper",
    "adam": "adam",
    "sgd": "momentum",
    "signum": "signum",
    "bop": "bop",
}
FROM_OUR_SIDE = {
    "better": "behind",
    "worse": "ahead",
    statistics.NO_DIFFERENCE: statistics.NO_DIFFERENCE,
}
STUDIES = ("study", "vgg-decay")  # of CIFAR-10


@dataclasses.dataclass(frozen=True)
class Results:
    """The values of all methods on a task.

    Attributes:
        name: name of the experiment, such as `"cora"`. For CIFAR-10 it ends
            with the activation.
        title: heading of the task.
        measures: the accuracy and the loss.
        values: for each measure, a dict that maps labels of methods to dicts
            that map seeds to values.
    """

    name: str
    title: str
    measures: tuple
    values: tuple

    def test(self, method, place):
        """Returns the `PairedTest` of QP-SBGD against a method.

        Args:
            method: label.
            place: 0 is the accuracy, 1 the loss.
        """
        values = self.values[place]
        return statistics.paired_test(values[OURS], values[method])

    def tests(self, place):
        """Returns the corrected tests against `others`, by their labels."""
        others = self.others(place)
        tests = [self.test(method, place) for method in others]
        return dict(zip(others, statistics.holm(tests)))

    def others(self, place):
        """Returns the labels of other binary methods, the best first.

        Methods with fewer than `MIN_PAIRS` common seeds are left out.
        """
        sign = self.measures[place].sign
        values = self.values[place]
        ours = values[OURS].keys()
        means = {
            method: sign * float(np.mean(list(found.values())))
            for method, found in values.items()
            if method not in (OURS, *NOT_COMPARED)
            and len(found.keys() & ours) >= MIN_PAIRS
        }
        means = {k: v for k, v in means.items() if not math.isnan(v)}
        return sorted(means, key=means.get, reverse=True)


def collect(described, folder):
    """Returns the `Results` of all tasks that have accuracies and losses.

    Args:
        described: list of pairs of a `Description` and its records.
        folder: folder of the studies of CIFAR-10.
    """
    of_study = {}
    for study in STUDIES:
        of_study |= _of_study(_study(folder, study))
    found = [of_study[key] for key in sorted(of_study)]

    def place(pair):
        name = pair[0].name
        return FIRST.index(name) if name in FIRST else len(FIRST)

    for description, runs in sorted(described, key=place):
        for task in description.tasks:
            keys = {measure.key for measure in task.measures}
            if not {TEST_ACCURACY.key, TEST_LOSS.key} <= keys or task.variants:
                continue
            rows = tables.rows_of(runs, task, OURS)
            if len(rows) < 2 or OURS not in {row.method for row in rows}:
                continue
            measures = TEST_ACCURACY, TEST_LOSS
            values = tuple(
                {row.method: row.values[measure.key] for row in rows}
                for measure in measures
            )
            found.append(
                Results(description.name, task.title, measures, values)
            )
    return found


def is_older(folder):
    """Returns whether the studies of CIFAR-10 have runs older than the code."""
    return any(cifar10_table.note(_study(folder, study)) for study in STUDIES)


def _study(folder, name):
    return cifar10.read(pathlib.Path(folder, name, "runs.jsonl"))


def _of_study(runs):
    """Returns the `Results` of a study by a sort key: binary inputs last."""
    found = {}
    for network, of in cifar10_table.by_network(runs).items():
        for epochs in cifar10_table.lengths(of):
            values = (
                collections.defaultdict(dict),
                collections.defaultdict(dict),
            )
            for program in cifar10_table.methods(of):
                if program not in CIFAR10:
                    continue
                label = METHODS[CIFAR10[program]].label
                chosen = cifar10_table.chosen(of, program, epochs)
                for seed, run in chosen.items():
                    values[0][label][seed] = run["test"]
                    values[1][label][seed] = run["test_loss"]
            if len(values[0][OURS]) < MIN_SEEDS:
                continue
            title = f"CIFAR-10, {cifar10_table.title(network, epochs)}"
            activation, width, kind = network
            key = activation == "binary", kind, width, epochs
            measures = TEST_ACCURACY, TEST_LOSS
            name = f"cifar10/{activation}"
            found[key] = Results(name, title, measures, values)
    return found


# The table


def table(results):
    """Returns a row for each task in Markdown.

    Args:
        results: list of `Results`.
    """
    head = ["task"]
    for name in ("accuracy", "loss"):
        head += [
            f"{name}: QP-SBGD",
            "best other binary method",
            "difference, 95 % interval",
        ]
    return tables.markdown_table(head, [_line(one) for one in results])


def _line(results):
    line = [results.title]
    for place, measure in enumerate(results.measures):
        values = results.values[place]
        line.append(tables.mean_text(values[OURS].values(), measure))
        tests = results.tests(place)
        if not tests:
            line += ["-", "-"]
            continue
        best, test = next(iter(tests.items()))
        text = tables.mean_text(values[best].values(), measure)
        line += [f"{name_of(best)}: {text}", verdict_text(test, measure)]
    return line


def verdict_text(test, measure):
    """Formats a difference from a method: `ahead, +3.2 pp (+1.2 to +5.2)`."""
    word = FROM_OUR_SIDE.get(statistics.verdict(test, measure), "not tested")
    return f"{word}, {tables.difference_text(test, measure)}"


def name_of(method):
    """Returns the name of a method in tables and in the picture."""
    return SHORT.get(method, method.removeprefix("BinaryConnect (").rstrip(")"))


def _p(p):
    text = tables.p_text(p)
    return f"p {text[0]} {text[1:]}" if text.startswith("<") else f"p = {text}"


# Verdicts in words


def verdicts(rows, task):
    """Returns a list in Markdown: where QP-SBGD is ahead and behind.

    Args:
        rows: list of `tables.Row`.
        task: a `Task`.
    """
    ours = [row for row in rows if row.method == OURS]
    others = [row for row in rows if row.method != OURS]
    if not ours or not others:
        return ""
    lines = []
    for measure in task.measures:
        words = {"worse": [], "better": [], statistics.NO_DIFFERENCE: []}
        for row in tables.compared([*ours, *others], measure, OURS)[1:]:
            test = row.comparison
            word = statistics.verdict(test, measure)
            words.get(word, []).append(f"{row.method} ({_p(test.p)})")
        parts = [
            f"{side} {', '.join(found)}"
            for side, found in (
                ("ahead of", words["worse"]),
                ("behind", words["better"]),
            )
            if found
        ]
        number = len(words[statistics.NO_DIFFERENCE])
        if number:
            rest = "the other methods" if parts else "any method"
            parts.append(f"{statistics.NO_DIFFERENCE} from {rest} ({number})")
        label = measure.label[0].upper() + measure.label[1:]
        lines.append(f"- {label}: {'; '.join(parts) or 'not compared'}.")
    return "\n".join(lines)


# The picture


def draw(results, path):
    """Draws a dot with its interval for each method and task.

    Args:
        results: list of `Results`.
        path: file to write.

    Raises:
        ImportError: Matplotlib is not installed.
    """
    from matplotlib.lines import Line2D

    figure = figures.blank(9.0, 1.4 + 0.58 * len(results))
    figure.set_facecolor("white")
    panels = figure.subplots(1, 2, sharey=True)
    for place, (panel, limits) in enumerate(zip(panels, (POINTS, PERCENT))):
        for row, one in enumerate(results):
            if row % 2:
                panel.axhspan(row - 0.5, row + 0.5, color="#f3f5f7", zorder=0)
            _draw_row(panel, row, one, place, limits)
        panel.axvline(0, color=figures.REFERENCE_COLOR, linewidth=1.6, zorder=1)
        panel.set_xlim(*limits)
        panel.set_ylim(len(results) - 0.5, -0.5)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
    titles = [textwrap.fill(one.title, TITLE_WIDTH) for one in results]
    panels[0].set_yticks(range(len(results)), titles, fontsize=9)
    panels[0].set_xlabel("percentage points of accuracy")
    panels[1].set_xlabel("percent of QP-SBGD's loss")
    for panel, name in zip(panels, ("Accuracy", "Loss")):
        panel.set_title(
            f"{name}: QP-SBGD ahead \N{RIGHTWARDS ARROW}",
            loc="left",
            fontsize=11,
        )
    drawn = {m for one in results for m in one.values[0]}
    figure.legend(
        handles=[
            Line2D(
                [], [], marker="o", ls="", color=color, label=name_of(method)
            )
            for method, color in zip(SHOWN, COLORS)
            if method in drawn
        ],
        loc="outside lower center",
        ncols=len(SHOWN),
        frameon=False,
        fontsize=8.5,
        handletextpad=0.1,
        columnspacing=1.0,
    )
    figures.save(figure, path)


def _draw_row(panel, row, results, place, limits):
    """Draws the methods of a task, side by side, with 95 % intervals."""
    measure = results.measures[place]
    values = results.values[place]
    ours = values[OURS]
    scale = 100.0 if measure.percent else 100.0 / np.mean(list(ours.values()))
    for position, method in enumerate(SHOWN):
        seeds = sorted(ours.keys() & values.get(method, {}).keys())
        if len(seeds) < 2:
            continue
        gains = [ours[seed] - values[method][seed] for seed in seeds]
        gains = measure.sign * scale * np.array(gains)
        mean, error = mean_and_error(gains)
        if not math.isfinite(mean):
            continue
        y = row + 0.7 * (position / (len(SHOWN) - 1) - 0.5)
        color = COLORS[position]
        low, high = limits
        if not low < mean < high:
            mark = ">" if mean > 0 else "<"
            x = high - 0.015 * (high - low) if mean > 0 else low
            panel.plot(x, y, mark, color=color, markersize=5)
            continue
        panel.errorbar(
            mean,
            y,
            xerr=statistics.t_quantile(len(seeds)) * error,
            fmt="o",
            color=color,
            markersize=4,
            linewidth=1.2,
        )
