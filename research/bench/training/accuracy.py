"""Test accuracy over training time.

Compares QP-SBGD, with each preset of the native backend and with `ridge`, to
BinaryConnect (Adam with straight-through gradients) on the same layers: the
64-64-10 network of the demo on scikit-learn's digits (20 epochs), and
784-256-10 on MNIST (3 epochs, but 1 epoch for `accurate`, which is slow). All
layers are followed by batch normalization. The learning rates decay to zero
(cosine).

Time is the wall time of `model.fit`. The clock stops during the evaluation on
the test images, which takes place after every epoch (ten times per epoch on
MNIST). Compilation, which all seeds share, is not included. The learning rates
were tuned on validation images, see `recipes`. Nothing is tuned on the test
images.

Because the learning rates decay, only the end of a curve shows the best
accuracy for its duration. At earlier times, a shorter training run would reach
a higher accuracy.

`--only` accepts `digits`, `mnist` and names of methods.
"""

import dataclasses
import math
import time

import numpy as np
from tensorflow import keras

from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.compare.report import canvas
from keras_qpsbgd.compare.report.statistics import mean_and_error
from research.bench.training import recipes

HELP = "test accuracy over training time (20 minutes)"
THREADS = (2,)

SEEDS = 3
# Accuracies are compared after these multiples of the training time of Adam.
MULTIPLES = (1, 2, 4)


@dataclasses.dataclass(frozen=True)
class Course:
    """A recipe and the length of its training.

    Attributes:
        recipe: A `Recipe`.
        epochs: Number of epochs.
        slow_epochs: Number of epochs for `accurate`.
        evaluations: Number of evaluations per epoch.
        level: Accuracy for which the time to reach it is compared.
        quick_rows: Number of training rows with `--quick`.
    """

    recipe: recipes.Recipe
    epochs: int
    slow_epochs: int
    evaluations: int
    level: float
    quick_rows: int


COURSES = {
    "digits": Course(recipes.DIGITS, 20, 20, 1, 0.90, 1_047),
    "mnist": Course(recipes.MNIST, 3, 1, 10, 0.95, 6_400),
}


class Clock(keras.callbacks.Callback):
    """Measures the training time, without the time of evaluations.

    Args:
        every: Number of steps between evaluations.
        evaluate: Function that returns the accuracy.
    """

    def __init__(self, every, evaluate):
        super().__init__()
        self.curve = []
        self._every = every
        self._evaluate = evaluate
        self._steps = 0
        self._seconds = 0.0

    def on_train_begin(self, logs=None):
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self._steps += 1
        if self._steps % self._every == 0:
            self._seconds += time.perf_counter() - self._start
            self.curve.append((self._seconds, self._evaluate()))
            self._start = time.perf_counter()


def names():
    """Returns the names that `--only` accepts."""
    return [*COURSES, *recipes.METHODS]


def measure(options):
    """Runs the training described in the module docstring."""
    result = {}
    for name in options.wanted(COURSES):
        course = COURSES[name]
        data = course.recipe.load(options.data_dir)
        if options.quick:
            data = data.first(course.quick_rows)
        methods = options.wanted(recipes.METHODS)
        result[name] = {
            "level": course.level,
            "methods": {
                method: _train(name, course, method, data, options)
                for method in methods
            },
        }
    return result


