"""Wraps Markdown text."""

import re
import textwrap

WIDTH = 100
# No line breaks within `81.4 +- 0.2 %`, `p = 0.010` and `BinaryConnect (SGD)`.
_TOGETHER = re.compile(
    r" (?=\+-|%|pp\b|[<>]=? |= |\(\w+\))|(?<=\+-) |(?<= [=<]) |(?<= [<>]=) "
)
_SPACE = "\N{NO-BREAK SPACE}"


def paragraph(text, indent=""):
    """Wraps a paragraph.

    Args:
        text: String.
        indent: String. Indent of all lines but the first. Defaults to `""`.
    """
    wrapped = textwrap.fill(
        _TOGETHER.sub(_SPACE, text),
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapped.replace(_SPACE, " ")


def item(text):
    """Wraps an item of a list."""
    return paragraph(f"- {text}", indent="  ")


def joined(items):
    """Returns `a, b and c`."""
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last
