"""RESULTS.md: all experiments that have records, and their figures.

Everything on the page is computed from the records; nothing is typed by hand.
"""

import math
import os
import pathlib

from keras_qpsbgd import disk
from keras_qpsbgd.compare import records
from keras_qpsbgd.compare.methods import HOST
from keras_qpsbgd.compare.methods import METHODS
from keras_qpsbgd.compare.report import figures
from keras_qpsbgd.compare.report import protocol
from keras_qpsbgd.compare.report import statistics
from keras_qpsbgd.compare.report import tables
from keras_qpsbgd.compare.report.statistics import mean_and_error
from research.experiments import stored
from research.experiments.pages import pooled
from research.experiments.pages import sentences
from research.experiments.pages.grids_table import ends_sentence
from research.experiments.pages.grids_table import grids_table
from research.experiments.pages.markdown import item
from research.experiments.pages.markdown import paragraph

QPU = "dwave"  # as a backend a real chip, as a method a mock
ON_HOST = [METHODS[key].label for key in HOST]
TITLE = "# Results of the paper's experiments"
HOW_TO_READ = (
    "**Values** are the mean +- standard error over *fresh seeds*. "
    "Configurations (mostly learning rates) were chosen on validation data "
    "with other seeds, the *tuning seeds*; no fresh seed was used for tuning. "
    "Each method has its own grid, and all methods that are tuned on a task "
    "have the same number of configurations.",
    "**Comparisons**: for a given seed, all methods start from the same "
    "weights and see the same batches. Each method is compared with "
    "{reference} by a two-sided paired t-test over the seeds that both have. "
    "The *difference* is the method minus {reference}, in percentage points "
    "(pp) for percentages. The *verdict* says whether the method is better or "
    "worse than {reference}. *Tie* means p >= {level}: these seeds show no "
    "difference, which does not prove that there is none. Where a method has "
    "fewer seeds, look at the difference, not at the means.",
    "**Many tests**: p-values are not corrected for the number of tests. With "
    "this many methods, take {strict} <= p < {level} as weak evidence.",
    "**Paper**: a value of the paper agrees with ours if it is within two "
    "standard errors of it.",
    '**Methods**: "BinaryConnect (X)" is the optimizer X on the '
    "straight-through gradient. `ridge` solves the QUBO without the binary "
    "constraint and rounds; {without} leaves out its couplings. Latent weights "
    "are clipped only where the text says so.",
)
NOT_THE_PAPER = (
    "Unless the command has `--paper`, the runs differ from the paper in three "
    "points, because the networks learn little without them. Binary layers "
    "divide their outputs by the square root of the number of inputs. QP-SBGD "
    'has the averaged rule, not `rule="paper"`. Learning rates decay along a '
    "cosine, except on Cora and PubMed. The first and the last point apply to "
    "all methods. `kappa` and `momentum` are the package's defaults and were "
    "not tuned here. They come from earlier runs, some of them on the same "
    "data sets, so QP-SBGD had more tuning than its grid shows."
)
NOT_THE_PAPER_OLD = (
    "Unless the command has `--paper`, the runs differ from the paper in three "
    "points, because the networks learn little without them. Binary layers "
    "divide their outputs by the square root of the number of inputs. QP-SBGD "
    'scales its gradients (`gradient_scale="max"`). Learning rates decay along '
    "a cosine, except on Cora and PubMed. The first and the last point apply "
    "to all methods. The strength of the gradient scale, kappa = 4, is the "
    "package's default and was not tuned here. It comes from earlier runs, "
    "some of them on the same data sets, so QP-SBGD had more tuning than its "
    "grid shows."
)
ROSENBROCK = (
    "The Rosenbrock function: the paper mentions these runs without any "
    "settings."
)
MOCKED_QPU = (
    "Runs on a real QPU: the `dwave` backend was run on a mock QPU only, which "
    "samples classically. Its times and errors are not those of a chip."
)
NO_QPU = "Runs on a real QPU: none of these records comes from one."


