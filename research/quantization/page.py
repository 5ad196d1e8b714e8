"""The page of `python -m research quantize`, made from its records alone."""

import json
import pathlib

import numpy as np

from keras_qpsbgd import disk
from keras_qpsbgd.compare.records import read_json
from keras_qpsbgd.compare.report.statistics import mean_and_error
from research.experiments.pages.markdown import item
from research.experiments.pages.markdown import joined
from research.experiments.pages.markdown import paragraph
from research.quantization import figures
from research.quantization import keras_own
from research.quantization import records
from research.quantization import tables
from research.quantization.numbers import Numbers
from research.quantization.numbers import geometric_mean
from research.quantization.quantizing import PROOF_COLUMNS
from research.quantization.quantizing import SCALES_ONLY
from research.quantization.study import SETTINGS
from research.quantization.targets import targets
from research.quantization.tasks import TASKS
from research.quantization.worker import TUNING_SEED

BENCH = "bench-quantize.json"
NOTE = "note.txt"
TITLE = "# Quantize a trained network"
QUESTION = (
    "Float networks are trained, then every layer is quantized to 1, 2, 3 or 4 "
    "bits per weight with `kq.quantize`. What does the QUBO add to the simpler "
    "methods, in the output error of the layers and in the test accuracy? And "
    "is a quantized network a good start for training?"
)
DATA = (
    "CIFAR-10 is read from `cifar10.npz` in the data folder, with the arrays "
    "`x_train`, `y_train`, `x_test` and `y_test` of "
    "`keras.datasets.cifar10.load_data()`. The other data are downloaded."
)
METHODS = (
    "**nearest**: each weight is rounded to the nearest level.",
    "**gptq**: weights are rounded one after the other, with error feedback.",
    "**descent**: gptq, then coordinate descent on the levels and scales.",
    f"**{SCALES_ONLY}**: gptq with a line search of the scales, then "
    "coordinate descent. This is `qubo` without the QUBO.",
    "**qubo**: the same line search, then a QUBO per column, solved by "
    "`native` with the preset `once`.",
)
PROTOCOL = (
    "All methods use the same calibration data, grid, damping, scale per "
    "output, and correction of the bias. Output errors are compared on the "
    "same inputs, those of the network that `qubo` quantizes. Accuracies are "
    "those of networks that one method quantized from the first layer to the "
    "last. Values are means +- standard errors over {seeds} float networks."
)
TRAINING = (
    "Each learning rate is the best of five, chosen by validation accuracy on "
    f"a network that is not reported (seed {TUNING_SEED}). The network that is "
    'trained from scratch has the layers of the quantized one. "end" marks '
    "the smallest or largest rate that was tried: a rate beyond it may be "
    "better."
)
PROOFS = (
    "Gurobi solves the first QUBO that `qubo` poses for a column to proven "
    f"optimality, for up to {PROOF_COLUMNS} columns of every layer with 17 to "
    "64 inputs, if one unit of work is enough. (`native` enumerates smaller "
    "problems.) With several bits, the QUBO has two levels per weight. The "
    "error of `native` is compared with that optimum."
)
KERAS = (
    '`model.quantize("int4")` of Keras 3 rounds the weights of `Dense`, '
    "`EinsumDense` and embeddings to the nearest of 16 levels, with a scale "
    "and a zero point for each 128 weights. It has no other number of bits "
    "below 8, needs no data, changes the given model, and leaves `Conv2D` and "
    "the layers of Spektral as they are.",
    '`model.quantize("gptq")` has 2, 3, 4 or 8 bits, not 1, and a zero point '
    "that `kq.quantize` does not have. It is made for language models: its "
    "calibration data are integer tokens, it requires a tokenizer, and the "
    "user lists the blocks of the model. It quantizes `Dense` and "
    "`EinsumDense` only. Here an embedding turns tokens into images, which "
    "makes it run on the network without batch normalization, with "
    f"{keras_own.SAMPLES:,} of the calibration images and a scale for each 128 "
    "weights. It takes minutes, so it was run on one float network. With a "
    "scale per output (`group_size=-1`), Keras 3.15.1 raises a `ValueError` "
    "for layers with more than 128 inputs.",
    "Both keep activations as floats by default, as `kq.quantize` does, and "
    "both store packed integers. Their layers cannot be trained further.",
)


