"""Test accuracy over the time of training: what a second of it is worth.

QP-SBGD with each preset of the native backend and with `ridge`, against
BinaryConnect (Adam with straight-through gradients) on the same layers: the
64-64-10 network of the demo on scikit-learn's digits (20 epochs), and
784-256-10 on MNIST (3 epochs; `accurate` 1, since it takes so long). Batch
normalisation behind all layers, learning rates that decay to zero (cosine).

Time is wall-clock time of `model.fit`. The clock stands still while the test
images are looked at, which happens after every epoch (ten times an epoch on
MNIST), and compilation, which seeds share, is not in it. Learning rates were
chosen on validation images before, see `recipes`; nothing is chosen on the test
images.

Since the learning rates decay, a curve shows its best at its end only: before,
a shorter training would reach more.

`--only` takes `digits`, `mnist` and names of methods.
"""

import dataclasses
import math
import time

import numpy as np
from tensorflow import keras

from keras_qpsbgd.cli import show_status
from keras_qpsbgd.compare.report import canvas
from keras_qpsbgd.compare.report.statistics import mean_and_error
from research.bench.training import recipes

HELP = "test accuracy over time of training (20 minutes)"
THREADS = (2,)

SEEDS = 3
# Accuracies are compared after so many times the whole training with Adam.
MULTIPLES = (1, 2, 4)


@dataclasses.dataclass(frozen=True)
class Course:
    """A recipe and how long it is trained.

    Attributes:
        recipe: a `Recipe`.
        epochs: passes over the training rows.
        slow_epochs: those of `accurate`.
        looks: how often an epoch the accuracy is looked at.
        level: the accuracy of which the time is compared.
        quick_rows: rows to train on, for a first look.
    """

    recipe: recipes.Recipe
    epochs: int
    slow_epochs: int
    looks: int
    level: float
    quick_rows: int


COURSES = {
    "digits": Course(recipes.DIGITS, 20, 20, 1, 0.90, 1_047),
    "mnist": Course(recipes.MNIST, 3, 1, 10, 0.95, 6_400),
}


class Clock(keras.callbacks.Callback):
    """Takes the time of training and looks at the test rows, off the clock.

    Args:
        every: looks after so many steps.
        look: function that returns the accuracy.
    """

    def __init__(self, every, look):
        super().__init__()
        self.curve = []
        self._every = every
        self._look = look
        self._steps = 0
        self._seconds = 0.0

    def on_train_begin(self, logs=None):
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self._steps += 1
        if self._steps % self._every == 0:
            self._seconds += time.perf_counter() - self._start
            self.curve.append((self._seconds, self._look()))
            self._start = time.perf_counter()


def names():
    """What `--only` takes."""
    return [*COURSES, *recipes.METHODS]


def measure(options):
    """Trains; see the module."""
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
            max(training.steps // course.looks, 1),
            lambda: training.accuracy(data.test),
        )
        training.fit(seed, [clock])
        curves.append(clock.curve)
    return {"epochs": epochs, "curves": curves}


# The report


def accuracy_at(curve, seconds):
    """What a training had reached after so many seconds; NaN: nothing yet."""
    reached = [value for when, value in curve if when <= seconds]
    return reached[-1] if reached else math.nan


def time_to(curve, level):
    """When it had reached an accuracy for the first time; NaN: never."""
    return next((when for when, value in curve if value >= level), math.nan)


def _mean(values):
    """Their mean, NaN if one of them is missing."""
    return float(np.mean(list(values)))


def table(results):
    """Accuracies and times as text."""
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
        "accuracy in percent, seconds of training",
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
    """None: there is no target for it."""
    del results
    return []


# Tell apart with any kind of colour vision (Okabe and Ito).
COLORS = ("#56b4e9", "#0072b2", "#009e73", "#e69f00", "#d55e00", "#cc79a7")


def draw(results, path):
    """Draws accuracy over time: means, and bands from worst to best seed."""
    result = next(iter(results.values()))
    figure = canvas.figure(5.2 * len(result), 4.0)
    panels = figure.subplots(1, len(result), squeeze=False).ravel()
    for panel, (name, course) in zip(panels, result.items()):
        lowest = 1.0
        for index, (method, runs) in enumerate(course["methods"].items()):
            # Seeds look after the same steps, so points are averaged.
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
        panel.set_xlabel("seconds of training")
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("test accuracy [%]")
    panels[0].legend(loc="lower right", frameon=False)
    canvas.save(figure, path)
