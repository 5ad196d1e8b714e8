"""The page of `python -m research appendix`, made from its numbers alone."""

import dataclasses
import json
import pathlib

import numpy as np

from keras_qpsbgd import disk
from keras_qpsbgd.compare.statistics import mean_and_error
from keras_qpsbgd.compare.tables import markdown_table
from research.analysis import appendix_figures
from research.experiments import stored
from research.experiments.tasks import direction
from research.pages import joined
from research.pages import paragraph

NUMBERS = "appendix.json"
PAGE = "RESULTS.md"
TITLE = "# The figures of the paper's appendix"
QUESTION = (
    "The appendix of the paper looks into training in seven ways. This page "
    "asks the same questions about networks of the same kind. Each figure is "
    "drawn with the tool of `keras_qpsbgd.analysis` that draws it for any "
    "other network. We know numbers of the paper for two of them, the spectral "
    "gap and the direction test. For the others we do not know what the "
    "paper's plots show, so there is nothing to compare with."
)
SETTING = (
    "Unless a section says otherwise, a network {network} is trained to tell "
    "the digits {digits[0]} from {digits[1]} in 16 half-plane bits: {images} "
    "images, batches of {batch}, {epochs} epochs, learning rate {rate:g}, and "
    "otherwise the defaults of `QPSBGD`. The solver is the mock QPU with "
    "{num_reads} reads: the problem is embedded and scaled as for a D-Wave "
    "chip, but simulated annealing takes the place of the chip. No real QPU "
    "was used. The figures show the first layer, which has 16 inputs."
)
UNKNOWN = "a plot; its numbers are not known to us"


@dataclasses.dataclass(frozen=True)
class Section:
    """One figure: `here` and `paper` are cells of the table."""

    title: str
    picture: str
    here: str
    paper: str
    text: str


def write(study, folder):
    """Writes the numbers, the figures and the page.

    Args:
        study: result of `appendix.study`.
        folder: folder to write to.
    """
    text = json.dumps(study, allow_nan=False)
    disk.write(pathlib.Path(folder, NUMBERS), text + "\n")
    return write_page(folder)


def write_page(folder):
    """Writes the figures and the page from the numbers in the folder."""
    folder = pathlib.Path(folder)
    study = json.loads((folder / NUMBERS).read_text())
    appendix_figures.draw(study, folder)
    disk.write(folder / PAGE, page(study))
    return folder / PAGE


def page(study):
    """The page as Markdown."""
    parts = [
        TITLE,
        paragraph(QUESTION),
        *([] if "rule" in study else [paragraph(stored.note())]),
        paragraph(SETTING.format(**study)),
        "```sh\npython -m research appendix\n```",
        table(study),
    ]
    for section in sections(study):
        parts += [f"## {section.title}", paragraph(section.text)]
        parts.append(f"![{section.title}]({section.picture}.png)")
    return "\n\n".join(parts) + "\n"


def table(study):
    """What was found beside what the paper reports."""
    lines = []
    for section in sections(study):
        anchor = section.title.lower().replace(" ", "-")
        link = f"[{section.title}](#{anchor})"
        lines.append([link, section.here, section.paper])
    return markdown_table(["figure", "here", "paper"], lines)


def sections(study):
    return [
        _evolution(study),
        _histogram(study),
        _similarity(study),
        _embedding(study),
        _spectra(study),
        _direction(study),
        _fixed_points(study),
    ]


def _evolution(study):
    found = study["evolution"]
    cosine, changed, couplings = (
        np.mean([value for value in found[name] if value is not None])
        for name in ("field_cosines", "changed_states", "coupling_changes")
    )
    share = f"{100 * changed:.0f} %"
    return Section(
        "Evolution of the QUBO",
        "evolution",
        f"mean cosine of consecutive fields {cosine:.2f}; {share} of the "
        "states change",
        UNKNOWN,
        "How does the QUBO change from one update to the next? The couplings, "
        "which come from the inputs of the batch alone, change by "
        f"{100 * couplings:.0f} % of their norm on average. The cosine of the "
        f"fields to those of the update before is {cosine:.2f} on average: 1 "
        "would be the same direction in every update, 0 a random one. "
        f"{share} of the states change their sign, where independent random "
        "states would change half of them.",
    )


def _histogram(study):
    reads = study["reads"]
    share = f"{100 * reads['hits']:.0f} %"
    return Section(
        "Energy histogram",
        "histogram",
        f"{share} of the reads are optimal",
        UNKNOWN,
        f"How far are the reads from the optimum? Over {reads['columns']} "
        f"columns of the whole training, {share} of the reads have the energy "
        "of the optimum, which is known by enumeration. The figure shows one "
        "column of the first and of the last update, the one whose share of "
        "optimal reads is the median.",
    )


