"""The page of `python -m research gaps`, made from its numbers alone."""

import json
import pathlib
import textwrap

import numpy as np

from keras_qpsbgd import disk
from keras_qpsbgd.compare.statistics import mean_and_error
from keras_qpsbgd.compare.tables import markdown_table
from research.experiments import stored

NUMBERS = "gaps.json"
HEAD = {
    "gap": "gap",
    "ghz": "gap (GHz)",
    "plain": "gap, unscaled",
    "optima": "optima",
    "quantum": "success, quantum",
    "thermal": "success, thermal",
    "kept": "optima kept",
    "held": "held",
}
COMPARED = ("gap", "ghz", "quantum", "thermal")
PERCENT = ("quantum", "thermal", "kept", "held")
TITLE = "# What raises the spectral gap?"
QUESTION = (
    "The paper computes the spectral gap of QUBOs of very small networks on "
    "UCI Adult, prints 0.03 and 0.01, and names larger gaps as future work. "
    "Features, weights, schedule, and units differ here, so the values cannot "
    "be compared directly. The question is which changes of a QUBO raise the "
    "gap, and whether anneals then succeed more often."
)
SETTING = (
    "Networks k-k-2 with k = 2, 3, 4 (hard tanh, unscaled layers) see the k "
    "features that are nearest to one half ones, one sample per step, and are "
    "trained for {steps} steps of QP-SBGD with {rule} and learning rate "
    "{learning_rate}. {problems} columns with a gradient are drawn from each "
    "network. Values are means +- standard errors over {seeds} seeds."
)
COLUMNS = (
    "**gap**: smallest gap to the first level that does not end in the ground "
    "level, linear schedule, in units of A(0); the problem is scaled to the "
    "ranges of the chip, as the backend `dwave` does.",
    "**gap (GHz)**: the same with A(s) and B(s) of Advantage_system5.4. The "
    "temperature of this QPU, 16.4 mK, is 0.34 GHz.",
    "**gap, unscaled**: linear schedule, the QUBO as it is.",
    "**optima**: mean number of optimal states.",
    "**success, quantum**: probability of an optimal state after a noiseless "
    "linear anneal of time {duration:g} / A(0), by Schroedinger's equation. It "
    "depends on the gap and on how fast H changes; large fields raise both.",
    "**success, thermal**: share of optimal reads of the mock QPU's simulated "
    "annealing (100 reads of 100 sweeps).",
    "**optima kept**: share of the optima that are also optima of the QUBO "
    "that was changed: the raw one for `max`, else that of the same scale.",
    "**held**: share of the variables that are left out. Columns of which "
    "nothing is left count in this value only.",
)
COMPARISON = (
    "Each change compared with the QUBO before it, on the same columns, for "
    "k = {widths}: higher (+), lower (-), or a difference of at most two "
    "standard errors (=). Standard errors are not corrected for the number of "
    "comparisons."
)
CHANGES = (
    "`max, kappa`: V is scaled so that its largest entry in the layer is kappa "
    '(`gradient_scale="max"` of version 0.1).',
    "`undecided held`: variables that are +1 in one optimal state and -1 in "
    "another are left out and do not move.",
    "`lambda`: couplings are damped to (1 - lambda) Q + lambda diag Q. Adding "
    "lambda to the diagonal only changes nothing, because the diagonal is "
    "constant for spins.",
)


def write(study, folder):
    """Writes the numbers, the table and the page.

    Args:
        study: result of `gaps.study`.
        folder: folder to write to.
    """
    folder = pathlib.Path(folder)
    disk.write(folder / NUMBERS, json.dumps(study, indent=1) + "\n")
    return write_page(folder)


def write_page(folder):
    """Writes the table and the page from the numbers in the folder."""
    folder = pathlib.Path(folder)
    study = json.loads((folder / NUMBERS).read_text())
    disk.write(folder / "table.md", table(study) + "\n")
    disk.write(folder / "RESULTS.md", page(study))
    return folder / "RESULTS.md"


