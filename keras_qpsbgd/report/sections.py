"""The sections of the report page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any
from typing import Optional

import numpy as np

from keras_qpsbgd.analysis.evolution import evolution_of
from keras_qpsbgd.analysis.run import Run
from keras_qpsbgd.analysis.run import Update
from keras_qpsbgd.report import numbers
from keras_qpsbgd.report import svg
from keras_qpsbgd.report import text

# Limits for the size of the page.
MAX_CURVES = 24
MAX_LAYERS = 24
MAX_ROWS = 200


def figure(
    title: str,
    note: str,
    drawing: str,
    series: Sequence[svg.Series] = (),
) -> str:
    """Returns a chart with its caption. Several curves get a legend."""
    legend = ""
    if len(series) > 1:
        entries = [
            f'<li><svg viewBox="0 0 22 8" aria-hidden="true"><path class="line '
            f's{index + 1}{" dashed" if curve.dashed else ""}" d="M0 4H22"/>'
            f"</svg>{text.escape(curve.name)}</li>"
            for index, curve in enumerate(series)
        ]
        legend = f'<ul class="legend">{"".join(entries)}</ul>'
    note = f"<p>{note}</p>" if note else ""
    return (
        f"<figure><figcaption><h4>{text.escape(title, 80)}</h4>{note}{legend}"
        f"</figcaption>{drawing}</figure>"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> str:
    """Returns a table that scrolls on its own. Cells are already escaped.

    The first column is text, and the others are numbers.
    """
    first, *others = head
    titles = f'<th scope="col">{first}</th>' + "".join(
        f'<th scope="col" class="n">{title}</th>' for title in others
    )
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f'<td class="n">{cell}</td>' for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">'
        f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"
        "</div>"
    )


# Curves of the epoch logs


def logs(run: Run) -> dict[str, np.ndarray]:
    """Returns the numeric logs by name. A missing value is NaN."""
    names = dict.fromkeys(name for epoch in run.epochs for name in epoch)
    found = {}
    for name in names:
        values = np.array([_number(epoch.get(name)) for epoch in run.epochs])
        if np.isfinite(values).any():
            found[name] = values
    return found


def training(run: Run) -> str:
    """Draws the logs of the epochs, training and validation in one chart.

    Counts of the solver that do not change are left out. The headline shows
    their sums.
    """
    found = logs(run)
    x = np.arange(1.0, len(run.epochs) + 1)
    if "epoch" in found:
        found.pop("epoch")
    charts = []
    drawn = numbers.thin(len(x))
    for name in _order(found):
        series = [svg.Series("training", found[name][drawn])]
        if f"val_{name}" in found:
            validation = found[f"val_{name}"][drawn]
            series.append(svg.Series("validation", validation, dashed=True))
        elif name.startswith("val_"):
            series[0].name = "validation"
        values = np.concatenate([curve.y for curve in series])
        finite = values[np.isfinite(values)]
        if name in numbers.COUNTS and len(set(finite)) < 2:
            continue
        share = all(text.is_share(name, value) for value in finite)
        title, note = text.words(name), text.NOTES.get(name, "")
        # Everything that the solver reports starts at zero, except energies.
        is_size = name in text.NAMES and name != "solver_energy"
        ends = (min([0.0, *finite]) if is_size else None, None)
        drawing = svg.lines(title, x[drawn], series, "epoch", share, ends)
        if name == numbers.QPU_SECONDS and numbers.has_mock_qpu(run.settings):
            note += " An estimate: the QPU is a mock."
        charts.append(figure(title, note, drawing, series))
    left = len(charts) - MAX_CURVES
    more = f"<p>{left} more logs are not shown.</p>" if left > 0 else ""
    return f'<div class="charts">{"".join(charts[:MAX_CURVES])}</div>{more}'


def _order(found):
    """Sorts the logs: loss, metrics, what the solver reports."""
    names = [
        name
        for name in found
        if not (name.startswith("val_") and name[4:] in found)
    ]

    def place(name):
        return (name.startswith("solver"), name not in ("loss", "val_loss"))

    return sorted(names, key=place)


def _number(value):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    return float(value)


# One layer


def layer(name: str, updates: list[Update]) -> str:
    """Draws the QUBOs, the energies and the reads of one layer."""
    qubo = updates[-1].qubo
    charts = [*_over_steps(name, updates), *_reads(updates)]
    size = f"{qubo.num_variables:,} variables × {qubo.num_columns:,} columns"
    plural = "s" * (len(updates) > 1)
    return (
        f"<h3>{text.escape(name, 120)} <small>{size}, "
        f"{len(updates):,} recorded update{plural}</small></h3>"
        f'<div class="charts">{"".join(charts)}</div>'
    )


def _over_steps(name, updates):
    indices = numbers.thin(len(updates))
    evolution = evolution_of(name, updates, indices)
    applied = numbers.applied_states([updates[index] for index in indices])
    steps = evolution.steps.astype(float)

    def chart(title, note, series, share=False, ends=(None, None)):
        drawing = svg.lines(title, steps, series, "step", share, ends)
        return figure(title, note, drawing, series)

    yield chart(
        "Energy of the applied states",
        "Mean over the columns. The band spans the lowest to the highest "
        "column.",
        [
            svg.Series(
                "applied",
                applied["energy"],
                applied["lowest"],
                applied["highest"],
            ),
            svg.Series("random states", applied["random"], dashed=True),
        ],
    )
    yield chart(
        "Changed and held entries",
        "Changed: the sign differs from the previous recorded update.",
        [
            svg.Series("changed", evolution.changed_states),
            svg.Series("held", applied["held"], dashed=True),
        ],
        True,
        (0.0, 1.0),
    )
    yield chart(
        "Size of the couplings",
        "Frobenius norm of Q without its diagonal, which is constant for "
        "spins.",
        [svg.Series("couplings", evolution.coupling_norms)],
        ends=(0.0, None),
    )
    yield chart(
        "Size of the fields",
        "Frobenius norm of s.",
        [svg.Series("fields", evolution.field_norms)],
        ends=(0.0, None),
    )


def _reads(updates):
    update = numbers.last_with_reads(updates)
    if update is None:
        return
    count = len(update.samples)
    title = "Energies of the reads"
    label = "energy above the best read"
    yield figure(
        title,
        f"{count:,} reads of each column at step {update.step:,}, compared "
        "with the best read of the same column.",
        svg.histogram(title, numbers.read_energies(update), label),
    )
    title = "Similarity of the best reads"
    similarity = numbers.similarity(update)
    off = similarity[~np.eye(len(similarity), dtype=bool)]
    ranks = [str(rank) for rank in range(1, len(similarity) + 1)]
    rows = [
        [rank, *(f"{100 * value:.0f}" for value in row)]
        for rank, row in zip(ranks, similarity)
    ]
    yield figure(
        title,
        f"Jaccard similarity in percent of the {len(similarity)} best reads at "
        f"step {update.step:,}, best first. Mean: {100 * off.mean():.0f} %.",
        table(["Read", *ranks], rows, title),
    )


# Tables


def solver(run: Run, layers: dict[str, list[Update]]) -> str:
    """Returns what the backend reported per update, one row per layer."""
    is_mock = numbers.has_mock_qpu(run.settings)
    head = [
        "Layer", "QUBO", "Recorded", "Calls", "Reads", "Retries",
        "QPU time (estimate)" if is_mock else "QPU time", "Broken chains",
    ]  # fmt: skip
    shown = list(layers.items())[:MAX_ROWS]
    rows = []
    for name, updates in shown:
        qubo = updates[-1].qubo
        means = numbers.solver_means(updates)
        rows.append(
            [
                text.escape(name, 60),
                f"{qubo.num_variables:,} × {qubo.num_columns:,}",
                f"{len(updates):,}",
                _show(means["calls"], text.mean),
                _show(means["reads"], text.mean),
                _show(means["retries"], text.mean),
                _show(means["qpu_seconds"], text.seconds),
                _show(means["chain_breaks"], text.percent),
            ]
        )
    note = (
        "Number of recorded updates, and means over those that the backend "
        "solved. – means that the backend does not report the value."
    )
    if is_mock:
        note += (
            " The mock QPU uses no QPU time. It reports Ocean's estimate for a "
            "real one."
        )
    problems = [
        f"<li>{text.escape(name, 60)}: {text.escape(', '.join(ids), 400)}</li>"
        for name, updates in shown
        if (ids := numbers.problem_ids(updates))
    ]
    latest = ""
    if problems:
        latest = (
            '<h3>Latest problems</h3><p class="muted">Leap and dwave-inspector '
            f"find a call by its identifier.</p><ul>{''.join(problems)}</ul>"
        )
    return f'{table(head, rows, "Solver")}<p class="muted">{note}</p>{latest}'


def _show(value, form):
    return "–" if value is None else form(value)


def settings(values: dict[str, Any], name: str) -> str:
    """Returns a table of nested settings, without those that are `None`."""
    rows = list(_flat(values))
    body = "".join(
        f'<tr><th scope="row">{_breakable(text.escape(key, 120))}</th>'
        f"<td>{text.escape(value)}</td></tr>"
        for key, value in rows[:MAX_ROWS]
    )
    left = len(rows) - MAX_ROWS
    more = f"<p>{left:,} more settings are not shown.</p>" if left > 0 else ""
    return (
        f"<div><h3>{name}</h3>"
        '<div class="scroll"><table class="settings">'
        f"<tbody>{body}</tbody></table></div>{more}</div>"
    )


def _breakable(name):
    """Allows line breaks after dots and underscores."""
    return name.replace(".", ".<wbr>").replace("_", "_<wbr>")


def _flat(values, prefix="") -> Any:
    """Yields the entries of nested dictionaries with dotted names."""
    for key, value in values.items():
        if value is None:
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, str):
            yield f"{prefix}{key}", value
        else:
            yield f"{prefix}{key}", json.dumps(_rounded(value), default=str)


def _rounded(value):
    """Rounds to the digits of float32, so that 0.03 is not 0.02999999933."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    return value


