"""The tables and the figure of `python -m research quantize`.

They are made from the records alone. `README.md` is written text with these
tables. All comparisons are paired by the float network: a two-sided t-test over
the seeds.
"""

import pathlib

import numpy as np

from research import pages
from research.engine import figures
from research.engine.statistics import mean_and_error
from research.engine.statistics import paired_test
from research.engine.tables import markdown_table
from research.quantization.methods import FLOAT
from research.quantization.methods import KERAS_INT4
from research.quantization.methods import METHODS
from research.quantization.methods import UNFOLDED
from research.quantization.methods import methods_of
from research.quantization.numbers import DESCENT
from research.quantization.numbers import GPTQ_SCALES
from research.quantization.numbers import QUBO
from research.quantization.numbers import WIDTHS
from research.quantization.numbers import Numbers
from research.quantization.numbers import geometric_mean
from research.quantization.numbers import ratios
from research.quantization.study import FLOAT_BITS
from research.quantization.study import open_store
from research.quantization.summary import bits_text
from research.quantization.summary import digits
from research.quantization.summary import summary
from research.quantization.summary import verdicts
from research.quantization.tasks import TASKS

TITLE = "Quantize a trained network"
FIGURE = "errors.png"
MISSING = "No complete runs yet."
# Distinguishable with any color vision (Okabe and Ito).
COLORS = {1: "#d55e00", 2: "#0072b2", 3: "#009e73", 4: "#cc79a7"}


def write(out):
    """Writes the figure and the tables of the page."""
    out = pathlib.Path(out)
    numbers = Numbers(open_store(out).records)
    if not numbers.tasks:
        raise ValueError(f"There are no records to report. Received: out={out}")
    figures.save(figure(numbers), out / FIGURE)
    return pages.write(out / pages.NAME, TITLE, blocks_of(numbers))


def blocks_of(numbers):
    """Returns all tables by name."""
    found = {"summary": summary(numbers), "networks": network_table(numbers)}
    for task in TASKS:
        found[f"{task}/results"] = (
            result_table(numbers, task) if task in numbers.tasks else MISSING
        )
    found["verdicts"] = verdict_table(numbers)
    found["widths"] = width_table(numbers)
    found["solver"] = solver_table(numbers)
    found["times"] = time_table(numbers)
    return found


# Tables


def mean_text(values, digits=2):
    """Formats a mean and its standard error."""
    values = np.array(list(values), float)
    if not values.size:
        return "-"
    mean, error = mean_and_error(values)
    text = f"{mean:.{digits}f}"
    return f"{text} +- {error:.{digits}f}" if np.isfinite(error) else text


def p_text(p):
    """Formats a p-value."""
    if np.isnan(p):
        return "not tested"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def network_table(numbers):
    """Returns the float networks and their results."""
    lines = []
    for task in numbers.tasks:
        records = numbers.select(task=task, method=FLOAT)
        values = numbers.results(task, FLOAT_BITS, FLOAT).values()
        unit = "%" if TASKS[task].higher_is_better else "bits per character"
        lines.append(
            [
                TASKS[task].title,
                f"{records[0]['weights']:,}",
                str(len(records)),
                f"{mean_text(values, digits(task))} {unit}",
            ]
        )
    return markdown_table(["task", "weights", "seeds", "float network"], lines)


def result_table(numbers, task):
    """Returns the test results, with p-values of `qubo` against a method."""
    every = numbers.bits[task]
    lines = []
    for method in (*UNFOLDED, *METHODS, KERAS_INT4):
        cells = []
        for bits in every:
            found = numbers.results(task, bits, method)
            cell = mean_text(found.values(), digits(task))
            if found and method != QUBO:
                test = paired_test(numbers.results(task, bits, QUBO), found)
                cell += f" ({p_text(test.p)})"
            cells.append(cell)
        if set(cells) != {"-"}:
            lines.append([f"`{method}`", *cells])
    return markdown_table(["method", *map(bits_text, every)], lines)


