"""Text of the report page: escaped strings and short numbers."""

from __future__ import annotations

import html
import math
from typing import Any

MAX_LENGTH = 300
# Titles and notes of the logs of the solver.
NAMES = {
    "solver_s": "Solver time",
    "solver_energy": "Energy of the solutions",
    "solver_calls": "Solver calls",
    "solver_retries": "Repeated calls",
    "solver_failures": "Failed solves",
    "solver_fallbacks": "Fallbacks",
    "solver_qpu_s": "QPU time",
    "solver_budget_s": "QPU budget",
    "solver_chain_breaks": "Broken chains",
}
NOTES = {
    "solver_s": "Seconds per step.",
    "solver_energy": "Mean over the columns of all layers.",
    "solver_fallbacks": "Solves by the on_failure backend.",
    "solver_qpu_s": "Seconds per epoch.",
    "solver_budget_s": "Seconds left.",
    "solver_chain_breaks": "Mean over the updates.",
}
_ABBREVIATIONS = {
    "auc": "AUC",
    "lr": "learning rate",
    "mae": "MAE",
    "mse": "MSE",
}


def escape(value: Any, limit: int = MAX_LENGTH) -> str:
    """Returns text that is safe in HTML and at most `limit` characters long.

    Everything that comes from the file of a run passes through this function.
    """
    text = str(value)
    if len(text) > limit:
        text = f"{text[: limit - 1]}…"
    # Control characters are not allowed in HTML.
    text = "".join(c if c.isprintable() else " " for c in text)
    return html.escape(text)


def number(value: float) -> str:
    """Returns a number with about four significant digits."""
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    size = abs(value)
    if float(value).is_integer() and size < 1e7:
        return f"{value:,.0f}"
    if size >= 1e7 or size < 1e-4:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    if size >= 1000:
        return f"{value:,.0f}"
    digits = 3 - math.floor(math.log10(size))
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


def mean(value: float) -> str:
    """Returns a mean of counts with two decimals if it is not small."""
    return number(round(value, 2) if abs(value) >= 0.01 else value)


def words(name: str) -> str:
    """Returns the name of a log in words, such as "Validation accuracy"."""
    if name in NAMES:
        return NAMES[name]
    rest = name.removeprefix("val_")
    start = "validation " if rest != name else ""
    found = start + _ABBREVIATIONS.get(rest, rest).replace("_", " ").strip()
    return found[:1].upper() + found[1:]


def ticks(values: list[float], share: bool = False) -> list[str]:
    """Returns the labels of evenly spaced ticks, all with the same decimals."""
    if share:
        return [f"{label} %" for label in ticks([100 * v for v in values])]
    largest = max(map(abs, values))
    step = values[1] - values[0] if len(values) > 1 else largest
    if not 1e-4 <= step < 1e6 or largest >= 1e7:
        return [number(value) for value in values]
    decimals = next(d for d in range(7) if _is_multiple(step, 10.0**-d))
    return [f"{value:,.{decimals}f}" for value in values]


def _is_multiple(value, unit):
    ratio = value / unit
    return abs(ratio - round(ratio)) < 1e-3 or unit < 1e-5


def percent(value: float) -> str:
    """Returns a share as a percentage, with one decimal if it is not small."""
    if not math.isfinite(value):
        return "not finite"
    if 0 < abs(value) < 0.001:
        return f"{100 * value:.1g} %"
    return f"{100 * value:.1f} %"


def seconds(value: float) -> str:
    """Returns a duration in a suitable unit."""
    if value < 1:
        return f"{1000 * value:.3g} ms"
    if value < 600:
        return f"{value:.3g} s"
    if value < 36_000:
        return f"{value / 60:,.0f} min"
    return f"{value / 3600:,.1f} h"


def metric(name: str, value: float) -> str:
    """Returns the value of an epoch log. Shares are percentages."""
    return percent(value) if is_share(name, value) else number(value)


def is_share(name: str, value: float) -> bool:
    """Returns whether a log is an accuracy or another share from 0 to 1."""
    is_named = "acc" in name.lower() or name == "solver_chain_breaks"
    return is_named and 0 <= value <= 1
