"""RESULTS.md: all experiments whose records are there, and their figures.

Everything on the page is made from the records; nothing is typed.
"""

import math
import os
import pathlib
import textwrap

from keras_qpsbgd import disk
from keras_qpsbgd.compare import records
from keras_qpsbgd.compare.methods import HOST
from keras_qpsbgd.compare.methods import METHODS
from keras_qpsbgd.compare.report import figures
from keras_qpsbgd.compare.report import protocol
from keras_qpsbgd.compare.report import statistics
from keras_qpsbgd.compare.report import tables
from keras_qpsbgd.compare.report.statistics import mean_and_error
from research.experiments.pages import sentences

WIDTH = 100
QPU = "dwave"  # as a backend a chip, as a method a mocked one
ON_HOST = [METHODS[key].label for key in HOST]
TITLE = "# The paper's experiments, run again"
HOW_TO_READ = (
    "Values are mean +- standard error over fresh seeds, which had no part in "
    "the choice of learning rates; those were chosen on validation data, each "
    "method from its own grid. Methods are run with the same seeds, some with "
    "fewer of them, and each is compared with {reference} by a two-sided "
    "paired t-test over the seeds that both have: where a method has fewer, "
    "its mean is not to be held against that of {reference}, the difference "
    'is. "Tie" means p >= {level}; "better" and "worse" say what the other '
    "method is. The tests are not corrected for their number: with this many "
    "rivals take a difference as significant from p < {strict} on. Differences "
    "of percentages are in percentage points (pp). The paper agrees where its "
    "value is within two standard errors of ours."
)
NOT_THE_PAPER = (
    "Unless a command says `--paper`, three things are not the paper's, since "
    "little is learned without them: binary layers are divided by the square "
    'root of their inputs, QP-SBGD scales its gradients (`gradient_scale="max"`'
    "), and learning rates fall along a cosine (but on citation graphs). The "
    "first and the last are the same for all methods. The strength of the "
    "scale, kappa 4, is not among the configurations: it is the package's "
    "default, from earlier runs on some of the same data sets, so QP-SBGD has "
    "been looked for longer than its grid says. BinaryConnect stands for "
    "an optimizer on the straight-through gradient; latent weights are clipped "
    "only where it is said."
)
ROSENBROCK = (
    "The paper's runs on the Rosenbrock function are only mentioned there; no "
    "setting is given, so there is nothing to run again."
)
MOCKED_QPU = (
    "Runs on a real QPU: here the `dwave` backend was run on a mock QPU only, "
    "which samples classically; its times and errors are not those of a chip."
)
NO_QPU = "Runs on a real QPU: no record here comes from one."


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
    parts = [
        TITLE,
        _paragraph(_how_to_read(found)),
        _paragraph(NOT_THE_PAPER),
        _summary(found),
    ]
    for report, runs in found:
        parts += _section(report, runs, output / report.name, path)
    parts += ["## Not reproducible", *_not_reproducible(found)]
    disk.write(path, "\n\n".join(part for part in parts if part) + "\n")
    return path


def _how_to_read(found):
    names = dict.fromkeys(report.reference_method for report, _ in found)
    return HOW_TO_READ.format(
        reference=" or ".join(names) or "the reference",
        level=statistics.LEVEL,
        strict=statistics.STRICT_LEVEL,
    )


