"""The tables of stored runs and their figure.

`python -m research pages` writes them. `runs.jsonl` has the runs. Those on the
tuning seeds chose the settings, by validation accuracy, and the others report.
There is a table for each network and number of epochs. The p-values are those
of paired t-tests against the averaged rule, over the seeds that both methods
have, corrected by Holm's method for all methods of a table. A dagger marks a
setting at an end of its grid. A line above the tables names the programs that
were exported by other code than the present one. Variants of the averaged rule
have tables of their own.

`curves.png` shows all methods. Its time axis has the times per step of
`times.jsonl`, which were measured with nothing else on the device. Programs
without a time there have no curve over time, and without the file there is only
the axis of epochs.
"""

import collections
import pathlib
import statistics

import numpy as np

from research import code_version
from research.cifar10 import records
from research.engine import figures
from research.engine.statistics import TEST_ACCURACY
from research.engine.statistics import TEST_LOSS
from research.engine.statistics import TRAIN_LOSS
from research.engine.statistics import holm
from research.engine.statistics import mean_and_error
from research.engine.statistics import paired_test
from research.engine.tables import difference_text
from research.engine.tables import markdown_table
from research.engine.tables import mean_text
from research.engine.tables import p_text

OURS = "averaged"
# Keys of the runs. Only the first two are compared.
MEASURES = {"test": TEST_ACCURACY, "test_loss": TEST_LOSS, "loss": TRAIN_LOSS}
COMPARED = ("test", "test_loss")
NAMES = {
    OURS: "`QPSBGD()`",
    "adam": "Adam",
    "sgd": "SGD with momentum",
    "signum": "Signum",
    "bop": "Bop",
    "paper": '`QPSBGD(rule="paper")`',
    "no-momentum": "no momentum",
    "one-batch": "covariance of one batch",
    "no-averages": "no averages",
    "kappa-3": "kappa 3",
    "kappa-30": "kappa 30",
    "no-couplings": "no couplings (Signum with our step size)",
    "float": "SGD with weight decay",
}
# Variants of the rule, as in `research/experiments/tasks/ablation.py`.
VARIANTS = (
    *("no-momentum", "one-batch", "no-averages", "kappa-3", "kappa-30"),
    "no-couplings",
)
TITLES = {
    "pooled": "{width} filters",
    "vgg": "VGG-small, first and last layer real",
    "vgg-binary": "VGG-small, all layers binary",
    "vgg-float": "VGG-small, real weights",
}
END = "\N{DAGGER}"
FIGURE = "curves.png"
# The accuracy axis starts below our accuracies after so many epochs, and after
# a tenth of a training. Other curves may be cut off.
SHOWN = 4
ROOM = 0.03


def draw(folder):
    """Draws the figure of the runs in a folder. Returns its path."""
    folder = pathlib.Path(folder)
    runs, times = (
        records.read(folder / name) for name in ("runs.jsonl", "times.jsonl")
    )
    figures.save(figure(of_methods(runs), times), folder / FIGURE)
    return folder / FIGURE


def of_methods(runs):
    """Returns the runs of all methods, without variants of the rule."""
    return [run for run in runs if run["program"] not in VARIANTS]


def of_variants(runs):
    """Returns the runs of variants of the rule, and those to compare with."""

    def kind(run):
        return records.training(run), run["epochs"]

    kinds = [kind(run) for run in runs if run["program"] in VARIANTS]
    return [
        run
        for run in runs
        if run["program"] in (OURS, *VARIANTS) and kind(run) in kinds
    ]


def markdown(runs):
    """Returns all tables with their titles."""
    return note(runs) + "\n\n".join(
        f"**{title(network, epochs)}**\n\n{table(found, epochs)}"
        for network, found in by_network(runs).items()
        for epochs in lengths(found)
    )


def title(network, epochs):
    """Returns the title of a network and a number of epochs."""
    activation, width, kind = network
    name = TITLES[kind].format(width=width)
    return f"{name}, {ACTIVATIONS[activation]}, {epochs} epochs"


def note(runs):
    """Returns a line that names programs older than the code, or `""`."""
    from research.cifar10 import export

    now = code_version.version(*export.CODE)
    older = {run["program"] for run in runs if run.get("code") != now}
    return code_version.note(sorted(older))


def by_network(runs):
    """Returns the runs of each network, by `records.network`."""
    found = collections.defaultdict(list)
    for run in runs:
        found[records.network(run)].append(run)
    return dict(found)


def fresh(runs):
    """Returns the runs that report."""
    return [run for run in runs if run["seed"] not in records.TUNING]


def lengths(runs):
    """Returns the numbers of epochs of runs that report."""
    return sorted({run["epochs"] for run in fresh(runs)})


def methods(runs):
    """Returns the programs of runs in the order of the tables."""
    programs = {run["program"] for run in runs}
    return sorted(programs, key=lambda name: (_place(name), name))