def _similarity(study):
    reads = study["reads"]
    best = len(reads["updates"][0]["similarity"]["matrix"])
    return Section(
        "Similarity of the best samples",
        "similarity",
        f"mean {reads['similarity']:.2f}",
        UNKNOWN,
        f"Are the {best} best reads the same? The Jaccard similarity is the "
        "number of variables that are +1 in both reads, divided by the number "
        "that are +1 in at least one. It is 1 for equal reads. Over the same "
        f"columns, its mean is {reads['similarity']:.2f}. The figure shows the "
        "columns of the histograms.",
    )


def _embedding(study):
    found = study["embedding"]
    chains = f"chains of up to {found['longest']}"
    return Section(
        "Minor embedding",
        "embedding",
        f"{found['qubits']} qubits, {chains}, found once per layer",
        "a plot; embedding stretched one minute of QPU time to six hours",
        f"What does a column look like on the chip? Its {found['variables']} "
        "variables are a complete graph. On a Pegasus chip without dead qubits "
        f"they take {found['qubits']} qubits and {found['couplers']} couplers, "
        f"in {chains} qubits. The embedding depends on the number of inputs "
        "only, so it is computed once for all columns and updates.",
    )


def _spectra(study):
    least = joined(
        [f"{row['least']:.3f} (k = {row['width']})" for row in study["gaps"]]
    )
    return Section(
        "Spectral gap",
        "spectra",
        least,
        "0.03 and 0.01",
        "How slowly must it be annealed? Networks k-k-2 on UCI Adult, one "
        "sample per step, raw gradients, linear schedule, energies in units of "
        "A(0). The figure shows the column with the smallest gap of one run. "
        "Where it lies at s = 1, it is the difference of the two lowest "
        "energies of the problem. "
        f"The table has the smallest gap of all runs: {least}. Features, "
        "weights, schedule, and units of the paper differ or are not known, so "
        "the values cannot be compared directly. [What raises the spectral "
        "gap?](../gaps/RESULTS.md) has all numbers.",
    )


def _direction(study):
    rows = study["direction"]
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
    scales = ""
    if any(row["scale"] for row in rows):
        scales = '"max" and "raw" are the `gradient_scale`. '
    return Section(
        "Direction test",
        "direction",
        "; ".join(found),
        "; ".join(reported),
        "Does the binary gradient of a batch have the sign of the gradient of "
        "all images more often than not, as the proof assumes? The share of "
        f"equal signs over {direction.STEPS} steps and all layers, mean +- "
        f"standard error over {len(rows[0]['z'])} seeds, from the experiment "
        "[direction](../../RESULTS.md#direction-of-the-binary-gradient), whose "
        f"solver is the native search. {scales}The figure pools the seeds; "
        "gray bars are the ranges of the paper. "
        f"{' '.join(_against_the_paper(rows))}",
    )


def _against_the_paper(rows):
    """Yields a sentence for each method and scale."""
    for row in rows:
        mean, error = mean_and_error(row["agreement"])
        low, high = direction.PAPER[row["method"]]
        place = "within"
        if mean < low - 2 * error:
            place = "below"
        elif mean > high + 2 * error:
            place = "above"
        label = appendix_figures.label(row)
        yield f"{label} is {place} the range of the paper."


def _fixed_points(study):
    shares, flips = [], []
    last = [s[-1] for row in study["fixed_points"] for s in row["shares"]]
    for row in study["fixed_points"]:
        name = appendix_figures.step_label(study, row)
        mean, error = mean_and_error([100 * s[-1] for s in row["shares"]])
        shares.append(f"{name}: {mean:.0f} +- {error:.0f} % of the columns")
        changed = 100 * np.mean([one[-1] for one in row["flips"]])
        flips.append(f"{changed:.1f} % ({name})")
    return Section(
        "Fixed points",
        "fixed_points",
        "; ".join(shares),
        "a theorem; its numbers are not known to us",
        "Has training converged? The paper proves that a projected form of the "
        "updates converges to a fixed point if there is one. It is reached "
        "when the negative binary gradient of all images equals the binary "
        "weights, in every column. The figure shows the share of columns for "
        "which this holds, and the share of weights whose sign changes per "
        "step. Steps use "
        "batches, or all images at once. Values are means and standard errors "
        f"over {study['seeds']} seeds. Here the solver is `exact`, and the "
        "learning rate is constant. In the last epoch, or as many steps, "
        f"{joined(flips)} of the signs change per step. "
        f"{sum(share == 1 for share in last)} of {len(last)} runs have "
        "converged.",
    )