def _paragraph(text, indent=""):
    return textwrap.fill(
        text,
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _item(text):
    return _paragraph(f"- {text}", indent="  ")


# The summary


def _summary(found):
    """A line per task: ours, the best other binary method, how they compare."""
    head = [
        "task",
        "measure",
        "ours",
        "best of the other binary ones",
        "others better / tie / worse",
        "paper",
        "ours against it",
    ]
    lines = []
    for report, runs in found:
        for task in report.tasks:
            rows = _rows(report, task, runs)
            if task.kind != "cells" and rows:
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
    rivals = [row for row in rows if row.method != reference]
    others = [row for row in rivals if row.method != protocol.REAL_WEIGHTS]
    counts = [
        sum(row.verdict == word for row in others)
        for word in ("better", "tie", "worse")
    ]
    # Means over other seeds are no better or worse.
    seeds = len(ours[0].values[measure.key]) if ours else 0
    alike = [row for row in others if len(row.values[measure.key]) >= seeds]
    best = _best(alike, measure)
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
    """As GitHub makes it of a heading."""
    kept = (c for c in title.lower() if c.isalnum() or c in " -_")
    return "".join(kept).replace(" ", "-")


def _best(rows, measure):
    """The row with the best mean; `None` if there is none."""
    means = [
        (
            measure.sign
            * mean_and_error(list(row.values[measure.key].values()))[0],
            row,
        )
        for row in rows
    ]
    means = [(mean, row) for mean, row in means if not math.isnan(mean)]
    return max(means, key=lambda pair: pair[0])[1] if means else None


# A section


def _section(report, runs, folder, path):
    meta = records.read_meta(folder)
    parts = [f"## {report.title}", _paragraph(report.setting)]
    if report.backend is not None:
        parts.append(
            f"{report.reference_method} was solved by `{report.backend}`."
        )
    if "command" in meta:
        parts.append(f"```bash\n{meta['command']}\n```")
    parts.append(_paragraph(_when(meta, records.read_times(folder))))
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
        parts += [
            tables.markdown(of_task, task, report.reference_method),
            *map(_paragraph, sentences.sentences(report, task, of_task)),
            _not_run(task, fresh),
            _image(task.title, figure, path),
        ]
    for name, caption in report.pictures:
        picture = folder / name
        if picture.is_file():
            parts += [_paragraph(caption), _image(caption, picture, path)]
    if report.open_choices:
        parts.append("What the paper leaves open, and what was taken:")
        parts.append("\n".join(map(_item, report.open_choices)))
    parts += _details(report, runs, records.read_times(folder), meta)
    return parts


def _not_run(task, fresh):
    made = tables.methods_of(fresh, "")
    missing = [method for method in task.methods if method not in made]
    return _paragraph(f"Not run: {', '.join(missing)}.") if missing else ""


def _image(text, figure, page):
    link = pathlib.Path(os.path.relpath(figure, page.parent)).as_posix()
    return f"![{text}]({link})"


def _when(meta, times):
    if "date" not in meta:
        return ""
    text = f"Run on {meta['date']}"
    # Not the clock's: whoever resumes a killed run knows no such time.
    if times:
        text += f"; its runs took {_minutes(times)} minutes of CPU time"
    on_host = [time for time in times if time["method"] in ON_HOST]
    if on_host:
        text += f", of which {_minutes(on_host)} for solvers on the host"
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
        tuned = tables.select(of_task, stage="tuning")
        text = (
            f"configurations and their {task.chosen_by.label} over the tuning "
            "seeds, by which one was chosen."
        )
        parts.append(
            _paragraph(f"{task.title}: {text if tuned else 'the seeds.'}")
        )
        parts.append(tables.grids(of_task, task, report.reference_method))
        parts.append(_paragraph(_times(times, task, report.reference_method)))
    packages = meta.get("packages", {})
    if packages:
        names = (f"{name} {packages[name]}" for name in sorted(packages))
        parts.append(_paragraph(f"Packages: {', '.join(names)}."))
    return [*parts, "</details>"]


def _times(times, task, reference):
    """Medians: the first run of a method may include its compilation."""
    fresh = tables.select(times, task=task.name, stage="fresh")
    said = []
    for method in tables.methods_of(fresh, reference):
        of_method = tables.select(fresh, method=method)
        seconds = sorted(time["seconds"] for time in of_method)
        said.append(f"{method} {seconds[len(seconds) // 2]:.3g}")
    return f"CPU seconds of a fresh run: {', '.join(said)}." if said else ""


def _not_reproducible(found):
    items = [ROSENBROCK]
    if not any(report.backend == QPU for report, _ in found):
        made = {run["method"] for _, runs in found for run in runs}
        mocked = METHODS[QPU].label in made
        items.append(MOCKED_QPU if mocked else NO_QPU)
    return ["\n".join(map(_item, items))]
