"""The tables and the page of `python -m research quantize`.

They are made from the records alone. `RESULTS.md` is written text with these
tables.
"""

import json
import pathlib
import textwrap

import numpy as np

from keras_qpsbgd.comparison import figures
from keras_qpsbgd.comparison.statistics import mean_and_error
from keras_qpsbgd.comparison.tables import markdown_table
from research import pages
from research.quantization import quantizing
from research.quantization.numbers import Numbers
from research.quantization.numbers import geometric_mean
from research.quantization.numbers import targets
from research.quantization.quantizing import METHODS
from research.quantization.quantizing import SCALES_ONLY
from research.quantization.study import open_store
from research.quantization.tasks import ADAM
from research.quantization.tasks import EPOCHS
from research.quantization.tasks import QPSBGD
from research.quantization.tasks import QUANTIZED
from research.quantization.tasks import TASKS
from research.quantization.tasks import is_end_of_grid

BENCH = "bench-quantize.json"
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
TITLE = "Quantize a trained network"
RIVALS = (SCALES_ONLY, "descent", "gptq", "nearest")


def write(out):
    """Writes the figures and the tables of the page."""
    out = pathlib.Path(out)
    numbers = load(out)
    if not numbers.tasks:
        raise ValueError(f"There are no records to report. Received: out={out}")
    draw(numbers, out)
    return pages.write(out / "RESULTS.md", TITLE, blocks_of(numbers))


def load(out):
    """Returns the `Numbers` of a folder."""
    path = pathlib.Path(out, BENCH)
    bench = None
    if path.exists():
        results = json.loads(path.read_text())["results"]
        bench = next(iter(results.values()))
    return Numbers(open_store(out).records, bench)


def blocks_of(numbers):
    """Returns all tables by name."""
    found = {
        "targets": markdown_table(
            ["target", "goal", "reached", "met"], targets(numbers)
        ),
        "errors": ratio_table(numbers),
    }
    for task in numbers.tasks:
        found[f"{task}/accuracy"] = accuracy_table(numbers, task)
        found[f"{task}/errors"] = ratio_table(numbers, task)
        if numbers.bits_of(task, "train"):
            found[f"{task}/training"] = training_table(numbers, task)
        found[f"{task}/layers"] = layer_table(numbers, task)
    found["times"] = time_table(numbers)
    found["proofs"] = proof_table(numbers)
    return found


# Tables


def mean_text(values, factor=1.0, digits=2):
    """Formats a mean and its standard error."""
    values = factor * np.array(list(values), float)
    if not values.size:
        return "-"
    mean, error = mean_and_error(values)
    text = f"{mean:.{digits}f}"
    return f"{text} +- {error:.{digits}f}" if np.isfinite(error) else text


def accuracy_table(numbers, task):
    """Returns test accuracies in percent by method and bits."""
    bits = numbers.bits_of(task, "quantize")
    methods = (*METHODS, quantizing.KERAS_INT4, quantizing.KERAS_GPTQ)
    lines = []
    for method in methods:
        cells = [
            mean_text(numbers.accuracy(task, count, method).values(), 100)
            for count in bits
        ]
        if set(cells) != {"-"}:
            lines.append([method, *cells])
    return markdown_table(["method", *map(_bits, bits)], lines)


def ratio_table(numbers, task=None):
    """Returns the ratios of output errors, `qubo` to each other method."""
    every = sorted({layer["bits"] for layer in numbers.layers(task)})
    lines = []
    for other in RIVALS:
        cells = []
        for bits in every:
            ratios = numbers.ratios("qubo", other, task, bits)
            lower = (ratios < 1).mean() if ratios.size else np.nan
            cells.append(f"{geometric_mean(ratios):.3f} ({lower:.0%})")
        lines.append([f"qubo / {other}", *cells])
    return markdown_table(["output error", *map(_bits, every)], lines)


