"""The figures of the page."""

import textwrap

import numpy as np

from keras_qpsbgd.comparison import canvas
from keras_qpsbgd.comparison.statistics import mean_and_error
from research.quantization.quantizing import METHODS
from research.quantization.quantizing import SCALES_ONLY
from research.quantization.tasks import TASKS

ERRORS = "errors.png"
ACCURACY = "accuracy.png"
# Distinguishable with any color vision (Okabe and Ito).
COLORS = {
    "nearest": "#999999",
    "gptq": "#e69f00",
    "descent": "#56b4e9",
    SCALES_ONLY: "#009e73",
    "qubo": "#d55e00",
}
MARKERS = {1: "o", 2: "s", 3: "^", 4: "D"}
BIT_COLORS = {1: "#d55e00", 2: "#0072b2", 3: "#009e73", 4: "#cc79a7"}


def draw(numbers, folder):
    """Draws both figures.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    canvas.save(errors(numbers), folder / ERRORS)
    canvas.save(accuracy(numbers), folder / ACCURACY)


def errors(numbers):
    """Returns a figure of the ratios of output errors in every layer."""
    names = numbers.tasks
    counts = [_num_layers(numbers, name) for name in names]
    figure = canvas.figure(2.5 + 0.32 * sum(counts), 3.8)
    panels = figure.subplots(
        1, len(names), sharey=True, squeeze=False, width_ratios=counts
    )[0]
    for axes, task in zip(panels, names):
        layers = numbers.layers(task)
        order = list(dict.fromkeys(layer["name"] for layer in layers))
        for bits in sorted({layer["bits"] for layer in layers}):
            shift = 0.18 * (bits - 2.5)
            for place, name in enumerate(order):
                ratios = [
                    layer["errors"]["qubo"] / layer["errors"]["descent"]
                    for layer in layers
                    if (layer["bits"], layer["name"]) == (bits, name)
                    and layer["errors"]["descent"] > 0
                ]
                axes.plot(
                    np.full(len(ratios), place + shift),
                    ratios,
                    MARKERS[bits],
                    color=BIT_COLORS[bits],
                    markersize=3,
                    alpha=0.7,
                    label=_bits(bits) if place == 0 else None,
                )
        axes.axhline(1.0, color="#555555", linewidth=0.8)
        axes.set_xticks(range(len(order)), range(1, len(order) + 1))
        axes.set_xlim(-0.6, len(order) - 0.4)
        axes.set_title(task, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("output error, qubo / descent")
    panels[0].set_ylim(bottom=0)
    figure.supxlabel("layer", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=4, frameon=False
    )
    return figure


def accuracy(numbers):
    """Returns a figure of the test accuracy against the bits."""
    names = numbers.tasks
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure = canvas.figure(3.0 * columns, 2.6 * rows + 0.5)
    panels = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for axes, task in zip(panels, names):
        bits = numbers.bits_of(task, "quantize")
        lowest = 100.0
        for place, method in enumerate(METHODS):
            pairs = [
                mean_and_error(
                    100
                    * np.array([*numbers.accuracy(task, b, method).values()])
                )
                for b in bits
            ]
            means = [mean for mean, _ in pairs]
            if method != "nearest":
                lowest = min(lowest, *means)
            axes.errorbar(
                np.array(bits) + 0.04 * (place - 2),
                means,
                [0 if np.isnan(error) else error for _, error in pairs],
                color=COLORS[method],
                marker="o",
                markersize=3,
                linewidth=1.2,
                label=method,
            )
        exact = 100 * np.mean([*numbers.accuracy(task, None, "float").values()])
        axes.axhline(exact, color="black", linewidth=0.8, linestyle=":")
        margin = 0.06 * (exact - lowest) + 0.2
        # Rounding to the nearest level may be far below the others.
        axes.set_ylim(lowest - margin, exact + margin)
        axes.set_xticks(bits)
        axes.set_title(
            textwrap.fill(TASKS[task].title, 36), loc="left", fontsize=8
        )
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[len(names) :]:
        axes.remove()
    figure.supylabel("test accuracy, % (dotted: float)", fontsize=9)
    figure.supxlabel("bits per weight", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=5, frameon=False
    )
    return figure


def _num_layers(numbers, task):
    return len({layer["name"] for layer in numbers.layers(task)})


def _bits(count):
    return "1 bit" if count == 1 else f"{count} bits"