def _train(name, course, method, data, options):
    epochs = course.slow_epochs if method == "accurate" else course.epochs
    seeds = options.seeds or SEEDS
    if options.quick:
        epochs = math.ceil(epochs / 10)
        seeds = options.seeds or 1
    show_status(f"{name}, {method}: compiling")
    training = recipes.Training(
        course.recipe, method, data, epochs, range(seeds)
    )
    curves = []
    for seed in range(seeds):
        show_status(f"{name}, {method}, {epochs} epochs, seed {seed}")
        clock = Clock(
            max(training.steps // course.evaluations, 1),
            lambda: training.accuracy(data.test),
        )
        training.fit(seed, [clock])
        curves.append(clock.curve)
    return {"epochs": epochs, "curves": curves}


# The report


def accuracy_at(curve, seconds):
    """Returns the latest accuracy after `seconds`, or NaN if there is none."""
    reached = [value for when, value in curve if when <= seconds]
    return reached[-1] if reached else math.nan


def time_to(curve, level):
    """Returns the time when an accuracy is first reached, or NaN if never."""
    return next((when for when, value in curve if value >= level), math.nan)


def _mean(values):
    """Returns the mean, which is NaN if one of the values is NaN."""
    return float(np.mean(list(values)))


def table(results):
    """Returns the accuracies and times as text."""
    blocks = []
    for threads, result in results.items():
        for name, course in result.items():
            blocks.append(_table_of_course(name, course, threads))
    return "\n\n".join(blocks)


def _table_of_course(name, course, threads):
    methods = course["methods"]
    curves = {method: runs["curves"] for method, runs in methods.items()}
    seeds = len(next(iter(curves.values())))
    whole = level_of_adam = math.nan
    if recipes.ADAM in curves:
        whole = _mean(curve[-1][0] for curve in curves[recipes.ADAM])
        level_of_adam = _mean(
            time_to(curve, course["level"]) for curve in curves[recipes.ADAM]
        )
    level = f"{100 * course['level']:.0f} %"
    lines = [
        f"{name}, {threads} threads, {seeds} seed{'s' * (seeds > 1)}: test "
        "accuracy in percent, training time in seconds",
        f"{'':<10}{'':>7}{'s per':>8}{'final':>14}"
        f"{'after 1, 2, 4 x Adam':>23}{f'to {level}':>9}{'':>9}",
        f"{'method':<10}{'epochs':>7}{'epoch':>8}{'accuracy':>14}"
        + "".join(
            f"{_seconds(count * whole):>{width}}"
            for count, width in zip(MULTIPLES, (9, 7, 7))
        )
        + f"{'s':>9}{'/ Adam':>9}",
    ]
    lines.append("-" * len(lines[-1]))
    for method, runs in methods.items():
        mean, error = mean_and_error(
            [100 * curve[-1][1] for curve in runs["curves"]]
        )
        cell = f"{mean:.2f}"
        if error == error:
            cell += f" +- {error:.2f}"
        seconds = _mean(curve[-1][0] for curve in runs["curves"])
        line = (
            f"{method:<10}{runs['epochs']:>7}"
            f"{seconds / runs['epochs']:>8.2f}{cell:>14}"
        )
        for count, width in zip(MULTIPLES, (9, 7, 7)):
            value = _mean(
                accuracy_at(curve, count * whole) for curve in runs["curves"]
            )
            line += f"{_number(100 * value, 1):>{width}}"
        reached = _mean(
            time_to(curve, course["level"]) for curve in runs["curves"]
        )
        line += f"{_number(reached, 2):>9}"
        line += f"{_number(reached / level_of_adam, 1):>9}"
        lines.append(line)
    return "\n".join(lines)


def _seconds(value):
    digits = 1 if value < 99.95 else 0
    return "-" if math.isnan(value) else f"{value:.{digits}f} s"


def _number(value, digits):
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def verdicts(results):
    """Returns no verdicts, because this suite has no targets."""
    del results
    return []


# Distinguishable with any color vision (Okabe and Ito).
COLORS = ("#56b4e9", "#0072b2", "#009e73", "#e69f00", "#d55e00", "#cc79a7")


def draw(results, path):
    """Draws mean accuracy over time, with bands from worst to best seed."""
    result = next(iter(results.values()))
    figure = canvas.figure(5.2 * len(result), 4.0)
    panels = figure.subplots(1, len(result), squeeze=False).ravel()
    for panel, (name, course) in zip(panels, result.items()):
        lowest = 1.0
        for index, (method, runs) in enumerate(course["methods"].items()):
            # All seeds are evaluated after the same steps.
            times, values = np.moveaxis(np.array(runs["curves"]), 2, 0)
            color = COLORS[index % len(COLORS)]
            panel.plot(
                times.mean(axis=0),
                100 * values.mean(axis=0),
                color=color,
                linestyle="--" if method == recipes.ADAM else "-",
                marker="o",
                markersize=3,
                label=method,
            )
            panel.fill_between(
                times.mean(axis=0),
                100 * values.min(axis=0),
                100 * values.max(axis=0),
                color=color,
                alpha=0.2,
                lw=0,
            )
            lowest = min(lowest, values[:, len(values[0]) // 4].min())
        panel.axhline(
            100 * course["level"], color="#999999", lw=0.8, linestyle=":"
        )
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set_ylim(max(0.0, 100 * lowest - 3), 100)
        panel.set_title(name, fontsize=11)
        panel.set_xlabel("training time [s]")
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("test accuracy [%]")
    panels[0].legend(loc="lower right", frameon=False)
    canvas.save(figure, path)
