"""The report page of a recorded run: one self-contained HTML file.

Everything that comes from the file of a run passes through `escape`.
"""

from __future__ import annotations

import base64
import contextlib
import html
import itertools
import json
from typing import Any
from typing import Optional

import numpy as np

from keras_qpsbgd._version import __version__
from keras_qpsbgd.analysis import run_figures
from keras_qpsbgd.analysis.run import Run

# The page must work without a server, and must not load anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
# Limits for the size of the page.
MAX_CURVES = 24
MAX_LAYERS = 24
MAX_ROWS = 200
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
    return _document(title, f"{_headline(run, title, layers)}{body}")


# Headline


def _headline(run, title, layers):
    state = "complete" if run.complete else "incomplete"
    parts = [
        f'<h1>Training run</h1><p class="muted">{_escape(title, 200)} '
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
        f"<div><dt>{_escape(name, 40)}</dt><dd><b>{value}</b> {note}</dd></div>"
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
        shown = _percent(value) if is_share else _number(value)
        yield run_figures.title_of(name), shown, f"after epoch {last + 1:,}"
    if run.epochs:
        yield "Epochs", f"{len(run.epochs):,}", ""
    if run.updates:
        note = f"of {len(layers):,} layer{'s' * (len(layers) != 1)}"
        yield "Recorded updates", f"{len(run.updates):,}", note
    yield from _totals(run, curves)
    seconds = _backend(run.settings).get("qpu_budget_seconds")
    budget = _seconds(seconds) if isinstance(seconds, (int, float)) else ""
    if run.budget_spent_at is not None:
        step = f"step {_escape(run.budget_spent_at, 20)}"
        yield "QPU budget spent at", step, budget and f"budget: {budget}"
    elif "solver_budget_s" in curves:
        left = curves["solver_budget_s"]
        left = max(0.0, float(left[np.isfinite(left)][-1]))
        yield "QPU budget left", _seconds(left), budget and f"of {budget}"


def _totals(run, curves):
    """Yields what the solver did in all updates, recorded or not."""
    curves = {k: v[np.isfinite(v)] for k, v in curves.items()}
    calls, retries, failures, fallbacks = (
        curves[name].sum() if name in curves else None
        for name in run_figures.COUNTS
    )
    span = "in all updates" if run.complete else "in complete epochs"
    if calls is not None:
        note = f"{_number(retries)} of them repeated" if retries else span
        yield "Solver calls", _number(calls), note
    if fallbacks is not None:
        note = f"{_number(failures)} failed solves" if failures else span
        yield "Fallbacks", _number(fallbacks), note
    if "solver_qpu_s" in curves:
        note = "estimate (mock)" if _is_mock(run) else span
        yield "QPU time", _seconds(curves["solver_qpu_s"].sum()), note
    if "solver_chain_breaks" in curves:
        mean = _percent(curves["solver_chain_breaks"].mean())
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
    return f"{_figures(pictures)}{left}"


def _layer(name, updates):
    qubo = updates[-1].qubo
    return (
        f'<h3>{_escape(name, 120)}</h3><p class="muted">'
        f"{qubo.num_variables:,} variables × {qubo.num_columns:,} columns, "
        f"{len(updates):,} recorded update{'s' * (len(updates) != 1)}</p>"
        f"{_figures(run_figures.of_layer(name, updates))}"
    )


# Tables


def _solver(run, layers):
    """Returns what the backend reported per update, one row per layer."""
    is_mock = _is_mock(run)
    rows = []
    for name, updates in list(layers.items())[:MAX_ROWS]:
        qubo = updates[-1].qubo
        *counts, time, breaks = (reported_mean(updates, k) for k in REPORTED)
        rows.append(
            [
                _escape(name, 60),
                f"{qubo.num_variables:,} × {qubo.num_columns:,}",
                f"{len(updates):,}",
                *("–" if each is None else _number(each) for each in counts),
                "–" if time is None else _seconds(1e-6 * time),
                "–" if breaks is None else _percent(breaks),
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
    head = ["Layer", "QUBO", "Recorded", "Calls", "Reads", "Retries"]
    head += [f"QPU time{' (estimate)' * is_mock}", "Broken chains"]
    return f'{_table(head, rows)}<p class="muted">{note}</p>'


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


def _settings(settings):
    """Returns the settings as JSON, with floats rounded to six digits."""
    found = json.loads(
        json.dumps(settings, default=str),
        parse_float=lambda text: float(f"{float(text):.6g}"),
    )
    lines = json.dumps(found, indent=2).split("\n")
    text = "\n".join(_escape(line) for line in lines[:MAX_ROWS])
    left = len(lines) - MAX_ROWS
    more = f"<p>{left:,} more lines are not shown.</p>" if left > 0 else ""
    return f'<pre class="scroll">{text}</pre>{more}'


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


# HTML


def _document(title, body):
    """Returns a page. The title is not escaped yet."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<title>{_escape(title, 120)}</title><link rel="icon" href="data:,">'
        f"<style>{CSS}</style></head>\n<body><main>{body}</main>"
        f"<footer>keras_qpsbgd {__version__}</footer></body></html>\n"
    )


def _figures(pictures):
    """Returns pictures side by side. See `run_figures.Picture`."""
    parts = []
    for title, note, png in pictures:
        title = _escape(title, 80)
        source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
        parts.append(
            f"<figure><figcaption><b>{title}</b> {note}</figcaption>"
            f'<img alt="{title}" src="{source}"></figure>'
        )
    return f'<div class="charts">{"".join(parts)}</div>'


def _table(head, rows):
    """Returns a table. Cells are already escaped."""
    titles = "".join(f'<th scope="col">{title}</th>' for title in head)
    body = "".join(
        f'<tr><th scope="row">{first}</th>'
        + "".join(f"<td>{cell}</td>" for cell in others)
        + "</tr>"
        for first, *others in rows
    )
    return (
        '<div class="scroll" tabindex="0"><table>'
        f"<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _escape(value, limit=300):
    """Returns text that is safe in HTML and at most `limit` characters long."""
    text = str(value)
    if len(text) > limit:
        text = f"{text[: limit - 1]}…"
    # Control characters and lone surrogates are not allowed in HTML.
    return html.escape("".join(c if c.isprintable() else " " for c in text))


def _number(value):
    """Returns a number with about four significant digits."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


def _percent(value):
    """Returns a share as a percentage."""
    return f"{100 * value:.3g} %"


def _seconds(value):
    """Returns a duration."""
    if value < 1:
        return f"{1000 * value:.3g} ms"
    return f"{value:.3g} s" if value < 3600 else f"{value / 3600:,.1f} h"


# The pictures have dark lines on a transparent background. In dark mode, the
# page inverts their lightness and keeps their hues.
CSS = """
:root { color-scheme: light dark; --page: #f5f6f8; --card: #fff;
  --text: #1b212c; --muted: #566072; --line: #dfe3ea;
  --good: #10693c; --warn: #8a4b00; }
@media (prefers-color-scheme: dark) {
  :root { --page: #0e131a; --card: #171e28; --text: #e7ebf1;
    --muted: #a3aebd; --line: #2a3442; --good: #7fdca6;
    --warn: #ffc977; }
  img { filter: invert(1) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 24px 16px;
  background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.9rem; margin: 0; }
h2 { font-size: 1.3rem; margin: 40px 0 12px; }
h3 { font-size: 1.1rem; margin: 24px 0 0; }
p { margin: 4px 0 12px; }
.muted, dt, dd, figcaption, thead, footer { color: var(--muted);
  font-size: 0.9rem; }
.complete { color: var(--good); }
.incomplete { color: var(--warn); }
dl, .charts { display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fill, minmax(168px, 1fr)); }
.charts { grid-template-columns:
  repeat(auto-fill, minmax(min(100%, 340px), 1fr)); }
dl > div, figure, .scroll { background: var(--card); padding: 12px;
  border: 1px solid var(--line); border-radius: 8px; margin: 0; }
dd { margin: 0; }
dd b { color: var(--text); display: block; font-size: 1.4rem; }
figure { display: flex; flex-direction: column; break-inside: avoid; }
figcaption { flex: 1; }
figcaption b { color: var(--text); display: block; }
img { width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; }
th, td { padding: 6px 12px; text-align: right; vertical-align: top; }
th:first-child { text-align: left; }
tbody > * > * { border-top: 1px solid var(--line); font-weight: 400; }
footer { padding-top: 32px; }
"""