def _place(name):
    return list(NAMES).index(name) if name in NAMES else len(NAMES)


def tuned(runs, program, epochs):
    """Returns the tuning runs of a program, those of its chosen settings first.

    The runs that report have the best settings that were tuned before them. If
    better ones were found later, and no run reports them, they do not count.
    The list is empty if nothing was tuned.

    Args:
        runs: List of runs of a network.
        program: String.
        epochs: Integer.
    """
    found = [run for run in runs if run["program"] == program]
    reported = {
        records.configuration(run)
        for run in fresh(found)
        if run["epochs"] == epochs
    }
    tuning = [run for run in found if run["seed"] in records.TUNING]
    if not tuning:
        return []
    best = records.best(
        [run for run in tuning if records.configuration(run) in reported]
        or tuning,
        epochs,
    )
    same = [run for run in tuning if run["epochs"] == best["epochs"]]
    return sorted(same, key=lambda run: configured(run) != configured(best))


configured = records.configuration


def chosen(runs, program, epochs):
    """Returns the runs of a program with its chosen settings, by seed.

    Args:
        runs: List of runs of a network.
        program: String.
        epochs: Integer.
    """
    found = [
        run
        for run in fresh(runs)
        if (run["program"], run["epochs"]) == (program, epochs)
    ]
    best = tuned(runs, program, epochs) or found
    return {
        run["seed"]: run
        for run in found
        if configured(run) == configured(best[0])
    }


def table(runs, epochs):
    """Returns the table of a network and a number of epochs."""
    of_program = {
        program: found
        for program in methods(runs)
        if (found := chosen(runs, program, epochs))
    }
    cells = {key: _cells(of_program, key) for key in MEASURES}
    rows = []
    for program, found in of_program.items():
        tuning = tuned(runs, program, epochs)
        rows.append(
            [
                NAMES.get(program, program),
                str(len(set(map(configured, tuning)))),
                settings_text(tuning or list(found.values())),
                str(len(found)),
                *(cell for of in cells.values() for cell in of[program]),
            ]
        )
    head = ["method", "tries", "rate", "seeds"]
    for key, measure in MEASURES.items():
        head.append(measure.label)
        if key in COMPARED:
            head += ["difference, 95 % interval", "p (Holm)"]
    full = [  # without empty columns
        i for i in range(len(head)) if i < 4 or any(row[i] for row in rows)
    ]
    return markdown_table(
        [head[i] for i in full], [[row[i] for i in full] for row in rows]
    )


def tuning_table(runs):
    """Returns a table of all tuning runs.

    It has the mean accuracy on the validation images, over the tuning seeds.
    """
    found = collections.defaultdict(list)
    for run in runs:
        if run["seed"] in records.TUNING:
            network = records.network(run)
            key = network, run["epochs"], run["program"], configured(run)
            found[key].append(run["validation"])
    rows = [
        [
            title(network, epochs),
            NAMES.get(program, program),
            ", ".join([f"{rate:g}", *(f"{k} {v:g}" for k, v in settings)]),
            str(len(values)),
            f"{statistics.fmean(values):.4f}",
        ]
        for (network, epochs, program, (rate, settings)), values in sorted(
            found.items(),
            key=lambda pair: (pair[0][:2], _place(pair[0][2]), pair[0][3]),
        )
    ]
    head = ["network", "method", "rate", "seeds", "validation accuracy"]
    return markdown_table(head, rows)


def sentence(runs, recipe=""):
    """Returns sentences with the longest trainings of each network.

    Args:
        runs: List of runs.
        recipe: String (optional). Follows "Test accuracy".
    """
    texts = []
    for (activation, _, kind), found in by_network(runs).items():
        if not lengths(found):
            continue
        epochs = lengths(found)[-1]
        reported = [
            program
            for program in methods(found)
            if program in (OURS, "adam", "bop", "float")
        ]
        scores = ", ".join(
            f"{NAMES[program]} "
            + _accuracy_text(chosen(found, program, epochs).values())
            for program in reported
        )
        texts.append(
            f"{WEIGHTS[kind]} and {ACTIVATIONS[activation]}, {epochs} epochs: "
            f"{scores}"
        )
    return f"Test accuracy{recipe}. {'. '.join(texts)}."


def _accuracy_text(runs):
    if not runs:
        return "not run"
    accuracy = 100 * statistics.fmean(run["test"] for run in runs)
    return f"{accuracy:.2f} % ({seeds_text(runs)})"


def seeds_text(runs):
    """Returns the number of runs of a method, such as `3 seeds`."""
    return f"{len(runs)} seed{'s' * (len(runs) > 1)}"


WEIGHTS = {
    "vgg": "Binary weights",
    "vgg-binary": "All weights binary",
    "vgg-float": "Real weights",
}
ACTIVATIONS = {"relu": "ReLU", "binary": "binary activations"}


