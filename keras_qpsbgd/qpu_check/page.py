"""The page of a QPU check, in Markdown, to post as it is."""

from __future__ import annotations

from typing import Any

import numpy as np

HEAD = (
    "check",
    "status",
    "calls",
    "mean gap",
    "largest gap",
    "broken chains",
    "estimated",
    "charged",
)


def render(outcomes: list, facts: dict[str, Any], is_mock: bool) -> str:
    """Returns the page.

    Args:
        outcomes: List of `Outcome`.
        facts: Dictionary. Result of `storage.describe`.
        is_mock: Boolean. Whether the chip is simulated.
    """
    counts = [
        f"{sum(outcome.status == status for outcome in outcomes)} {status}"
        for status in ("passed", "failed", "skipped")
    ]
    charged = sum(outcome.charged for outcome in outcomes)
    estimated = sum(outcome.estimated for outcome in outcomes)
    chip = "a simulated chip (mock)" if is_mock else f"`{facts['solver']}`"
    lines = [
        f"# QPU check on {chip}",
        "",
        f"{facts['date']}: {', '.join(counts)}. QPU access time: "
        f"{charged:.3f} s charged, {estimated:.3f} s estimated.",
        "",
    ]
    if is_mock:
        lines += [
            "Simulated annealing replaces the chip. Gaps, chain breaks and "
            "times say nothing about a QPU.",
            "",
        ]
    lines += _table(HEAD, map(_row, outcomes))
    lines += [
        "",
        "The gap of a column is 0 for the optimum and about 1 for a random "
        "state. Up to 16 inputs the optimum is exact. For wider layers it is "
        "the best of 50 reads of simulated annealing, and a gap may be "
        "negative.",
        "",
        "## Findings",
        "",
    ]
    for outcome in outcomes:
        lines += [f"**{outcome.check.title}** (`{outcome.check.name}`)", ""]
        if outcome.skipped:
            lines.append(f"- skipped: {_clean(outcome.skipped)}")
        if outcome.error:
            lines.append(f"- failed: {_clean(outcome.error)}")
        for sentence, holds in outcome.findings:
            lines.append(f"- {'ok' if holds else 'FAILED'}: {_clean(sentence)}")
        if outcome.problem_ids:
            ids = ", ".join(f"`{name}`" for name in outcome.problem_ids)
            lines.append(f"- problem ids: {ids}")
        lines.append("")
    lines += ["## Solver and versions", ""]
    lines += _table(("", ""), _facts(facts))
    return "\n".join(lines) + "\n"


def _row(outcome):
    has_columns = bool(outcome.gaps)
    return (
        f"`{outcome.check.name}`",
        outcome.status,
        str(outcome.num_calls),
        f"{np.mean(outcome.gaps):.4f}" if has_columns else "",
        f"{np.max(outcome.gaps):.4f}" if has_columns else "",
        f"{100 * np.mean(outcome.chain_breaks):.2f} %" if has_columns else "",
        f"{1000 * outcome.estimated:.1f} ms",
        f"{1000 * outcome.charged:.1f} ms",
    )


def _facts(facts):
    for name in ("solver", "graph_id", "num_qubits", "num_couplers"):
        yield name, str(facts[name])
    topology = facts["properties"].get("topology")
    yield "topology", str(topology)
    yield "timing data", facts["timing_data"]
    yield "Python", facts["python"]
    for name, version in facts["versions"].items():
        yield name, version or "not installed"


def _table(head, rows):
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(_clean(cell) for cell in row)} |"


def _clean(text):
    """Keeps a text in one line and in its cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")
