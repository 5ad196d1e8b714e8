"""Combines the sections into one HTML page, and contains its style sheet."""

from __future__ import annotations

from keras_qpsbgd._version import __version__
from keras_qpsbgd.analysis.run import Run
from keras_qpsbgd.report import sections
from keras_qpsbgd.report import text

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
    layers = {name: run.of_layer(name) for name in run.layers}
    body = [_header(run, title, layers), "<main>"]
    if run.epochs:
        body += ['<section id="training"><h2>Training</h2>']
        body += [sections.training(run), "</section>"]
    if layers:
        body += ['<section id="layers"><h2>QUBOs and solutions</h2>']
        body += _layers(layers)
        body += ['</section><section id="solver"><h2>Solver</h2>']
        body += [sections.solver(run, layers), "</section>"]
    if run.settings:
        body += ['<section id="settings"><h2>Settings and versions</h2>']
        body += [_settings(run.settings), "</section>"]
    body += [f"</main><footer>keras_qpsbgd {__version__}</footer>"]
    name = text.escape(title, 120)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<title>{name}</title><link rel="icon" href="data:,">'
        f"<style>{CSS}</style></head>\n<body>{''.join(body)}</body></html>\n"
    )


def _header(run, title, layers):
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
            "recorded until then. Totals cover complete epochs only.</p>"
        )
    if not run.updates:
        parts.append(
            '<p class="notice" role="note">No update was recorded. Without '
            "updates, there are no QUBOs to show.</p>"
        )
    facts = sections.facts(run, layers)
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


def _layers(layers):
    shown = list(layers)[: sections.MAX_LAYERS]
    if len(shown) > 2:
        links = "".join(
            f'<a href="#layer-{k}">{text.escape(name, 40)}</a>'
            for k, name in enumerate(shown)
        )
        yield f'<nav aria-label="Layers">{links}</nav>'
    for k, name in enumerate(shown):
        yield f'<section id="layer-{k}">'
        yield sections.layer(name, layers[name])
        yield "</section>"
    left = len(layers) - len(shown)
    if left:
        yield (
            f"<p>{left:,} more layers are not drawn. The table below has all "
            "of them.</p>"
        )


def _settings(settings):
    rest = dict(settings)
    versions = rest.pop("versions", {})
    if not isinstance(versions, dict):  # a file may contain anything
        versions = {"versions": versions}
    tables = {"Settings": rest, "Versions": versions}
    found = [sections.settings(v, name) for name, v in tables.items() if v]
    return f'<div class="pair">{"".join(found)}</div>'


# The style sheet, for light and dark mode

CSS = """
:root {
  color-scheme: light dark;
  --page: #f5f6f8; --card: #ffffff; --text: #1b212c; --muted: #566072;
  --line: #dfe3ea; --grid: #e6e9ef; --accent: #0b5cad;
  --s1: #0067ac; --s2: #c2410c;
  --good: #10693c; --good-bg: #e3f4ea; --warn: #8a4b00; --warn-bg: #fdf1dd;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0e131a; --card: #171e28; --text: #e7ebf1; --muted: #a3aebd;
    --line: #2a3442; --grid: #2a3442; --accent: #7cc0ff;
    --s1: #5db7ff; --s2: #ffa45c;
    --good: #7fdca6; --good-bg: #143324; --warn: #ffc977; --warn-bg: #3a2a10;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  overflow-wrap: anywhere;
}
main, header, footer { max-width: 1180px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 36px; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 1.3rem; margin: 44px 0 12px; letter-spacing: -0.005em; }
h3 { font-size: 1.08rem; margin: 28px 0 10px; }
h3 small { font-weight: 400; color: var(--muted); font-size: 0.88rem; }
p { margin: 0 0 12px; max-width: 46rem; }
a { color: var(--accent); }
a:focus-visible, .scroll:focus-visible {
  outline: 2px solid var(--accent); outline-offset: 2px;
}
.muted, footer { color: var(--muted); font-size: 0.9rem; }
.origin { display: flex; flex-wrap: wrap; gap: 8px 12px; align-items: center;
  margin: 10px 0 0; color: var(--muted); }
.badge { border-radius: 99px; padding: 1px 10px; font-size: 0.85rem;
  font-weight: 600; }
.complete { color: var(--good); background: var(--good-bg); }
.incomplete { color: var(--warn); background: var(--warn-bg); }
.notice { color: var(--warn); background: var(--warn-bg); max-width: none;
  border-left: 4px solid currentColor; border-radius: 6px;
  padding: 10px 14px; margin: 20px 0 0; }
.facts { display: grid; gap: 12px; margin: 24px 0 0;
  grid-template-columns: repeat(auto-fill, minmax(168px, 1fr)); }
.facts > div, figure, .scroll { background: var(--card);
  border: 1px solid var(--line); border-radius: 10px; }
.facts > div { padding: 12px 14px; }
dt { color: var(--muted); font-size: 0.85rem; }
dd { margin: 0; }
dd b { font-size: 1.45rem; line-height: 1.3; font-weight: 650; display: block;
  font-variant-numeric: tabular-nums; }
dd span { color: var(--muted); font-size: 0.82rem; }
nav { margin-top: 20px; display: flex; flex-wrap: wrap; gap: 6px 16px; }
.charts { display: grid; gap: 14px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); }
figure { margin: 0; padding: 14px 14px 8px; min-width: 0; display: flex;
  flex-direction: column; }
figcaption { margin-bottom: 8px; flex: 1; }
figcaption h4 { margin: 0; font-size: 0.95rem; }
figcaption p { margin: 2px 0 0; color: var(--muted); font-size: 0.82rem; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 4px 0 0;
  padding: 0; list-style: none; font-size: 0.82rem; }
.legend svg { display: inline-block; width: 22px; height: 8px;
  vertical-align: middle; margin-right: 6px; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { fill: var(--muted); font-size: 11px;
  font-variant-numeric: tabular-nums; }
.middle, .label { text-anchor: middle; }
.end { text-anchor: end; }
.grid { stroke: var(--grid); fill: none; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.dashed { stroke-dasharray: 5 4; }
.band { stroke: none; fill-opacity: 0.16; }
.line.s1 { stroke: var(--s1); } .line.s2 { stroke: var(--s2); }
.band.s1, circle.s1, .bar { fill: var(--s1); }
.band.s2, circle.s2 { fill: var(--s2); }
.scroll { overflow-x: auto; }
.scroll + .muted { margin-top: 8px; }
figure .scroll { border: 0; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; }
th, td { padding: 7px 14px; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); overflow-wrap: normal; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--muted); font-weight: 600; white-space: nowrap; }
tbody th { font-weight: 500; }
.n { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
figure th, figure td { padding: 0 2px; font-size: 0.78rem; line-height: 1.35; }
.settings th { width: 45%; }
.settings td, .settings th { overflow-wrap: anywhere; }
.settings td { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas,
  monospace; font-size: 0.85rem; }
.pair { display: grid; gap: 14px; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.pair h3 { margin-top: 0; }
footer { padding-top: 32px; padding-bottom: 40px; }
@media (max-width: 480px) {
  main, header, footer { padding-left: 14px; padding-right: 14px; }
  header { padding-top: 22px; }
  .facts { grid-template-columns: 1fr 1fr; gap: 8px; }
  figure { padding: 12px 10px 6px; }
  th, td { padding: 6px 10px; }
}
@media print {
  :root { --page: #fff; }
  figure, .facts > div, tr { break-inside: avoid; }
}
"""
