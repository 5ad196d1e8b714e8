"""The report page of a recorded run: one HTML file that loads nothing.

Everything that comes from the file of a run passes through `escape`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any
from typing import Optional

import numpy as np

from keras_qpsbgd.analysis import page
from keras_qpsbgd.analysis import run_figures
from keras_qpsbgd.analysis.run import Run

# Limits for the size of the page.
MAX_CURVES = 24
MAX_LAYERS = 24
MAX_ROWS = 200
MAX_IDS = 5
# What backends report about an update.
REPORTED = (
    "calls",
    "reads",
    "retries",
    "qpu_access_time",
    "chain_break_fraction",
)


def render(run: Run, title: str = "Training run") -> str:
    """Returns the report of a recorded run as one self-contained HTML page.

    The page needs no JavaScript and loads nothing. It follows the light or dark
    mode of the browser. Each curve shows at most 200 points, and at most 24
    layers and 24 logs are drawn.

    Args:
        run: The `analysis.Run`.
        title: String. Title of the page, such as the name of the file. Defaults
            to `"Training run"`.

    Returns:
        A string with the HTML.

    Raises:
        ImportError: If Matplotlib is not installed.

    Example:
        ```python
        import pathlib

        import keras_qpsbgd as kq
        from keras_qpsbgd.analysis import report

        page = report.render(kq.analysis.Run(epochs=[{"loss": 1.0}]))
        pathlib.Path("report.html").write_text(page, encoding="utf-8")
        ```
    """
    layers: dict[str, list] = {}
    for update in run.updates:
        layers.setdefault(update.layer, []).append(update)
    sections = []
    if run.epochs:
        sections.append(("training", "Training", _training(run)))
    if layers:
        qubos = "".join(
            itertools.starmap(_layer, list(layers.items())[:MAX_LAYERS])
        )
        if len(layers) > MAX_LAYERS:
            left = len(layers) - MAX_LAYERS
            qubos += f"<p>{left:,} more layers are not drawn.</p>"
        sections.append(("layers", "QUBOs and solutions", qubos))
        sections.append(("solver", "Solver", _solver(run, layers)))
    if run.settings:
        text = _settings(run.settings)
        sections.append(("settings", "Settings and versions", text))
    body = "".join(
        f'<section id="{key}"><h2>{name}</h2>{content}</section>'
        for key, name, content in sections
    )
    return page.document(title, f"{_headline(run, title, layers)}{body}")


# Headline


def _headline(run, title, layers):
    state = "complete" if run.complete else "incomplete"
    parts = [
        f'<h1>Training run</h1><p class="muted">{page.escape(title, 200)} '
        f'<b class="{state}">{state}</b></p>'
    ]
    if not run.complete:
        parts.append(
            '<p class="incomplete" role="note">This run is incomplete: '
            "training has not ended, or it was interrupted. The page shows "
            "what was recorded until then. Totals cover complete epochs only."
            "</p>"
        )
    if not run.updates:
        parts.append(
            '<p class="incomplete" role="note">No update was recorded. Without '
            "updates, there are no QUBOs to show.</p>"
        )
    cards = "".join(
        f"<div><dt>{page.escape(name, 40)}</dt>"
        f"<dd><b>{value}</b> {note}</dd></div>"
        for name, value, note in _facts(run, layers)
    )
    return "".join([*parts, f"<dl>{cards}</dl>"])


def _facts(run, layers):
    """Yields the title, the value and a note of the most important numbers."""
    curves = run_figures.logs(run.epochs)
    loss = next((name for name in ("val_loss", "loss") if name in curves), None)
    for name in filter(None, [_metric(curves), loss]):
        last = int(np.flatnonzero(np.isfinite(curves[name]))[-1])
        value = curves[name][last]
        is_share = run_figures.is_share(name, value)
        shown = page.percent(value) if is_share else page.number(value)
        yield run_figures.title_of(name), shown, f"after epoch {last + 1:,}"
    if run.epochs:
        yield "Epochs", f"{len(run.epochs):,}", ""
    if run.updates:
        note = f"of {len(layers):,} layer{page.plural(len(layers))}"
        yield "Recorded updates", f"{len(run.updates):,}", note
    yield from _totals(run, curves)
    seconds = _backend(run.settings).get("qpu_budget_seconds")
    budget = page.seconds(seconds) if isinstance(seconds, (int, float)) else ""
    if run.budget_spent_at is not None:
        step = f"step {page.escape(run.budget_spent_at, 20)}"
        yield "QPU budget spent at", step, budget and f"budget: {budget}"
    elif "solver_budget_s" in curves:
        left = curves["solver_budget_s"]
        left = max(0.0, float(left[np.isfinite(left)][-1]))
        yield "QPU budget left", page.seconds(left), budget and f"of {budget}"


def _totals(run, curves):
    """Yields what the solver did in all updates, recorded or not."""
    curves = {k: v[np.isfinite(v)] for k, v in curves.items()}
    calls, retries, failures, fallbacks = (
        curves[name].sum() if name in curves else None
        for name in run_figures.COUNTS
    )
    span = "in all updates" if run.complete else "in complete epochs"
    if calls is not None:
        note = f"{page.number(retries)} of them repeated" if retries else span
        yield "Solver calls", page.number(calls), note
    if fallbacks is not None:
        note = f"{page.number(failures)} failed solves" if failures else span
        yield "Fallbacks", page.number(fallbacks), note
    if "solver_qpu_s" in curves:
        note = "estimate (mock)" if _is_mock(run) else span
        yield "QPU time", page.seconds(curves["solver_qpu_s"].sum()), note
    if "solver_chain_breaks" in curves:
        mean = page.percent(curves["solver_chain_breaks"].mean())
        yield "Broken chains", mean, "on average"


def _metric(curves) -> Optional[str]:
    """Returns the first metric, on validation data if there are any."""
    others = ("loss", "val_loss", "epoch", "lr", "learning_rate")
    names = [name for name in curves if name not in others]
    names = [name for name in names if not name.startswith("solver")]
    validation = [name for name in names if name.startswith("val_")]
    return next(iter(validation or names), None)


# Pictures


def _training(run):
    pictures = run_figures.of_epochs(run.epochs, MAX_CURVES)
    left = ""
    if len(pictures) == MAX_CURVES:
        left = f"<p>At most {MAX_CURVES} logs are shown.</p>"
    return f"{page.figures(pictures)}{left}"


def _layer(name, updates):
    qubo = updates[-1].qubo
    return (
        f'<h3>{page.escape(name, 120)}</h3><p class="muted">'
        f"{qubo.num_variables:,} variables × {qubo.num_columns:,} columns, "
        f"{len(updates):,} recorded update{page.plural(len(updates))}</p>"
        f"{page.figures(run_figures.of_layer(name, updates))}"
    )


# Tables


def _solver(run, layers):
    """Returns what the backend reported per update, one row per layer."""
    is_mock = _is_mock(run)
    rows, problems = [], ""
    for name, updates in list(layers.items())[:MAX_ROWS]:
        qubo = updates[-1].qubo
        *counts, time, breaks = (reported_mean(updates, k) for k in REPORTED)
        rows.append(
            [
                page.escape(name, 60),
                f"{qubo.num_variables:,} × {qubo.num_columns:,}",
                f"{len(updates):,}",
                *(
                    "–" if each is None else page.number(each)
                    for each in counts
                ),
                "–" if time is None else page.seconds(1e-6 * time),
                "–" if breaks is None else page.percent(breaks),
            ]
        )
        if ids := problem_ids(updates):
            text = page.escape(", ".join(ids), 400)
            problems += f"<li>{page.escape(name, 60)}: {text}</li>"
    note = (
        "Number of recorded updates, and means over those that the backend "
        "solved. – means that the backend does not report the value."
    )
    if is_mock:
        note += (
            " The mock QPU uses no QPU time. It reports Ocean's estimate for a "
            "real one."
        )
    head = ["Layer", "QUBO", "Recorded", "Calls", "Reads", "Retries"]
    head += [f"QPU time{' (estimate)' * is_mock}", "Broken chains"]
    text = f'{page.table(head, rows)}<p class="muted">{note}</p>'
    if problems:
        text += (
            '<h3>Latest problems</h3><p class="muted">Leap and dwave-inspector '
            f"find a call by its identifier.</p><ul>{problems}</ul>"
        )
    return text


def reported_mean(updates: list, name: str) -> Optional[float]:
    """Averages what the backend reported over the updates that it solved.

    Returns:
        A float, or `None` if the backend does not report it.
    """
    values = []
    for info in (update.info for update in updates):
        if name in info and not {"error", "fallback"} & set(info):
            with contextlib.suppress(TypeError, ValueError):  # may be anything
                values.append(np.asarray(info[name], dtype=float).mean())
    values = [value for value in values if np.isfinite(value)]
    return float(np.mean(values)) if values else None


def problem_ids(updates: list) -> list[str]:
    """Returns the identifiers of the latest calls."""
    found: dict[str, None] = {}
    for update in updates[-MAX_IDS:]:
        ids = update.info.get("problem_id")
        if isinstance(ids, (list, tuple)):  # a file may contain anything
            found.update(dict.fromkeys(map(str, ids)))
    return list(found)[-MAX_IDS:]


def _settings(settings):
    rows = [(page.escape(k, 120), page.escape(v)) for k, v in _flat(settings)]
    left = len(rows) - MAX_ROWS
    more = f"<p>{left:,} more settings are not shown.</p>" if left > 0 else ""
    return f"{page.table(['Setting', 'Value'], rows[:MAX_ROWS])}{more}"


def _flat(values, prefix=""):
    """Yields nested settings with dotted names, without those that are None."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, str):
            yield f"{prefix}{key}", value
        elif value is not None:
            yield f"{prefix}{key}", json.dumps(_rounded(value), default=str)


def _rounded(value):
    """Rounds to the digits of float32, so that 0.03 is not 0.02999999933."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    return value


def _backend(settings):
    value: Any = settings
    for name in ("optimizer", "backend"):
        value = value.get(name)
        if not isinstance(value, dict):  # a file may contain anything
            return {}
    return value


def _is_mock(run):
    """Returns whether a mock QPU ran, whose times are only estimates."""
    return bool(_backend(run.settings).get("mock"))
