"""The picture and the numbers of README.md, from the stored records."""

import json
import pathlib
import statistics

import numpy as np

from research.cifar10 import records as cifar10
from research.cifar10 import table
from research.engine import figures
from research.engine.statistics import LEVEL
from research.engine.statistics import holm
from research.engine.statistics import paired_test
from research.quantization.methods import FLOAT
from research.quantization.study import open_store

PICTURE = "front.png"
# Programs of `research/cifar10`, with their labels.
TRAINED = {"averaged": "QPSBGD()", "adam": "Adam", "bop": "Bop"}
# Methods of `kq.quantize`, with their labels.
QUANTIZED = {
    "qubo": 'kq.quantize, "qubo"',
    "descent+scales": 'kq.quantize, "descent+scales"',
    "gptq+scales": 'kq.quantize, "gptq+scales"',
    "nearest+scales": "nearest levels, searched scales",
}
# Files of the same size, which the library writes. At 1 bit, the levels do not
# depend on the scale, so the method is the same.
LIKE = {"nearest+scales": "nearest"}
TASK = "cifar10"
VGG = "cifar10-vgg-relu"  # of `models`
REAL = "real weights, not tuned"
STYLES = (
    {"color": figures.REFERENCE_COLOR, "marker": "o", "linestyle": "-"},
    {"color": figures.COLORS[0], "marker": "s", "linestyle": "--"},
    {"color": figures.COLORS[1], "marker": "^", "linestyle": ":"},
    {"color": figures.COLORS[2], "marker": "D", "linestyle": "-."},
)
TITLE, TEXT = 10, 9  # font sizes


def blocks(root):
    """Returns the numbers of README.md by name, for `pages.fill`."""
    folder = pathlib.Path(root, "results")
    return {
        "front/quantize": _quantize(open_store(folder / "quantize").records),
        "front/train": " ".join(
            [
                _train(folder / "cifar10"),
                _vgg(
                    folder / "cifar10",
                    pathlib.Path(root, "models", f"{VGG}.json"),
                ),
            ]
        ),
        "front/solve": _solve(folder / "bench" / "solver.json"),
    }


def _quantize(runs):
    runs = [run for run in runs if run["task"] == TASK]
    (whole,) = _sizes(runs, FLOAT).items()
    parts = [
        f"{_text(score)} with {bits} bit{'s' * (bits > 1)} per weight "
        f"({size:,.0f} kB)"
        for bits, (size, score) in sorted(_sizes(runs, "qubo").items())
        if bits <= 2
    ]
    return (
        f"A convolutional network for CIFAR-10 with {_text(whole[1][1])} "
        f"accuracy and {whole[1][0]:,.0f} kB of weights keeps "
        f"{' and '.join(reversed(parts))}."
    )


def _train(folder):
    runs = _relu(cifar10.read(folder / "study" / "runs.jsonl"))
    epochs = table.lengths(runs)[-1]
    _, width, _ = cifar10.network(runs[0])
    scores = {
        label: {seed: run["test"] for seed, run in found.items()}
        for program, label in TRAINED.items()
        if (found := table.chosen(runs, program, epochs))
    }
    (_, ours), *others = scores.items()
    tests = holm([paired_test(ours, values) for _, values in others])
    different = [name for (name, _), t in zip(others, tests) if t.p < LEVEL]
    texts = [f"{name}: {_mean(values)}" for name, values in others]
    if different:
        texts.append(f"significant for {' and '.join(different)}")
    else:
        texts.append("no significant difference")
    low, high = sorted(
        time["ratio"]
        for name in ("study", "vgg-decay")
        for time in cifar10.read(folder / name / "times.jsonl")
        if time["program"] == "averaged"
    )
    return (
        f"On CIFAR-10, a network with {width} filters and binary weights alone "
        f"reaches {_mean(ours)} with `QPSBGD` in {epochs} epochs "
        f"({'; '.join(texts)}). A step on a GPU takes {low:.1f} to {high:.1f} "
        "times as long as with Adam."
    )


def _mean(values):
    return _text(100 * statistics.fmean(values.values()))


def _vgg(folder, path):
    model = json.loads(path.read_text())
    runs = _relu(cifar10.read(folder / "vgg-decay" / "runs.jsonl"))
    parts = []
    for program, label in (*TRAINED.items(), ("float", REAL)):
        of = [run for run in runs if run["program"] == program]
        epochs = table.lengths(of)[-1]
        found = table.chosen(of, program, epochs).values()
        score = 100 * statistics.fmean(run["test"] for run in found)
        parts.append((label, score, epochs, table.seeds_text(found)))
    (_, ours, epochs, seeds), *others = parts
    rest = "; ".join(
        f"{label}: {score:.2f} %, {'' if n == epochs else f'{n} epochs, '}{of}"
        for label, score, n, of in others
    )
    return (
        f"VGG-small (first and last layer real) reaches {ours:.2f} % in "
        f"{epochs} epochs ({seeds}; {rest}). [The file](models/README.md) "
        f"of {model['bytes'] / 1000:.0f} kB runs without TensorFlow."
    )


