"""The tables of `python -m research gaps` and `appendix`.

The pages are `results/gaps/RESULTS.md` and `results/appendix/RESULTS.md`. Their
text is written by hand. The tables between `<!-- results:NAME -->` and
`<!-- /results -->` are made here, from the stored numbers.
"""

import json
import pathlib

import numpy as np

from keras_qpsbgd import disk
from keras_qpsbgd.comparison.statistics import mean_and_error
from keras_qpsbgd.comparison.tables import markdown_table
from research import pages
from research.analysis import appendix_figures
from research.experiments.tasks import direction

GAPS = "gaps.json"
APPENDIX = "appendix.json"
PAGE = "RESULTS.md"
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
UNKNOWN = "a plot; its numbers are not known to us"


def store(study, folder, name):
    """Writes the numbers of a study.

    Args:
        study: result of `gaps.study` or `appendix.study`.
        folder: folder to write to.
        name: name of the file, `GAPS` or `APPENDIX`.
    """
    text = json.dumps(study, indent=1 if name == GAPS else None)
    disk.write(pathlib.Path(folder, name), text + "\n")


def write_gaps(folder):
    """Writes the tables of `gaps` from the numbers in a folder.

    Returns:
        The path of the page.
    """
    folder = pathlib.Path(folder)
    study = json.loads((folder / GAPS).read_text())
    tables = {"comparison": comparison(study), "table": gaps_table(study)}
    disk.write(folder / "table.md", tables["table"] + "\n")
    return pages.write(folder / PAGE, "What raises the spectral gap?", tables)


def write_appendix(folder):
    """Draws the figures of `appendix` and writes its table.

    Returns:
        The path of the page.
    """
    folder = pathlib.Path(folder)
    study = json.loads((folder / APPENDIX).read_text())
    appendix_figures.draw(study, folder)
    return pages.write(
        folder / PAGE,
        "The figures of the paper's appendix",
        {"table": appendix_table(study)},
    )


# Gaps


def gaps_table(study):
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


# Appendix


def appendix_table(study):
    """What was found beside what the paper reports."""
    lines = []
    for title, here, paper in _appendix_rows(study):
        anchor = title.lower().replace(" ", "-")
        lines.append([f"[{title}](#{anchor})", here, paper])
    return markdown_table(["figure", "here", "paper"], lines)


def _appendix_rows(study):
    reads, embedding = study["reads"], study["embedding"]
    found = {
        name: np.mean([v for v in study["evolution"][name] if v is not None])
        for name in ("coupling_changes", "field_cosines", "changed_states")
    }
    least = [
        f"{row['least']:.3f} (k = {row['width']})" for row in study["gaps"]
    ]
    return [
        (
            "Evolution of the QUBO",
            f"couplings change by {100 * found['coupling_changes']:.0f} % of "
            "their norm; mean cosine of consecutive fields "
            f"{found['field_cosines']:.2f}; "
            f"{100 * found['changed_states']:.0f} % of the states change",
            UNKNOWN,
        ),
        (
            "Energy histogram",
            f"{100 * reads['hits']:.0f} % of the reads of "
            f"{reads['columns']} columns are optimal",
            UNKNOWN,
        ),
        (
            "Similarity of the best samples",
            f"mean {reads['similarity']:.2f}",
            UNKNOWN,
        ),
        (
            "Minor embedding",
            f"{embedding['qubits']} qubits and {embedding['couplers']} "
            f"couplers, chains of up to {embedding['longest']}, found once per "
            "layer",
            "a plot; embedding stretched one minute of QPU time to six hours",
        ),
        ("Spectral gap", pages.joined(least), "0.03 and 0.01"),
        ("Direction test", *_directions(study["direction"])),
        (
            "Fixed points",
            _fixed_points(study),
            "a theorem; its numbers are not known to us",
        ),
    ]


def _directions(rows):
    """Returns what was found and what the paper reports."""
    found, reported = [], []
    for row in rows:
        mean, error = mean_and_error(row["agreement"])
        z = f"Z = {min(row['z']):.1f} to {max(row['z']):.1f}"
        name = appendix_figures.label(row)
        found.append(f"{name}: {mean:.3f} +- {error:.3f} ({z})")
    z = " (Z = {} to {})".format(*direction.PAPER_Z)
    for method, (low, high) in direction.PAPER.items():
        reported.append(f"{method}: {low} to {high}{z}")
        z = ""  # known for QP-SBGD only, which is the first
    return "; ".join(found), "; ".join(reported)


def _fixed_points(study):
    found = []
    for row in study["fixed_points"]:
        last = [shares[-1] for shares in row["shares"]]
        mean, error = mean_and_error([100 * share for share in last])
        flips = 100 * np.mean([one[-1] for one in row["flips"]])
        found.append(
            f"{appendix_figures.step_label(study, row)}: {mean:.0f} +- "
            f"{error:.0f} % of the columns, {flips:.1f} % of the signs change "
            f"per step, {last.count(1.0)} of {len(last)} runs converged"
        )
    return "; ".join(found)
