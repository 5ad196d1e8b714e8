"""The tables and figures of `python -m research few-solves`.

They are made from the records alone. `RESULTS.md` is written text with these
tables.
"""

import pathlib

import numpy as np

from keras_qpsbgd.comparison import figures
from keras_qpsbgd.comparison.statistics import mean_and_error
from keras_qpsbgd.comparison.statistics import paired_test
from keras_qpsbgd.comparison.tables import markdown_table
from research import pages
from research.few_solves import annealer
from research.few_solves import study
from research.few_solves.study import FIRST_TUNING_SEED
from research.few_solves.tasks import TASKS

# Training losses this close to the best one count as equal.
TOLERANCE = 1e-5
TITLE = "Few solver calls"
END = "\N{DAGGER}"
COLORS = (
    "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
    "#000000", "#999999", "#7a5230",
)  # fmt: skip
# The number of updates of the detailed tables of solvers.
DETAILED = {"logistic": 3, "layer-16": 3, "pairs": 20}


class Numbers:
    """The results of one task.

    For every number of updates, the configuration with the lowest mean
    validation loss of the tuning seeds is chosen. The other seeds are reported.

    Args:
        out: Folder of the study.
        task: A `Task`.
    """

    def __init__(self, out, task):
        self.task = task
        found = study.read(out, task.name)
        tuned = study.read(out, task.tuned_on) if task.tuned_on else found
        self._runs, self._tuned = {}, {}
        for method, settings in task.methods.items():
            keys = [study.key(method, c) for c in settings.grid]
            # A method counts only if all of its runs exist.
            if all(key in tuned for key in keys):
                runs = [found.get(key, []) for key in keys]
                self._tuned[method] = [tuned[key] for key in keys]
                if self._is_complete(runs, self._tuned[method]):
                    self._runs[method] = runs
        self._optimum = None
        if study.OPTIMUM in found:
            losses = found[study.OPTIMUM]
            self._optimum = {one["seed"]: one["loss"] for one in losses}

    @property
    def methods(self):
        """The names of all methods that were run."""
        return list(self._runs)

    def has(self, method, updates):
        """Returns whether a method was evaluated after so many updates."""
        if method not in self._runs:
            return False
        count = str(self._decisive(method, updates))
        tuned = self._tuned[method]
        if any(count not in run["results"] for part in tuned for run in part):
            return False
        runs = self._runs[method][self._chosen(method, updates)]
        return all(str(updates) in run["results"] for run in runs)

    def is_at_end(self, method, updates):
        """Returns whether the chosen configuration is the first or last one."""
        last = len(self._runs[method]) - 1
        return self._chosen(method, updates) in (0, last)

    def _chosen(self, method, updates):
        return study.best_position(
            self._tuned[method], self._decisive(method, updates)
        )

    def _decisive(self, method, updates):
        """Returns the number of updates after which a choice is made."""
        # Quick runs are shorter.
        has_run = self._tuned[method][0][0]["results"]
        chosen_at = self.task.chosen_at
        return chosen_at if str(chosen_at) in has_run else updates

    def values(self, method, updates, measure):
        """Returns the values of the fresh seeds, by seed."""
        runs = self._runs[method][self._chosen(method, updates)]
        return {
            run["seed"]: run["results"][str(updates)][measure]
            for run in runs
            if run["seed"] < FIRST_TUNING_SEED
        }

    def mean(self, method, updates, measure):
        """Returns the mean and its standard error."""
        return mean_and_error(
            list(self.values(method, updates, measure).values())
        )

    def test(self, method, rival, updates, measure):
        """Returns the `PairedTest` of two methods."""
        return paired_test(
            self.values(method, updates, measure),
            self.values(rival, updates, measure),
        )

    def optimum(self):
        """Returns the mean of the smallest losses of all layers, or `None`."""
        if self._optimum is None:
            return None
        fresh = [v for s, v in self._optimum.items() if s < FIRST_TUNING_SEED]
        return float(np.mean(fresh))

    def share_of_optima(self, method, updates):
        """Returns how often a method reaches the best weights."""
        losses = self.values(method, updates, "train_loss")
        reached = [
            loss <= self._optimum[seed] + TOLERANCE
            for seed, loss in losses.items()
        ]
        return float(np.mean(reached))

    def _is_complete(self, runs, tuned):
        """Returns whether all chosen configurations have fresh seeds."""
        return all(
            any(run["seed"] < FIRST_TUNING_SEED for run in runs[position])
            for position in study.best_positions(tuned, self.task.chosen_at)
        )


def write(out):
    """Writes RESULTS.md and the figures, and returns the path of the page."""
    out = pathlib.Path(out)
    blocks = {}
    for task in TASKS.values():
        numbers = Numbers(out, task)
        if numbers.methods and _counts(numbers):
            figures.save(_figure(numbers), out / f"{task.name}.png")
            blocks |= _blocks(numbers)
    blocks |= _annealer_blocks(out)
    return pages.write(out / "RESULTS.md", TITLE, blocks)


def _blocks(numbers):
    """Returns the tables of one task by name."""
    task = numbers.task
    shown = f"{{:.{task.accuracy_digits}f}}"
    found = {
        "train_loss": _table(numbers, "train_loss", "{:.4f}", 1.0),
        "test_accuracy": _table(numbers, "test_accuracy", shown, 100.0),
    }
    if numbers.optimum() is not None:
        found["optima"] = _optima(numbers)
    if numbers.has(task.reference, task.tested):
        found["tests"] = _tests(numbers)
    return {f"{task.name}/{name}": text for name, text in found.items()}