def write(out):
    """Writes the figures and the page from the records in a folder."""
    out = pathlib.Path(out)
    numbers = load(out)
    if not numbers.tasks:
        raise ValueError(f"There are no records to report. Received: out={out}")
    figures.draw(numbers, out)
    text = page(numbers, is_quick(out), note(out))
    disk.write(out / "RESULTS.md", text)
    return out / "RESULTS.md"


def load(out):
    """Returns the `Numbers` of a folder."""
    path = pathlib.Path(out, BENCH)
    bench = None
    if path.exists():
        results = json.loads(path.read_text())["results"]
        bench = next(iter(results.values()))
    return Numbers(records.read(out), bench)


def is_quick(out):
    path = pathlib.Path(out, SETTINGS)
    return path.exists() and bool(read_json(path).get("quick"))


def note(out):
    """Returns how the records differ from the present code, or `""`."""
    path = pathlib.Path(out, NOTE)
    return path.read_text().strip() if path.exists() else ""


def page(numbers, quick=False, text=""):
    """The page as Markdown. `text` is the note on the records."""
    seeds = len({r["seed"] for r in numbers.select(kind="quantize")})
    goals = targets(numbers)
    parts = [TITLE]
    if quick:
        parts.append("**Short runs (`--quick`) that only show that it works.**")
    parts += [
        paragraph(QUESTION),
        "```sh\npython -m research quantize\n"
        "python -m research bench quantize --output results/quantize\n"
        "python -m research quantize --page\n```",
        paragraph(DATA),
        *([paragraph(text)] if text else []),
        "## Summary",
        "\n".join(map(item, summary(numbers, goals))),
        tables.target_table(goals),
        "## Methods",
        "\n".join(map(item, METHODS)),
        paragraph(PROTOCOL.format(seeds=seeds)),
        "## Output error of the layers",
        paragraph(
            "Geometric mean over the layers of all tasks, and in brackets the "
            "share of layers in which `qubo` has the lower error:"
        ),
        tables.ratio_table(numbers),
        f"![Ratio of output errors in every layer]({figures.ERRORS})",
        "## Test accuracy",
        f"![Test accuracy against bits]({figures.ACCURACY})",
        "## What is not better",
        "\n".join(map(item, not_better(numbers))),
    ]
    for task in numbers.tasks:
        parts += _task(numbers, task)
    parts += [
        "## CPU time",
        tables.time_table(numbers),
        "## Proven optima",
        paragraph(PROOFS),
        tables.proof_table(numbers),
        "## Quantization in Keras",
        "\n".join(map(item, KERAS)),
        *_keras(numbers),
    ]
    return "\n\n".join(parts) + "\n"


def summary(numbers, goals):
    """Sentences on the most important numbers."""
    met = sum(goal.met is True for goal in goals)
    measured = sum(goal.met is not None for goal in goals)
    ratio = geometric_mean(numbers.ratios("qubo", "descent", bits=1))
    scales = geometric_mean(numbers.ratios(SCALES_ONLY, "descent", bits=1))
    rest = geometric_mean(numbers.ratios("qubo", SCALES_ONLY, bits=1))
    said = [
        f"{met} of {measured} measured targets are met.",
        f"At 1 bit, the output error of `qubo` is {ratio:.3f} times that of "
        f"`descent` (geometric mean over the layers). The line search of the "
        f"scales alone gives {scales:.3f}. The QUBO multiplies that by "
        f"{rest:.3f}.",
    ]
    for task in numbers.tasks:
        plain = _accuracy(numbers, task, None, "float")
        ours = _accuracy(numbers, task, 1, "qubo")
        others = ", ".join(
            f"{method} {_accuracy(numbers, task, 1, method)}"
            for method in (SCALES_ONLY, "descent", "gptq", "nearest")
        )
        said.append(
            f"{TASKS[task].title}, 1 bit without training: {ours} ({others}; "
            f"float {plain})."
        )
    return said