def page(study):
    """The page as Markdown."""
    problems = sorted({row["problems"] for row in study["rows"]})
    count = " or ".join(map(str, problems))
    columns = [text.format(**study) for text in COLUMNS]
    widths = sorted({row["width"] for row in study["rows"]})
    rule = "the rule of the paper" if "rule" in study else "raw gradients"
    parts = [
        TITLE,
        _paragraph(QUESTION),
        *([] if "rule" in study else [_paragraph(stored.note(paper=True))]),
        _paragraph(
            SETTING.format(**{**study, "problems": count, "rule": rule})
        ),
        "```sh\npython -m research gaps\n```",
        "## Findings",
        "\n".join(map(_item, findings(study))),
        _paragraph(COMPARISON.format(widths=", ".join(map(str, widths)))),
        comparison(study),
        "## Table",
        table(study),
        "Changes:",
        "\n".join(map(_item, CHANGES)),
        "Columns:",
        "\n".join(map(_item, columns)),
    ]
    return "\n\n".join(parts) + "\n"


def table(study):
    """All rows as a Markdown table."""
    lines = [
        [
            f"{row['width']}-{row['width']}-2",
            row["change"],
            *(_text(key, row["seeds"][key]) for key in HEAD),
        ]
        for row in study["rows"]
    ]
    return markdown_table(["network", "QUBO", *HEAD.values()], lines)


def findings(study):
    """Sentences: the smallest gap, and the changes that raise a value."""
    least = ", ".join(
        f"{row['least']:.3f} (k = {row['width']})"
        for row in study["rows"]
        if row["change"] == row["base"]
    )
    said = [f"The smallest unscaled gap of a raw QUBO is {least}."]
    for key in COMPARED:
        signs = {name: _signs(key, group) for name, group in _changes(study)}
        everywhere = [name for name, s in signs.items() if set(s) == {"+"}]
        somewhere = [
            name
            for name, s in signs.items()
            if "+" in s and name not in everywhere
        ]
        said.append(
            f"{HEAD[key][0].upper()}{HEAD[key][1:]} is higher in all networks "
            f"with {_list(everywhere)}, and in some with {_list(somewhere)}."
        )
    return said


def comparison(study):
    """A table of signs: each change against its base."""
    lines = []
    for name, group in _changes(study):
        kept = [_mean(row["seeds"]["kept"]) for row in group]
        signs = (" ".join(_signs(key, group)) for key in COMPARED)
        lines.append([name, group[0]["base"], *signs, _range(kept)])
    head = ["change", "compared with", *(HEAD[key] for key in COMPARED)]
    return markdown_table([*head, HEAD["kept"]], lines)


def _changes(study):
    """Names of the changes, each with its rows by network."""
    names = dict.fromkeys(
        row["change"] for row in study["rows"] if row["change"] != row["base"]
    )
    return [
        (name, [row for row in study["rows"] if row["change"] == name])
        for name in names
    ]


def _signs(key, group):
    """A sign per network, `?` if there is nothing to compare."""
    signs = []
    for row in group:
        differences = [d for d in row["differences"][key] if d is not None]
        if len(differences) < 2:
            signs.append("?")
            continue
        mean, error = mean_and_error(differences)
        # Values are rounded to five digits.
        is_clear = abs(mean) > max(2 * error, 1e-4)
        signs.append(("+" if mean > 0 else "-") if is_clear else "=")
    return signs


def _list(names):
    return ", ".join(f"`{name}`" for name in names) or "none of the changes"


def _mean(values):
    values = [value for value in values if value is not None]
    return float(np.mean(values)) if values else np.nan


def _range(shares):
    shares = [100 * share for share in shares if np.isfinite(share)]
    if not shares:
        return "None"
    low, high = f"{min(shares):.0f}", f"{max(shares):.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def _text(key, values):
    values = [value for value in values if value is not None]
    if not values:
        return "-"
    factor, digits = (100, 0) if key in PERCENT else (1, 3)
    if key == "optima":
        digits = 1
    mean, error = mean_and_error(factor * np.array(values))
    unit = " %" if key in PERCENT else ""
    if not np.isfinite(error):
        return f"{mean:.{digits}f}{unit}"
    return f"{mean:.{digits}f} +- {error:.{digits}f}{unit}"


def _paragraph(text, indent=""):
    return textwrap.fill(
        text,
        100,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _item(text):
    return _paragraph(f"- {text}", indent="  ")