def _table(numbers, measure, shown, factor):
    """Returns a table with a row for each method."""
    counts = _counts(numbers)
    rows = []
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
    return markdown_table(["", *map(str, counts), "SE"], rows)


def _counts(numbers):
    """Returns the numbers of updates that at least one method has."""
    return [
        count
        for count in numbers.task.counts
        if any(numbers.has(method, count) for method in numbers.methods)
    ]


def _optima(numbers):
    counts = _counts(numbers)
    rows = []
    for method in numbers.methods:
        shares = [
            f"{numbers.share_of_optima(method, count):.0%}"
            if numbers.has(method, count)
            else "-"
            for count in counts
        ]
        rows.append([numbers.task.methods[method].title, *shares])
    return markdown_table(["", *map(str, counts)], rows)


def _tests(numbers):
    """Returns a table of the reference minus the other methods."""
    task = numbers.task
    reference, updates = task.reference, task.tested
    rows = []
    for method in numbers.methods:
        if method == reference or not numbers.has(method, updates):
            continue
        loss = numbers.test(reference, method, updates, "train_loss")
        accuracy = numbers.test(reference, method, updates, "test_accuracy")
        rows.append(
            [
                task.methods[method].title,
                *_test_cells(loss, accuracy, task.accuracy_digits),
            ]
        )
    title = task.methods[reference].title
    head = [f"{title}, minus", "training loss", "p"]
    return markdown_table([*head, "test accuracy, points", "p"], rows)


def _test_cells(loss, accuracy, digits=1):
    return [
        f"{loss.difference:+.4f}",
        _p(loss.p),
        f"{100 * accuracy.difference:+.{digits}f}",
        _p(accuracy.p),
    ]


def _p(value):
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"


# Gurobi and the mock QPU


def _annealer_blocks(out):
    """Returns the tables of the solvers by name."""
    found = study.read(out, annealer.NAME)
    blocks = {}
    for name in annealer.SEEDS:
        runs = {
            variant: found[annealer.key(name, variant)]
            for variant in annealer.VARIANTS
            if annealer.key(name, variant) in found
        }
        if not runs:
            continue
        counts = [
            count
            for count in annealer.UPDATES
            if all(
                str(count) in one["results"]
                for results in runs.values()
                for one in results
            )
        ]
        detailed = min(DETAILED[name], counts[-1])
        optima = study.read(out, name).get(study.OPTIMUM)
        start = f"annealer/{name}"
        blocks[f"{start}/train_loss"] = _by_count(runs, counts, _mean_loss)
        if optima is not None:
            best = {one["seed"]: one["loss"] for one in optima}
            blocks[f"{start}/optima"] = _by_count(
                runs, counts, lambda *given, best=best: _share(*given, best)
            )
        blocks[f"{start}/details"] = _details(runs, detailed)
        blocks[f"{start}/tests"] = _solver_tests(runs, detailed)
    return blocks


def _by_count(runs, counts, cell):
    """Returns a table with a row for each variant."""
    rows = [
        [_title(variant), *(cell(results, count) for count in counts)]
        for variant, results in runs.items()
    ]
    return markdown_table(["", *map(str, counts)], rows)


def _title(variant):
    return annealer.VARIANTS[variant].title


def _mean_loss(results, count):
    return f"{np.mean(_values(results, count, 'train_loss')):.4f}"


def _share(results, count, best):
    losses = _by_seed(results, count, "train_loss")
    reached = [loss <= best[seed] + TOLERANCE for seed, loss in losses.items()]
    return f"{np.mean(reached):.0%}"


def _details(runs, count):
    rows = []
    for variant, results in runs.items():
        loss, error = mean_and_error(_values(results, count, "train_loss"))
        cells = [_title(variant), f"{loss:.4f} +- {error:.4f}"]
        accuracy, error = mean_and_error(
            _values(results, count, "test_accuracy")
        )
        cells.append(f"{100 * accuracy:.1f} +- {100 * error:.1f}")
        calls = np.mean(_values(results, count, "calls"))
        seconds = np.mean(_values(results, count, "qpu_seconds"))
        cells += [f"{calls:.0f}", f"{seconds:.2f}"] if calls else ["-", "-"]
        rows.append(cells)
    head = ["", "loss", "test accuracy, %", "calls", "QPU s"]
    return markdown_table(head, rows)


def _solver_tests(runs, count):
    """Returns a table of the variants minus the same rule with `native`."""
    rows = []
    for variant, results in runs.items():
        reference = annealer.VARIANTS[variant].reference
        if reference not in runs:
            continue
        tests = (
            paired_test(
                _by_seed(results, count, measure),
                _by_seed(runs[reference], count, measure),
            )
            for measure in ("train_loss", "test_accuracy")
        )
        rows.append([_title(variant), *_test_cells(*tests)])
    head = ["minus `native`", "training loss", "p", "test accuracy, points"]
    return markdown_table([*head, "p"], rows)


def _by_seed(results, count, measure):
    return {one["seed"]: one["results"][str(count)][measure] for one in results}


def _values(results, count, measure):
    return list(_by_seed(results, count, measure).values())


# The figure


def _figure(numbers):
    task = numbers.task
    figure = figures.blank(8.5, 3.6)
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