def verdict_table(numbers):
    """Returns `qubo` against each other method, over tasks and bits."""
    found = {bits: verdicts(numbers, bits) for bits in numbers.every_bits}
    lines = []
    for task in numbers.tasks:
        for bits in numbers.bits[task]:
            cells = []
            for other in METHODS[:-1]:
                verdict = found[bits].get((task, other))
                cells.append(
                    f"{verdict.word} ({verdict.text})" if verdict else "-"
                )
            lines.append([task, str(bits), *cells])
    head = ["task", "bits", *(f"`{name}`" for name in METHODS[:-1])]
    return markdown_table(head, lines)


def width_table(numbers):
    """Returns ratios of output errors by width and bits, on the same inputs."""
    lines = []
    for low, high in WIDTHS:
        for bits in numbers.every_bits:
            layers = numbers.layers_between(low, high, bits)
            if not layers:
                continue
            cells = [
                f"{geometric_mean(ratios(layers, other)):.3f}"
                for other in ("nearest", "gptq", GPTQ_SCALES, DESCENT)
            ]
            name = f"{low} to {high}" if high < 100_000 else f"{low} and more"
            lines.append([name, str(bits), str(len(layers)), *cells])
    head = ["inputs", "bits", "layers", "`qubo` / `nearest`", "/ `gptq`"]
    return markdown_table(
        [*head, f"/ `{GPTQ_SCALES}`", f"/ `{DESCENT}`"], lines
    )


def solver_table(numbers):
    """Returns what the solver changed, and the errors on held-out data."""
    lines = []
    for task in numbers.tasks:
        for bits in numbers.bits[task]:
            layers = numbers.layers(task=task, bits=bits)
            if not layers:
                continue
            improved = sum(layer["improved"] or 0 for layer in layers)
            outputs = sum(layer["outputs"] for layer in layers)
            cells = [f"{improved / outputs:.0%} of {outputs:,}"]
            for method in (GPTQ_SCALES, DESCENT, QUBO):
                found = numbers.layers(method, task=task, bits=bits)
                pairs = [
                    (x["errors"][method], x["held_out"])
                    for x in found
                    if np.isfinite(x["held_out"] or np.nan)
                ]
                if not pairs:
                    cells.append("-")
                    continue
                used, held_out = (geometric_mean(v) for v in zip(*pairs))
                cells.append(f"{used:.3g} / {held_out:.3g}")
            lines.append([task, str(bits), *cells])
    head = ["task", "bits", "outputs improved"]
    head += [f"`{name}`" for name in (GPTQ_SCALES, DESCENT, QUBO)]
    return markdown_table(head, lines)


def time_table(numbers):
    """Returns the CPU seconds of a quantization with 1 bit."""
    methods = methods_of(1)
    lines = [
        [
            TASKS[task].title,
            *(
                mean_text(numbers.results(task, 1, method, "cpu").values(), 1)
                for method in methods
            ),
        ]
        for task in numbers.tasks
    ]
    return markdown_table(["CPU seconds, 1 bit", *methods], lines)


# Figure


def figure(numbers):
    """Returns a figure of ratios of output errors against the width."""
    found = figures.blank(8.0, 3.4)
    panels = found.subplots(1, 2, sharey=True)
    for axes, other in zip(panels, (GPTQ_SCALES, DESCENT)):
        for bits, color in COLORS.items():
            layers = [
                layer
                for layer in numbers.layers(bits=bits)
                if layer["errors"][other] > 1e-12
            ]
            axes.plot(
                # Shifted, so that layers of one width do not hide each other.
                [layer["inputs"] * 1.06 ** (bits - 2.5) for layer in layers],
                ratios(layers, other),
                "o",
                color=color,
                markersize=3,
                alpha=0.6,
                label=bits_text(bits) if layers else None,
            )
        axes.axhline(1.0, color="#555555", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_ylim(0, 1.05)
        axes.set_title(f"qubo / {other}", loc="left", fontsize=10)
        axes.set_xlabel("inputs of the layer")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("output error, ratio")
    handles, labels = panels[0].get_legend_handles_labels()
    found.legend(
        handles, labels, loc="outside upper center", ncols=4, frameon=False
    )
    return found
