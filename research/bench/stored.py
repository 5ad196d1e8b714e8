"""Stored results of the suites, and their tables on the pages.

`python -m research bench SUITE --output results/bench` stores the record of a
suite. It has a hash of the code that was measured. `python -m research
pages` writes the tables of the records into the blocks `<!-- results:bench-NAME
-->` of the pages, and says which records are older than the code.
"""

import json
import pathlib

from research import code_version
from research.bench import annealer
from research.bench import export
from research.bench import inference
from research.bench import quantize
from research.bench import sizes
from research.bench import solver
from research.bench import step
from research.bench import timing
from research.bench.gpu import tables as gpu
from research.engine import figures

SUITES = {
    "step": step,
    "solver": solver,
    "quantize": quantize,
    "export": export,
    "sizes": sizes,
    "inference": inference,
    "annealer": annealer,
}
BLOCKS = {name: (name,) for name in SUITES} | {
    "step": ("step", "recording"),
    "quantize": ("quantize", "quantize-wide"),
}
# What is measured.
CODE = {
    "step": code_version.TRAINING,
    "solver": ("keras_qpsbgd/backends", "keras_qpsbgd/qubo"),
    "quantize": ("keras_qpsbgd/backends", "keras_qpsbgd/quantization"),
    "export": (
        *("keras_qpsbgd/export", "keras_qpsbgd/inference"),
        "keras_qpsbgd/grids.py",
    ),
    "sizes": ("keras_qpsbgd/export", "keras_qpsbgd/grids.py"),
    "inference": ("keras_qpsbgd/inference",),
    "annealer": ("keras_qpsbgd/backends", "keras_qpsbgd/backends/dwave"),
    "gpu": code_version.TRAINING,
}
FOLDER = pathlib.Path("results", "bench")
PICTURE = pathlib.Path("docs", "images", "bench-ratios.png")


def code(name):
    """Returns the `code_version` of a suite, or of `"gpu"`."""
    own = f"research/bench/{name}" + ".py" * (name in SUITES)
    return code_version.version(own, *CODE[name])


def read(root, name):
    """Returns the stored record of a suite, or `None`."""
    path = pathlib.Path(root, FOLDER, f"{name}.json")
    return json.loads(path.read_text()) if path.exists() else None


def blocks(root):
    """Returns the blocks of all records by name."""
    found = {}
    for name, suite in SUITES.items():
        record = read(root, name)
        if record is None:
            text = f"Not measured yet (`python -m research bench {name}`)."
            found |= {f"bench-{block}": text for block in BLOCKS[name]}
            continue
        for block, text in suite.blocks(_result(record)).items():
            parts = [text, _source(name, record)]
            found[f"bench-{block}"] = _joined(name, [record], parts)
    networks = gpu.read(pathlib.Path(root, FOLDER))
    text = gpu.markdown(networks)
    found["bench-gpu"] = _joined("gpu", networks, [text])
    studies = pathlib.Path(root, "results", "cifar10")
    found["bench-gpu-cifar10"] = gpu.cifar10(
        [studies / name / "times.jsonl" for name in ("study", "vgg-decay")]
    )
    return found


def _result(record):
    """Returns the result with the first number of threads."""
    return next(iter(record["results"].values()))


def _joined(name, records, parts):
    if any(record.get("code") != code(name) for record in records):
        parts[0] = code_version.note(["this table"]) + parts[0]
    return "\n\n".join(parts)


def _source(name, record):
    """Returns where the figures come from."""
    busy = record.get("other_work")
    return (
        f"`python -m research bench {name}`, {FOLDER.as_posix()}/{name}.json, "
        f"{record['machine']}."
        + " Other work was running on the machine."
        * bool(busy)
    )


# The picture


def draw(root):
    """Draws the ratios of training steps and of predictions as dots.

    Returns:
        The path of the picture.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    titles = {
        "step": "Time of a training step / Adam",
        "inference": "Prediction / ONNX Runtime",
    }
    records = {name: read(root, name) for name in titles}
    records = {name: each for name, each in records.items() if each}
    figure = figures.blank(9.0, 4.2)
    figure.set_facecolor("white")
    panels = figure.subplots(1, len(records), squeeze=False)[0]
    for panel, (name, record) in zip(panels, records.items()):
        _draw_rows(panel, SUITES[name].rows(_result(record)), titles[name])
    path = pathlib.Path(root, PICTURE)
    figures.save(figure, path)
    return path


def _draw_rows(panel, rows, title):
    """Draws medians and ranges, one row for each network.

    Args:
        panel: Axes.
        rows: Dictionary from the names of rows to dictionaries from the names
            of sides to lists of ratios.
        title: String.
    """
    sides = list(dict.fromkeys(side for row in rows.values() for side in row))
    colors = dict(zip(sides, (figures.REFERENCE_COLOR, *figures.COLORS)))
    markers = dict(zip(sides, figures.MARKERS))
    for place, row in enumerate(rows.values()):
        if place % 2:
            panel.axhspan(place - 0.5, place + 0.5, color="#f3f5f7", zorder=0)
        for index, (side, ratios) in enumerate(row.items()):
            low, middle, high = timing.spread(ratios)
            panel.errorbar(
                middle,
                place + 0.6 * ((index + 0.5) / len(row) - 0.5),
                xerr=[[middle - low], [high - middle]],
                fmt=markers[side],
                color=colors[side],
                markersize=4.5,
                linewidth=1.2,
                label=side if place == 0 else None,
            )
    panel.axvline(1, color="#5f6b76", linewidth=1.2, zorder=1)
    panel.set_xscale("log")
    _label_ratios(panel)
    panel.set_yticks(range(len(rows)), list(rows), fontsize=9)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0)
    panel.set_title(title, loc="left", fontsize=11)
    panel.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.12),
        ncols=len(sides),
        frameon=False,
        fontsize=8.5,
        handletextpad=0.1,
        columnspacing=1.0,
    )


def _label_ratios(panel):
    """Labels a logarithmic axis with plain numbers."""
    low, high = panel.get_xlim()
    ticks = [k * 10**e for e in (-1, 0, 1, 2) for k in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
