"""Pieces of the report page: its style, escaped text, pictures and tables."""

import base64
import html
from collections.abc import Sequence
from typing import Any

from keras_qpsbgd._version import __version__

# The page must work without a server, and must not load anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def document(title: str, body: str) -> str:
    """Returns a page. The title is not escaped yet."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<title>{escape(title, 120)}</title><link rel="icon" href="data:,">'
        f"<style>{CSS}</style></head>\n<body><main>{body}</main>"
        f"<footer>keras_qpsbgd {__version__}</footer></body></html>\n"
    )


def figures(pictures: Sequence[Any]) -> str:
    """Returns pictures side by side. See `run_figures.Picture`."""
    parts = [
        f"<figure><figcaption><b>{escape(each.title, 80)}</b> {each.note}"
        f'</figcaption><img alt="{escape(each.title, 80)}" src="data:image/png;'
        f'base64,{base64.b64encode(each.png).decode()}"></figure>'
        for each in pictures
    ]
    return f'<div class="charts">{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
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


def escape(value: Any, limit: int = 300) -> str:
    """Returns text that is safe in HTML and at most `limit` characters long."""
    text = str(value)
    if len(text) > limit:
        text = f"{text[: limit - 1]}…"
    # Control characters and lone surrogates are not allowed in HTML.
    return html.escape("".join(c if c.isprintable() else " " for c in text))


def number(value: float) -> str:
    """Returns a number with about four significant digits."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


def percent(value: float) -> str:
    """Returns a share as a percentage."""
    return f"{100 * value:.3g} %"


def seconds(value: float) -> str:
    """Returns a duration."""
    if value < 1:
        return f"{1000 * value:.3g} ms"
    return f"{value:.3g} s" if value < 3600 else f"{value / 3600:,.1f} h"


def plural(count: float) -> str:
    """Returns the ending of a noun after a number."""
    return "" if count == 1 else "s"


# The ink of the pictures is dark and their background transparent. In dark
# mode, the page inverts their lightness and keeps their hues.
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
th:first-child, #settings th, #settings td { text-align: left; }
tbody > * > * { border-top: 1px solid var(--line); font-weight: 400; }
footer { padding-top: 32px; }
"""