def layer_table(numbers, task):
    """Returns the output errors of every layer, means over the seeds."""
    groups = {}
    for layer in numbers.layers(task):
        groups.setdefault((layer["bits"], layer["name"]), []).append(layer)
    lines = []
    for (bits, name), group in groups.items():
        size = f"{group[0]['inputs']} x {group[0]['outputs']}"
        errors = [
            f"{np.mean([layer['errors'][method] for layer in group]):.3g}"
            for method in METHODS
        ]
        lines.append([str(bits), name, size, *errors])
    return markdown_table(["bits", "layer", "size", *METHODS], lines)


def time_table(numbers):
    """Returns the CPU seconds of a quantization with 1 bit."""
    lines = []
    for task in numbers.tasks:
        cells = [
            mean_text(
                numbers.by_seed(
                    "cpu", kind="quantize", task=task, bits=1, method=method
                ).values()
            )
            for method in METHODS
        ]
        lines.append([TASKS[task].title, *cells])
    return markdown_table(["CPU seconds, 1 bit", *METHODS], lines)


def training_table(numbers, task):
    """Returns test accuracies of trained networks in percent."""
    lines = []
    for bits in numbers.bits_of(task, "train"):
        plain = numbers.accuracy(task, bits, "qubo").values()
        lines.append([str(bits), "quantized", "-", "0", "-", _percent(plain)])
        for start in TASKS[task].starts:
            for optimizer in (QPSBGD, ADAM):
                for epochs in EPOCHS[start]:
                    rate, found = numbers.trained(
                        task, bits, start, optimizer, epochs
                    )
                    lines.append(
                        [
                            str(bits),
                            start if start == QUANTIZED else "from scratch",
                            optimizer,
                            str(epochs),
                            _rate(task, start, optimizer, rate),
                            _percent(found.values()),
                        ]
                    )
    head = ["bits", "start", "optimizer", "epochs", "rate", "test accuracy, %"]
    return markdown_table(head, lines)


def _rate(task, start, optimizer, rate):
    if rate is None:
        return "-"
    mark = " (end)" if is_end_of_grid(task, start, optimizer, rate) else ""
    return f"{rate:g}{mark}"


def proof_table(numbers):
    """Returns the columns with a proven optimum, by task and bits."""
    groups = {}
    for layer in numbers.layers():
        if "proof" in layer:
            groups.setdefault((layer["task"], layer["bits"]), []).append(
                layer["proof"]
            )
    # Older records also have the preset `accurate`, which was removed.
    presets = sorted({p for ps in groups.values() for p in ps[0]["excess"]})
    lines = []
    for (task, bits), proofs in groups.items():
        columns = sum(proof["columns"] for proof in proofs)
        proven = sum(proof["proven"] for proof in proofs)
        cells = []
        for preset in presets:
            excess = np.concatenate([p["excess"][preset] for p in proofs])
            if excess.size:
                cells += [f"{(excess <= 0.005).mean():.1%}"]
                cells += [f"{100 * excess.max():.2f} %"]
            else:
                cells += ["-", "-"]
        lines.append(
            [TASKS[task].title, str(bits), str(columns), str(proven), *cells]
        )
    head = ["task", "bits", "columns", "proven"]
    for preset in presets:
        head += [f"`{preset}` within 0.5 %", f"`{preset}` worst"]
    return markdown_table(head, lines)


def _percent(values):
    return mean_text(values, 100)


def _bits(count):
    return "1 bit" if count == 1 else f"{count} bits"


# Figures


def draw(numbers, folder):
    """Draws both figures.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    figures.save(errors_figure(numbers), folder / ERRORS)
    figures.save(accuracy_figure(numbers), folder / ACCURACY)


def errors_figure(numbers):
    """Returns a figure of the ratios of output errors in every layer."""
    names = numbers.tasks
    counts = [_num_layers(numbers, name) for name in names]
    figure = figures.blank(2.5 + 0.32 * sum(counts), 3.8)
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


def accuracy_figure(numbers):
    """Returns a figure of the test accuracy against the bits."""
    names = numbers.tasks
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure = figures.blank(3.0 * columns, 2.6 * rows + 0.5)
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