def write(output, reports, path=None):
    """Writes the page and its figures.

    Args:
        output: folder with a folder of records per experiment.
        reports: sequence of `ExperimentReport`, in the order of the page;
            those without records are left out.
        path: file to write; `None` is RESULTS.md in `output`.

    Returns:
        Path of the page.

    Raises:
        ImportError: matplotlib or scipy is not installed.
    """
    output = pathlib.Path(output)
    path = pathlib.Path(path or output / "RESULTS.md")
    found = [(report, records.read(output / report.name)) for report in reports]
    found = [(report, runs) for report, runs in found if runs]
    old = [r for r, _ in found if stored.is_old(output / r.name)]
    parts = [
        TITLE,
        _stored_note(output, old),
        _summary(found),
        "## How to read this page",
        _how_to_read(found, old),
        "## Differences from the paper",
        paragraph(NOT_THE_PAPER_OLD if old else NOT_THE_PAPER),
    ]
    for report, runs in found:
        parts += _section(report, runs, output / report.name, path)
    parts += ["## Not reproduced", *_not_reproduced(found)]
    disk.write(path, "\n\n".join(part for part in parts if part) + "\n")
    return path


def _stored_note(output, old):
    """Returns the line about records of version 0.1, if there are any."""
    if not old:
        return ""
    folder = output / old[0].name
    paper = records.read_json(folder / "settings.json")["paper"]
    return paragraph(stored.note(paper))


def _how_to_read(found, old=()):
    names = dict.fromkeys(report.reference_method for report, _ in found)
    values = {
        "reference": " or ".join(names) or "the reference",
        "level": statistics.LEVEL,
        "strict": statistics.STRICT_LEVEL,
        "without": "`sign`" if old else "Signum",
    }
    return "\n".join(item(text.format(**values)) for text in HOW_TO_READ)


# The summary


def _summary(found):
    """A line per task: ours, the best other binary method, the verdicts."""
    head = [
        "task",
        "measure",
        "QP-SBGD",
        "best other binary method",
        "QP-SBGD ahead / tie / behind",
        "paper",
        "QP-SBGD and the paper",
    ]
    lines = []
    for report, runs in found:
        for task in report.tasks:
            rows = _rows(report, task, runs)
            if len(rows) > 1:
                lines.append(_summary_line(report, task, rows))
    return tables.markdown_table(head, lines)


def _rows(report, task, runs):
    if task.kind == "cells":
        return []
    return tables.rows_of(runs, task, report.reference_method)


def _summary_line(report, task, rows):
    measure = task.measures[0]
    reference = report.reference_method
    ours = [row for row in rows if row.method == reference]
    others = binary_methods(rows, reference)
    counts = [
        sum(row.verdict == word for row in others)
        for word in ("worse", "tie", "better")
    ]
    best = best_other(rows, reference, measure)
    paper = task.paper.get(reference)
    word = sentences.agreement(ours[0], paper, measure) if ours else None
    return [
        f"[{task.title}](#{_anchor(report.title)})",
        measure.label,
        tables.row_text(ours[0], measure) if ours else "not run",
        f"{best.method}: {tables.row_text(best, measure)}" if best else "-",
        " / ".join(map(str, counts)),
        tables.paper_text(paper, measure),
        word or "-",
    ]


def _anchor(title):
    """The anchor that GitHub gives to a heading."""
    kept = (c for c in title.lower() if c.isalnum() or c in " -_")
    return "".join(kept).replace(" ", "-")


def binary_methods(rows, reference):
    """All rows except those of the reference and of real weights."""
    return [
        row
        for row in rows
        if row.method not in (reference, protocol.REAL_WEIGHTS)
    ]


def best_other(rows, reference, measure):
    """The best of the other binary methods; `None` if there is none.

    Left out are methods with fewer seeds than the reference, whose means are
    not comparable, and the reference with a solver on the host.
    """
    seeds = max(
        (len(r.values[measure.key]) for r in rows if r.method == reference),
        default=0,
    )
    means = [
        (
            measure.sign
            * mean_and_error(list(row.values[measure.key].values()))[0],
            row,
        )
        for row in binary_methods(rows, reference)
        if len(row.values[measure.key]) >= seeds and row.method not in ON_HOST
    ]
    means = [(mean, row) for mean, row in means if not math.isnan(mean)]
    return max(means, key=lambda pair: pair[0])[1] if means else None


# A section