def _mean_curve(found):
    """Returns the mean accuracies in percent, and where they are known."""
    curves = [run["test_by_epoch"] for run in found.values()]
    mean = 100 * np.array(curves, float).mean(0)
    return mean, np.flatnonzero(np.isfinite(mean))


def _relu(runs):
    return [run for run in runs if cifar10.network(run)[0] == "relu"]


def _solve(path):
    (found,) = json.loads(path.read_text())["results"].values()
    native, annealing = (
        found["solvers"][name]["optima"] for name in ("native", "annealing-1")
    )
    ratio = statistics.median(found["times"]["annealing-1"]["cpu_ratios"])
    return (
        f"Of {found['columns']} random problems with 32 variables, the default "
        f"solver solves {native} exactly. Simulated annealing with one read "
        f"solves {annealing}, and takes {ratio:.0f} times as long."
    )


def draw(folder):
    """Draws the picture from the records in a folder. Returns its path."""
    folder = pathlib.Path(folder)
    trained = cifar10.read(folder / "cifar10" / "vgg-decay" / "runs.jsonl")
    quantized = open_store(folder / "quantize").records
    figure, (left, right) = figures.new(8.4, 3.5, 2)
    figure.suptitle("Convolutional networks on CIFAR-10", fontsize=TITLE + 1)
    _draw_training(left, _relu(trained))
    _draw_sizes(right, quantized)
    for panel in (left, right):
        panel.grid(axis="y", color="#dddddd", linewidth=0.8)
        panel.legend(frameon=False, fontsize=TEXT, loc="lower right")
    figures.save(figure, folder / PICTURE)
    return folder / PICTURE


def _draw_training(panel, runs):
    epochs = table.lengths(runs)[-1]
    for (program, label), style in zip(TRAINED.items(), STYLES):
        found = table.chosen(runs, program, epochs)
        mean, known = _mean_curve(found)
        panel.plot(
            1 + known,
            mean[known],
            label=f"{label}, {table.seeds_text(found)}",
            linewidth=2,
            **{**style, "marker": ""},
        )
    (real,) = (run for run in runs if run["program"] == "float")
    text = f"{REAL}, {real['epochs']} epochs"
    _draw_level(panel, 100 * real["test"], text)
    panel.set_ylim(82, 95)
    panel.set_xlabel("epoch")
    panel.set_title(
        "VGG-small trained with 1-bit weights: test accuracy [%]",
        fontsize=TITLE,
    )


def _draw_sizes(panel, runs):
    runs = [run for run in runs if run["task"] == TASK]
    for (method, label), style in zip(QUANTIZED.items(), STYLES):
        files = _sizes(runs, LIKE.get(method, method))
        found = _sizes(runs, method)
        points = sorted(
            (size, found.get(bits, (size, score))[1])
            for bits, (size, score) in files.items()
        )
        panel.plot(
            *zip(*points), label=label, linewidth=2, markersize=6, **style
        )
    ((kilobytes, best),) = _sizes(runs, FLOAT).values()
    _draw_level(panel, best, f"float, {kilobytes:,.0f} kB")
    panel.set_ylim(10, 99)
    panel.set_xlabel("weights in a packed file [kB], 1 to 4 bits")
    panel.set_title(
        "Quantized after training: test accuracy [%]", fontsize=TITLE
    )


def _draw_level(panel, level, text):
    """Draws a horizontal line with a text above its left end."""
    panel.axhline(level, color="#666666", linewidth=1)
    panel.annotate(
        text,
        (0, level),
        xycoords=("axes fraction", "data"),
        xytext=(4, 3),
        textcoords="offset points",
        fontsize=TEXT,
    )


def _sizes(runs, method):
    """Returns a dict that maps bits to kB of weights and mean accuracy."""
    points = {}
    for run in runs:
        if run["method"] == method:
            points.setdefault(run["bits"], []).append(run)
    weights = next(run["weights"] for run in runs if run["method"] == FLOAT)
    return {
        bits: (
            weights * 4 / 1000 / (found[0].get("compression") or 1),
            100 * np.mean([run["test"] for run in found]),
        )
        for bits, found in points.items()
    }


def _text(percent):
    return f"{percent:.1f} %"