# Headline


def facts(
    run: Run, layers: dict[str, list[Update]]
) -> list[tuple[str, str, str]]:
    """Returns the title, value and note of the most important numbers."""
    found = []
    curves = logs(run)
    loss = next((name for name in ("val_loss", "loss") if name in curves), None)
    for name in filter(None, [_headline_metric(curves), loss]):
        values = curves[name]
        last = int(np.flatnonzero(np.isfinite(values))[-1])
        value = text.metric(name, values[last])
        found.append((text.words(name), value, f"after epoch {last + 1:,}"))
    if run.epochs:
        found.append(("Epochs", f"{len(run.epochs):,}", ""))
    if run.updates:
        note = f"of {len(layers):,} layer{'s' * (len(layers) > 1)}"
        found.append(("Recorded updates", f"{len(run.updates):,}", note))
    return [
        *found,
        *_solver_facts(run, numbers.totals(curves)),
        *_budget(run, curves),
    ]


def _solver_facts(run, totals):
    """Yields what the solver did in all updates, recorded or not."""
    epochs = f"{len(run.epochs):,} epoch{'s' * (len(run.epochs) != 1)}"
    span = "in all updates" if run.complete else f"in {epochs}"
    calls, retries, failures, fallbacks = map(totals.get, numbers.COUNTS)
    if calls is not None:
        note = f"{text.number(retries)} of them repeated" if retries else span
        yield "Solver calls", text.number(calls), note
    if fallbacks is not None:
        note = span
        if failures is not None:
            plural = "s" * (failures != 1)
            note = f"{text.number(failures)} failed solve{plural}"
        yield "Fallbacks", text.number(fallbacks), note
    if numbers.QPU_SECONDS in totals:
        note = "estimate (mock)" if numbers.has_mock_qpu(run.settings) else span
        yield "QPU time", text.seconds(totals[numbers.QPU_SECONDS]), note
    if numbers.CHAIN_BREAKS in totals:
        share = text.percent(totals[numbers.CHAIN_BREAKS])
        yield "Broken chains", share, "on average"


def _budget(run, curves):
    """Yields when the QPU budget was spent, or what is left of it."""
    seconds = numbers.budget_seconds(run.settings)
    note = "" if seconds is None else text.seconds(seconds)
    if run.budget_spent_at is not None:
        step = f"step {text.escape(run.budget_spent_at, 20)}"
        yield "QPU budget spent at", step, note and f"budget: {note}"
    elif numbers.BUDGET_LEFT in curves:
        left = curves[numbers.BUDGET_LEFT]
        left = max(0.0, float(left[np.isfinite(left)][-1]))
        yield "QPU budget left", text.seconds(left), note and f"of {note}"


def _headline_metric(curves) -> Optional[str]:
    names = [
        name
        for name in curves
        if not name.startswith("solver")
        and name not in ("loss", "val_loss", "epoch", "lr", "learning_rate")
    ]
    validation = [name for name in names if name.startswith("val_")]
    return next(iter(validation or names), None)