def _cells(of_program, key):
    """Returns the cells of a measure for each program.

    They are mean with error and, if the measure is compared, the difference and
    its p-value. They are empty for runs that do not have the measure.
    """
    measure = MEASURES[key]
    values = {
        program: {
            seed: np.nan if run[key] is None else run[key]
            for seed, run in found.items()
            if key in run
        }
        for program, found in of_program.items()
    }
    cells = {
        program: [mean_text(found.values(), measure) if found else ""]
        for program, found in values.items()
    }
    if key not in COMPARED:
        return cells
    others = [program for program in values if program != OURS]
    ours = values.get(OURS, {})
    tests = holm([paired_test(values[program], ours) for program in others])
    tests = dict(zip(others, tests))
    for program, cell in cells.items():
        test = tests.get(program)
        is_known = test is not None and test.pairs
        has_p = is_known and np.isfinite(test.p)
        cell.append(difference_text(test, measure) if is_known else "")
        cell.append(p_text(test.p) if has_p else "")
    return cells


def settings_text(tuning):
    """Returns the chosen rate and settings, with marks at the ends of grids.

    A value is at an end if no tuning run has a lower one, or none has a higher
    one, with otherwise equal settings. See `tuned`.
    """
    best = tuning[0]
    grid = [{"rate": run["rate"], **run["settings"]} for run in tuning]
    values = {"rate": best["rate"], **best["settings"]}
    texts = []
    for name, value in values.items():
        others = [
            one[name]
            for one in grid
            if all(one.get(k) == v for k, v in values.items() if k != name)
        ]
        is_end = len(grid) > 1 and value in (min(others), max(others))
        mark = END if is_end else ""
        label = "" if name == "rate" else f"{name} "
        texts.append(f"{label}{value:g}{mark}")
    return ", ".join(texts)


def figure(runs, times):
    """Returns the figure: accuracy against epochs and against time.

    Args:
        runs: List of runs.
        times: List of times per step.
    """
    trainings = [
        (network, found, epochs)
        for network, found in by_network(runs).items()
        for epochs in lengths(found)
        if chosen(found, OURS, epochs)
    ]
    programs = [{"method": name} for name in methods(fresh(runs))]
    styles = figures.styles_of(programs, OURS)
    drawn = figures.blank(8.5, 0.5 + 2.9 * len(trainings))
    size = len(trainings), 2 if times else 1
    panels = drawn.subplots(*size, squeeze=False, sharey="row")
    for row, training in zip(panels, trainings):
        _draw(row, *training, times, styles)
    handles = {}
    for panel in panels[:, 0]:
        for handle, label in zip(*panel.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    drawn.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=len(handles),
        frameon=False,
        fontsize=9,
    )
    return drawn


def _draw(row, network, runs, epochs, times, styles):
    """Draws the trainings of one length in a row of two panels."""
    from matplotlib.ticker import MaxNLocator

    for program in methods(fresh(runs)):
        found = list(chosen(runs, program, epochs).values())
        if not found:
            continue
        accuracies = np.array([run["test_by_epoch"] for run in found], float)
        # Long trainings do not measure it after every epoch.
        known = np.flatnonzero(np.isfinite(accuracies).all(0))
        mean, error = map(np.asarray, mean_and_error(accuracies[:, known]))
        shown = min(max(SHOWN, epochs // 10), epochs) - 1
        rest = slice(int(np.searchsorted(known, shown)), None)
        low, high = mean - np.nan_to_num(error), mean + np.nan_to_num(error)
        if program == OURS:
            bottom = low[rest].min() - ROOM
        steps = found[0]["images"]["train"] // found[0]["batch"]
        counts = 1 + known
        axes = [counts]
        if (step := milliseconds(found, times)) is not None:
            axes.append(counts * steps * step / 1000)
        style = {**styles[program], "marker": None}
        for panel, x in zip(row, axes):
            label = NAMES.get(program, program).replace("`", "")
            panel.plot(x, mean, label=label, **style)
            if len(found) > 1:
                panel.fill_between(
                    x[rest],
                    low[rest],
                    high[rest],
                    color=style["color"],
                    alpha=0.15,
                    lw=0,
                )
    row[0].set_title(title(network, epochs), loc="left", fontsize=10)
    row[0].set_ylabel("test accuracy")
    row[0].set_ylim(bottom=bottom)
    row[0].xaxis.set_major_locator(
        MaxNLocator(integer=True, steps=[1, 2, 5, 10])
    )
    for panel, label in zip(row, ("epochs", "seconds of training steps")):
        panel.set_xlabel(label)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_visible(bool(panel.get_lines()))


def milliseconds(runs, times):
    """Returns the time per step of runs of one program, or `None`.

    Only networks with ReLU were timed. Those with binary activations have the
    times of the same network with ReLU.
    """
    _, *network = records.network(runs[0])
    for row in times:
        if row["program"] == runs[0]["program"] and (
            list(records.network(row)[1:]) == network
        ):
            return row["ms_per_step"]
    return None