def not_better(numbers):
    """Sentences on the cases in which `qubo` gains nothing."""
    said = []
    for other in ("descent", SCALES_ONLY):
        better, worse, ties = [], [], []
        for task in numbers.tasks:
            for bits in numbers.bits_of(task, "quantize"):
                found = numbers.difference(task, bits, "qubo", other)
                name = f"{task} ({bits})"
                (
                    ties
                    if not _is_clear(found)
                    else better
                    if found.mean() > 0
                    else worse
                ).append(name)
        said.append(
            f"Test accuracy of `qubo` and `{other}`, by task and bits: higher "
            f"in {_names(better)}, lower in {_names(worse)}, and a difference "
            f"of at most two standard errors in {_names(ties)}."
        )
    layers = numbers.layers()
    worse = [
        layer
        for layer in layers
        if layer["errors"]["qubo"] > layer["errors"]["descent"] * (1 + 1e-9)
    ]
    equal = sum(
        abs(layer["errors"]["qubo"] - layer["errors"]["descent"])
        <= 1e-9 * layer["errors"]["descent"]
        for layer in layers
    )
    said.append(
        f"Of {len(layers):,} layers, `qubo` has a larger output error than "
        f"`descent` in {len(worse)}, and the same in {equal}."
    )
    return said


def _is_clear(differences):
    if len(differences) < 2:
        return False
    mean, error = mean_and_error(differences)
    return bool(abs(mean) > max(2 * error, 1e-9))


def _names(names):
    return joined(names) if names else "none"


def _accuracy(numbers, task, bits, method):
    values = numbers.accuracy(task, bits, method).values()
    return f"{tables.mean_text(values, 100, 1)} %" if values else "-"


def _task(numbers, task):
    settings = TASKS[task]
    plain = numbers.accuracy(task, None, "float").values()
    compression = joined(
        [
            f"{np.mean([*_compression(numbers, task, bits)]):.1f}"
            for bits in numbers.bits_of(task, "quantize")
        ]
    )
    parts = [
        f"## {settings.title}",
        paragraph(settings.setting),
        paragraph(
            f"Test accuracy in percent. The float networks reach "
            f"{tables.mean_text(plain, 100)} %. Their weights are "
            f"{compression} times as large."
        ),
        tables.accuracy_table(numbers, task),
        paragraph(
            "Output error, geometric mean over the layers and share of layers "
            "with a lower error:"
        ),
        tables.ratio_table(numbers, task),
    ]
    if numbers.bits_of(task, "train"):
        parts += [
            paragraph(f"Training. {TRAINING}"),
            tables.training_table(numbers, task),
        ]
    return [
        *parts,
        "<details>\n<summary>Output error of every layer, means over the "
        f"seeds</summary>\n\n{tables.layer_table(numbers, task)}\n\n</details>",
    ]


def _compression(numbers, task, bits):
    found = numbers.select(task=task, bits=bits, method="qubo")
    return [record["compression"] for record in found]


def _keras(numbers):
    """Measured differences to the methods of Keras."""
    said = []
    for task in numbers.tasks:
        for method in (keras_own.INT4, keras_own.GPTQ):
            for bits in numbers.bits_of(task, "keras"):
                found = numbers.difference(task, bits, "qubo", method)
                if found.size:
                    text = tables.mean_text(found, 100)
                    said.append(
                        f"{TASKS[task].title}, {bits} bits: test accuracy of "
                        f"`qubo` minus that of {method}: {text} pp."
                    )
    return ["\n".join(map(item, said))] if said else []