def _section(report, runs, folder, path):
    meta = records.read_meta(folder)
    times = records.read_times(folder)
    parts = [f"## {report.title}", paragraph(report.setting)]
    if report.backend is not None:
        parts.append(
            f"The QUBOs of {report.reference_method} were solved by "
            f"`{report.backend}`."
        )
    if "command" in meta:
        parts.append(f"```bash\n{meta['command']}\n```")
    parts.append(paragraph(_when(meta, times)))
    parts += map(paragraph, meta.get("notes", []))
    for task in report.tasks:
        of_task = tables.select(runs, task=task.name)
        fresh = tables.select(of_task, stage="fresh")
        if not fresh:
            parts.append(f"{task.title}: not run.")
            continue
        figure = folder / f"{task.name}.png"
        figures.draw(runs, task, report.reference_method, figure)
        if len(report.tasks) > 1:
            parts.append(f"### {task.title}")
        lines = [
            *sentences.sentences(report, task, of_task),
            ends_sentence(of_task, task, report.reference_method),
        ]
        parts += [
            tables.markdown(of_task, task, report.reference_method),
            "\n".join(map(item, filter(None, lines))),
            _not_run(task, fresh),
            _image(task.title, figure, path),
        ]
    if isinstance(report, pooled.PooledReport):
        parts += _pooled(report, runs)
    for name, caption in report.pictures:
        picture = folder / name
        if picture.is_file():
            parts += [paragraph(caption), _image(caption, picture, path)]
    if report.open_choices:
        parts.append("What the paper leaves open, and our choices:")
        parts.append("\n".join(map(item, report.open_choices)))
    parts += _details(report, runs, times, meta)
    return parts


def _pooled(report, runs):
    """All tasks compared at once, a table for each measure."""
    names = [task.name for task in report.tasks]
    first, *_ = measures = report.tasks[0].measures
    if not pooled.compare(runs, names, first, report.reference_method):
        return []
    parts = [
        f"### Pooled over {report.pooled}",
        paragraph(pooled.EXPLANATION),
    ]
    for measure in measures:
        rows = pooled.compare(runs, names, measure, report.reference_method)
        parts += [
            pooled.table(rows, report, measure),
            paragraph(
                sentences.verdicts_sentence(
                    rows, report.reference_method, measure
                )
            ),
        ]
    return parts


def _not_run(task, fresh):
    made = tables.methods_of(fresh, "")
    missing = [method for method in task.methods if method not in made]
    return paragraph(f"Not run: {', '.join(missing)}.") if missing else ""


def _image(text, figure, page):
    link = pathlib.Path(os.path.relpath(figure, page.parent)).as_posix()
    return f"![{text}]({link})"


def _when(meta, times):
    if "date" not in meta:
        return ""
    *days, last = meta["date"].splitlines()
    text = f"Run on {', '.join(days)} and {last}" if days else f"Run on {last}"
    # CPU time, since a resumed command does not know its wall time.
    if times:
        text += f". The runs took {_minutes(times)} minutes of CPU time"
    on_host = [time for time in times if time["method"] in ON_HOST]
    if on_host:
        text += f", {_minutes(on_host)} of them for solvers on the host"
    return text + "."


def _minutes(times):
    minutes = math.fsum(sorted(time["seconds"] for time in times)) / 60
    return f"{minutes:.2g}" if minutes < 99 else f"{minutes:.0f}"


def _details(report, runs, times, meta):
    """Grids, seeds, times and packages, folded away."""
    parts = ["<details>\n<summary>Grids, seeds and times</summary>"]
    for task in report.tasks:
        of_task = tables.select(runs, task=task.name)
        if not of_task:
            continue
        if task.kind == "cells":
            seeds = tables.seeds_text(of_task)
            parts.append(f"{task.title}: seeds {seeds} in every cell.")
            continue
        parts += [
            f"{task.title}:",
            grids_table(
                of_task, task, report.reference_method, _seconds(times, task)
            ),
        ]
    packages = meta.get("packages", {})
    if packages:
        names = (f"{name} {packages[name]}" for name in sorted(packages))
        parts.append(paragraph(f"Packages: {', '.join(names)}."))
    return [*parts, "</details>"]


def _seconds(times, task):
    """Returns the median CPU seconds of a fresh run for each method.

    Not the mean: the first run of a method may include its compilation.
    """
    fresh = tables.select(times, task=task.name, stage="fresh")
    seconds = {}
    for time in fresh:
        seconds.setdefault(time["method"], []).append(time["seconds"])
    return {
        method: sorted(values)[len(values) // 2]
        for method, values in seconds.items()
    }


def _not_reproduced(found):
    items = [ROSENBROCK]
    if not any(report.backend == QPU for report, _ in found):
        made = {run["method"] for _, runs in found for run in runs}
        mocked = METHODS[QPU].label in made
        items.append(MOCKED_QPU if mocked else NO_QPU)
    return ["\n".join(map(item, items))]
