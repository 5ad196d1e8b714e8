"""Puts the sections together to one HTML page."""

from __future__ import annotations

import importlib.metadata

from keras_qpsbgd.analysis.run import Run
from keras_qpsbgd.report import numbers
from keras_qpsbgd.report import sections
from keras_qpsbgd.report import text
from keras_qpsbgd.report.style import CSS

# The page must work without a server, and must not load anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


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

    Example:
        ```python
        import pathlib

        import keras_qpsbgd as kq
        from keras_qpsbgd import report

        page = report.render(kq.analysis.Run(epochs=[{"loss": 1.0}]))
        pathlib.Path("report.html").write_text(page, encoding="utf-8")
        ```
    """
    updates = {name: run.of_layer(name) for name in run.layers}
    totals = [numbers.solver_totals(n, part) for n, part in updates.items()]
    body = [_header(run, title, totals), "<main>"]
    if run.epochs:
        body += ['<section id="training"><h2>Training</h2>']
        body += [sections.training(run), "</section>"]
    if updates:
        body += ['<section id="layers"><h2>QUBOs and solutions</h2>']
        body += _layers(updates)
        body += ['</section><section id="solver"><h2>Solver</h2>']
        body += [sections.solver(run, totals), "</section>"]
    if run.settings:
        body += ['<section id="settings"><h2>Settings and versions</h2>']
        body += [_settings(run.settings), "</section>"]
    body += [f"</main><footer>keras_qpsbgd {_version()}</footer>"]
    name = text.escape(title, 120)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<title>{name}</title><link rel="icon" href="data:,">'
        f"<style>{CSS}</style></head>\n<body>{''.join(body)}</body></html>\n"
    )


def _header(run, title, totals):
    state = "complete" if run.complete else "incomplete"
    parts = [
        "<header><h1>Training run</h1>"
        f'<p class="origin"><span>{text.escape(title, 200)}</span>'
        f'<span class="badge {state}">{state}</span></p>'
    ]
    if not run.complete:
        parts.append(
            '<p class="notice" role="note">This run is incomplete: training '
            "has not ended, or it was interrupted. The page shows what was "
            "recorded until then.</p>"
        )
    if not run.updates:
        parts.append(
            '<p class="notice" role="note">No update was recorded. Without '
            "updates, there are no QUBOs to show.</p>"
        )
    facts = sections.facts(run, totals)
    if facts:
        cards = "".join(
            f"<div><dt>{text.escape(name, 40)}</dt><dd><b>{value}</b>"
            f"<span>{note}</span></dd></div>"
            for name, value, note in facts
        )
        parts.append(f'<dl class="facts">{cards}</dl>')
    return "".join([*parts, _links(run), "</header>"])


def _links(run):
    present = (
        ("training", "Training", run.epochs),
        ("layers", "QUBOs and solutions", run.updates),
        ("solver", "Solver", run.updates),
        ("settings", "Settings and versions", run.settings),
    )
    links = "".join(
        f'<a href="#{name}">{title}</a>' for name, title, has in present if has
    )
    return f'<nav aria-label="Sections">{links}</nav>' if links else ""


def _layers(updates):
    names = list(updates)
    shown = names[: sections.MAX_LAYERS]
    if len(shown) > 2:
        links = "".join(
            f'<a href="#layer-{k}">{text.escape(name, 40)}</a>'
            for k, name in enumerate(shown)
        )
        yield f'<nav aria-label="Layers">{links}</nav>'
    for k, name in enumerate(shown):
        yield f'<section id="layer-{k}">'
        yield sections.layer(name, updates[name])
        yield "</section>"
    left = len(names) - len(shown)
    if left:
        yield (
            f"<p>{left:,} more layers are not drawn. The table below has all "
            "of them.</p>"
        )


def _settings(settings):
    rest = dict(settings)
    versions = rest.pop("versions", None)
    tables = []
    if rest:
        tables.append(sections.settings(rest, "Settings"))
    if isinstance(versions, dict) and versions:
        tables.append(sections.settings(versions, "Versions"))
    elif versions:
        tables.append(sections.settings({"versions": versions}, "Versions"))
    return f'<div class="pair">{"".join(tables)}</div>'


def _version():
    try:
        return importlib.metadata.version("keras_qpsbgd")
    except importlib.metadata.PackageNotFoundError:
        return ""
