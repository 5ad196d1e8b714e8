"""Tables of text for a terminal."""

from collections.abc import Sequence
from typing import Any

WIDTH = 80


def table(
    head: Sequence[str], rows: Sequence[Sequence[Any]], widths: Sequence[int]
) -> list[str]:
    """Returns the lines of a table.

    Args:
        head: List of strings, the titles of the columns.
        rows: List of rows, each a name and its cells.
        widths: List of integers, the widths of all columns but the first.
    """
    return [row(head, widths), "-" * WIDTH, *(row(r, widths) for r in rows)]


def row(cells: Sequence[Any], widths: Sequence[int]) -> str:
    """Returns a row: the name, shortened if necessary, and the other cells.

    Args:
        cells: List of strings or integers, first the name.
        widths: List of integers, the widths of all cells but the name. A longer
            cell takes its space from the name.
    """
    name, *others = cells
    right = "".join(f"{cell:>{width}}" for cell, width in zip(others, widths))
    left = max(WIDTH - len(right), 8)
    return f"{shorten(name, left - 1):<{left}}{right}"


def shorten(name: str, width: int) -> str:
    """Returns a name with at most `width` characters."""
    return name if len(name) <= width else f"{name[: width - 3]}..."


def memory_text(size: int) -> str:
    """Returns a number of bytes in the units of `model.summary()`."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KB", "MB", "GB"):
        value /= 1024
        if value < 1024 or unit == "GB":
            break
    return f"{value:,.2f} {unit}"
