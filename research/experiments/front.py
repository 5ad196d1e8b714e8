"""The picture of README.md: training with 1-bit weights, and quantization."""

import pathlib

import numpy as np

from research.cifar10 import records as cifar10
from research.engine import figures
from research.engine.statistics import mean_and_error
from research.quantization.methods import FLOAT
from research.quantization.study import open_store

PICTURE = "front.png"
EPOCHS = 60
# Programs of `research/cifar10`, with their labels.
TRAINED = {"averaged": "QPSBGD()", "adam": "Adam"}
# Methods of `kq.quantize`, with their labels.
QUANTIZED = {
    "qubo": 'kq.quantize, "qubo"',
    "gptq+scales": 'kq.quantize, "gptq+scales"',
    "nearest": "nearest levels",
}
TASK = "cifar10"
STYLES = (
    {"color": figures.REFERENCE_COLOR, "marker": "o", "linestyle": "-"},
    {"color": figures.COLORS[0], "marker": "s", "linestyle": "--"},
    {"color": figures.COLORS[1], "marker": "^", "linestyle": ":"},
)
TITLE, TEXT = 10, 9  # font sizes


def draw(folder):
    """Draws the picture from the records in a folder. Returns its path."""
    folder = pathlib.Path(folder)
    trained = cifar10.read(folder / "cifar10" / "step-size" / "runs.jsonl")
    quantized = open_store(folder / "quantize").records
    figure, (left, right) = figures.new(8.4, 3.5, 2)
    figure.suptitle("Convolutional networks on CIFAR-10", fontsize=TITLE + 1)
    _draw_training(left, trained)
    _draw_sizes(right, quantized)
    for panel in (left, right):
        panel.grid(axis="y", color="#dddddd", linewidth=0.8)
        panel.legend(frameon=False, fontsize=TEXT, loc="lower right")
    figures.save(figure, folder / PICTURE)
    return folder / PICTURE


def _draw_training(panel, runs):
    for (program, label), style in zip(TRAINED.items(), STYLES):
        curves = [
            run["validation_by_epoch"]
            for run in runs
            if run["program"] == program
            and run["epochs"] == EPOCHS
            and run["activation"] == "relu"
            and run["seed"] not in cifar10.TUNING
        ]
        mean, error = mean_and_error(100 * np.array(curves))
        epochs = 1 + np.arange(len(mean))
        style = {**style, "marker": ""}
        panel.plot(epochs, mean, label=label, linewidth=2, **style)
        panel.fill_between(
            epochs, mean - error, mean + error, color=style["color"], alpha=0.15
        )
    panel.set_ylim(70, 90)
    panel.set_xlabel("epoch")
    panel.set_title(
        "Trained with 1-bit weights: validation accuracy [%]", fontsize=TITLE
    )


def _draw_sizes(panel, runs):
    runs = [run for run in runs if run["task"] == TASK]
    whole = [run for run in runs if run["method"] == FLOAT]
    kilobytes = whole[0]["weights"] * 4 / 1000
    for (method, label), style in zip(QUANTIZED.items(), STYLES):
        points = {}
        for run in runs:
            if run["method"] == method:
                points.setdefault(run["bits"], []).append(run)
        sizes = [kilobytes / each[0]["compression"] for each in points.values()]
        means = [_mean(found) for found in points.values()]
        panel.plot(
            sizes, means, label=label, linewidth=2, markersize=6, **style
        )
    best = _mean(whole)
    panel.axhline(best, color="#666666", linewidth=1)
    panel.annotate(
        f"float, {kilobytes:,.0f} kB",
        (1, best),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        fontsize=TEXT,
    )
    panel.set_ylim(10, 99)
    panel.set_xlabel("weights in a packed file [kB], 1 to 4 bits")
    panel.set_title(
        "Quantized after training: test accuracy [%]", fontsize=TITLE
    )


def _mean(runs):
    return 100 * np.mean([run["test"] for run in runs])
