"""Short summaries of all results, in Markdown, computed from the records.

Sentences that interpret a result are left out if the records do not support
them.
"""

import math
import os
import pathlib

from keras_qpsbgd.compare.methods import METHODS
from keras_qpsbgd.compare.report import statistics
from keras_qpsbgd.compare.report import tables
from keras_qpsbgd.compare.report.protocol import TEST_LOSS
from keras_qpsbgd.compare.report.protocol import TRAIN_LOSS
from research.bench import export
from research.experiments.pages.findings import BINARY_CONNECT
from research.experiments.pages.findings import FROZEN
from research.experiments.pages.findings import OURS
from research.experiments.pages.findings import REAL
from research.experiments.pages.findings import name_of
from research.experiments.pages.findings import names_of
from research.experiments.pages.findings import p_text
from research.experiments.pages.markdown import item
from research.experiments.pages.markdown import joined
from research.experiments.pages.markdown import paragraph
from research.experiments.stored import SIGN

ADAM, SGD, SIGNSGD = BINARY_CONNECT
RIDGE, GUROBI, DWAVE, PROXQUANT, PAPER = (
    METHODS[key].label
    for key in ("ridge", "gurobi", "dwave", "proxquant", "paper")
)
SIGNUM = METHODS["signum"].label
# The experiments in the order of the summary.
ORDER = (
    "logistic",
    "adult-2layer",
    "adult-10layer",
    "adult-small",
    "mnist-pairs",
    "karate",
    "cora",
    "pubmed",
    "mnist",
    "direction",
)


def _sign(rows):
    """Returns the method without couplings, which was another one before."""
    return SIGN if SIGN in rows else SIGNUM


class Summary:
    """The blocks of a checkout.

    Args:
        root: folder of the checkout.
        results: `Folder` of results.
        paper: `Folder` of the results with `--paper`.
    """

    def __init__(self, root, results, paper):
        self._root = pathlib.Path(root)
        self._results = results
        self._paper = paper

    def block(self, name, folder):
        """The text of a block.

        Args:
            name: one of `BLOCKS`.
            folder: folder of the file that has the block.

        Raises:
            ValueError: there is no block of this name.
        """
        if name not in BLOCKS:
            raise ValueError(
                f"The name of a block must be one of {', '.join(BLOCKS)}. "
                f"Received: {name}"
            )
        # The documentation site has the pages of results in its own root.
        docs = self._root / "docs"
        root = docs if pathlib.Path(folder).is_relative_to(docs) else self._root
        link = pathlib.Path(os.path.relpath(root, folder)).as_posix()
        return BLOCKS[name](self, "" if link == "." else f"{link}/")

    def export_table(self, link):
        """The sizes of exported files."""
        del link
        return export.block(self._root)

    def table(self, link):
        """A row for each task."""
        del link
        head = [
            "task",
            "measure",
            OURS,
            "best other binary method",
            "verdict",
            REAL,
        ]
        rows = []
        for experiment in ORDER:
            for task in self._results.tasks(experiment):
                rows.append(_table_row(task, experiment))
        text = tables.markdown_table(head, rows)
        note = (
            f"Verdict: {OURS} against the best other binary method, two-sided "
            f"paired t-test, p < {statistics.LEVEL}. `ridge` is {OURS} with a "
            f"relaxed QUBO, {self._without_couplings()} with the linear part "
            "of the QUBO only."
        )
        return f"{text}\n\n{paragraph(note)}"

    def sentences(self, link):
        """The main findings, an item for each task."""
        return "\n".join(
            map(
                item,
                (
                    self._adult_10layer(),
                    self._cora(),
                    self._pubmed(),
                    self._pairs(),
                    self._plain("Logistic regression", "logistic"),
                    self._plain("Adult, 15-10-1", "adult-2layer"),
                    self._plain("Adult, 3-5-2", "adult-small"),
                    self._plain("Karate club", "karate"),
                    self._direction(),
                    *self._mnist(),
                    self._as_in_the_paper(link),
                    self._host(),
                ),
            )
        )

    def _one(self, experiment):
        return self._results.tasks(experiment)[0]

    def _plain(self, title, experiment):
        found = self._one(experiment)
        return f"**{title}**: {_all(found)}"

    def _adult_10layer(self):
        text = self._plain("Ten-layer Adult", "adult-10layer")
        tested = self._one("adult-10layer").on(TEST_LOSS)
        return f"{text} {_capitalized(_all(tested))}"

    def cora(self, link):
        """How QP-SBGD compares on Cora, in one paragraph."""
        del link
        return paragraph(_capitalized(_all(self._one("cora"))))

    def _cora(self):
        found = self._one("cora")
        sign = _sign(found.rows)
        text = f"**Cora**: {_all(found)}"
        if found.verdict(RIDGE) == "tie" and found.verdict(sign) == "ahead":
            text += (
                " So the couplings of the QUBO help here, not its exact "
                "solution: `ridge` rounds a relaxed solution, "
                f"{name_of(sign)} ignores the couplings."
            )
        low = [
            m
            for m in (sign, *BINARY_CONNECT)
            if found.at_edge(m) == "lowest" and found.tied(m, FROZEN)
        ]
        if low:
            text += (
                f" {_capitalized(names_of(low))} chose the lowest rate of "
                "their grids and tie with frozen random layers."
            )
        values = (
            f"{tables.paper_text(value, found.measure)} ({label})"
            for label, value in found.task.literature.items()
        )
        return f"{text} Published: {joined(list(values))}."

    def _pubmed(self):
        text = self._plain("PubMed", "pubmed")
        if self._one("pubmed").verdict(FROZEN) == "tie":
            text += " Even frozen random layers do as well."
        return text

    def _pairs(self):
        tasks = self._results.tasks("mnist-pairs")
        pooled = self._results.pooled("mnist-pairs", tasks[0].measure)
        text = (
            f"**Pairs of digits**: test accuracy "
            f"{joined([task.ours for task in tasks])} (paper: {_paper(tasks)})."
            " The gain over the paper comes from our features (the paper "
            "describes its own in words only): BinaryConnect gains as much. "
            "Pooled over the three pairs, in percentage points relative to "
            "QP-SBGD: "
        )
        text += joined(
            [
                f"{name_of(m)} {_points(pooled[m])} "
                f"({p_text(pooled[m].comparison.p)})"
                for m in (*BINARY_CONNECT, _sign(pooled), RIDGE, REAL)
            ]
        )
        losses = self._results.pooled("mnist-pairs", TRAIN_LOSS)
        lower = [
            m
            for m in (*BINARY_CONNECT, _sign(losses))
            if losses[m].verdict == "better"
        ]
        if lower:
            highest = max(losses[m].comparison.p for m in lower)
            text += (
                f". {_capitalized(names_of(lower))} reach a lower training "
                "loss than QP-SBGD "
                f"({p_text(highest).replace('=', '<=')})"
            )
        return f"{text}."

    def _direction(self):
        scaled, *others = self._results.tasks("direction")
        text = (
            f"**Direction**: {_percent(scaled, OURS)} of the signs of an "
            "update agree with those of the full gradient (paper: "
            f"{_paper_range(scaled, OURS)}); for signSGD it is "
            f"{_percent(scaled, SIGNSGD)} (paper: "
            f"{_paper_range(scaled, SIGNSGD)}). "
        )
        if scaled.verdict(SIGNSGD) == "behind":
            text += (
                f"Here signSGD is ahead ({scaled.p(SIGNSGD)}), unlike in the "
                "paper. "
            )
        for raw in others:  # of version 0.1
            text += f"With raw gradients, QP-SBGD has {_percent(raw, OURS)}."
        if PAPER in scaled.rows:
            text += (
                "With the rule of the paper, QP-SBGD has "
                f"{_percent(scaled, PAPER)}."
            )
        return text.strip()

    def _without_couplings(self):
        return name_of(_sign(self._one("cora").rows))

    def _mnist(self):
        normalized, plain, wide = self._results.tasks("mnist")
        for found, name in (
            (normalized, "with batch normalization"),
            (plain, "without batch normalization"),
        ):
            yield (
                f"**MNIST, 784-256-10** {name}, {found.seeds} seeds: "
                f"{_all(found)}"
            )
        yield (
            f"**MNIST, 784-1024-1024-10**, {wide.seeds} seeds: test accuracy "
            f"{wide.ours}, {name_of(ADAM)} {wide.value(ADAM)} "
            f"({wide.verdict(ADAM)}, {wide.p(ADAM)})."
        )

    def _as_in_the_paper(self, link):
        tasks = self._paper.tasks("mnist-pairs")
        seeds = tasks[0].seeds
        pages = f"[results/paper]({link}results/paper/RESULTS.md)"
        text = (
            f"**With the paper's settings** (`--paper`, {seeds} seeds, {pages})"
            ", that is raw gradients and unscaled layers, QP-SBGD is worse "
            "than with the defaults by more than two standard errors on "
            f"{self._worse_in_the_paper()} tasks. "
            f"Pairs of digits: {joined([t.ours for t in tasks])} (paper: "
            f"{_paper(tasks)}). "
        )
        pooled = self._paper.pooled("mnist-pairs", tasks[0].measure)
        for method in (ADAM, SGD, PROXQUANT):
            text += (
                f"{name_of(method)}: {joined([t.mean(method) for t in tasks])} "
                f"({joined([t.p(method) for t in tasks])}; pooled "
                f"{_points(pooled[method])} points, "
                f"{p_text(pooled[method].comparison.p)}). "
            )
        for title, name in (
            ("Ten-layer Adult, training loss", "adult-10layer"),
            ("Cora", "cora"),
            ("PubMed", "pubmed"),
            ("Karate club", "karate"),
        ):
            found = self._paper.tasks(name)[0]
            text += (
                f"{title}: {found.ours}, {name_of(ADAM)} {found.value(ADAM)} "
                f"({found.p(ADAM)}). "
            )
        return (
            f"{text}With {seeds} seeds, p >= {statistics.LEVEL} does not mean "
            "that two methods are level. These results are why the defaults "
            "differ from the paper."
        )

    def _worse_in_the_paper(self):
        """`8 of 11`: tasks on which QP-SBGD is clearly worse."""
        worse = []
        for experiment in self._paper.reports:
            ours = {t.task.name: t for t in self._results.tasks(experiment)}
            for found in self._paper.tasks(experiment):
                both = (found, ours[found.task.name])
                theirs, default = (one.score(OURS) for one in both)
                error = math.hypot(*(one.error(OURS) for one in both))
                worse.append(theirs < default - 2 * error)
        return f"{sum(worse)} of {len(worse)}"

    def _host(self):
        """Solvers on the host end where `native` does."""
        tests, low = 0, []
        pairs = set()
        for experiment in ORDER:
            for found in self._results.tasks(experiment):
                for method in (GUROBI, DWAVE):
                    if method not in found.rows:
                        continue
                    row = found.rows[method]
                    tests += 1
                    pairs.add(row.comparison.pairs)
                    if row.comparison.p < statistics.LEVEL:
                        low.append(
                            f"{name_of(method)} on {found.task.title}, "
                            f"{found.p(method)}"
                        )
        have = "has" if len(low) == 1 else "have"
        text = (
            f"**`gurobi` and the mock `dwave`** end where `native` does: "
            f"{len(low)} of {tests} comparisons {have} p < {statistics.LEVEL}"
        )
        text += f" ({'; '.join(low)})" if low else ""
        text += f", with {min(pairs)} to {max(pairs)} seeds each."
        return text + self._gurobi_on_karate()

    def _gurobi_on_karate(self):
        found = self._one("karate")
        ours, theirs = (
            found.rows[method].values[found.measure.key]
            for method in (OURS, GUROBI)
        )
        seeds = sorted(theirs)
        first, later = (
            statistics.paired_test(ours, {s: theirs[s] for s in part})
            for part in (seeds[:10], seeds[10:])
        )
        if first.p >= statistics.LEVEL or first.difference < 0:
            return ""
        return (
            f" On the karate club, Gurobi was worse than `native` on its first "
            f"{first.pairs} seeds ({p_text(first.p)}), so it got {later.pairs} "
            f"more, on which it was not ({p_text(later.p)}; all {len(seeds)}: "
            f"{found.p(GUROBI)}). The two diverge after a few steps, where "
            "several states are optimal and they choose different ones."
        )


BLOCKS = {
    "summary-table": Summary.table,
    "summary-sentences": Summary.sentences,
    "cora": Summary.cora,
    "export-table": Summary.export_table,
}


def _table_row(task, experiment):
    measure = task.measure
    other = task.best_other()
    verdict = task.verdict(other)
    title = task.task.title
    if experiment == "direction":
        title = f"Direction of updates, `{title}`"
    real = task.value(REAL) if REAL in task.rows else "-"
    return [
        title,
        measure.label,
        task.ours,
        f"{name_of(other)}: {task.value(other)}",
        f"{verdict} ({task.p(other)})",
        real,
    ]


def _all(found):
    """Our value, the comparisons, and real weights."""
    words = {"ahead": "worse", "tie": "tie", "behind": "better"}
    return (
        f"{found.measure.label} {found.ours}. {found.sentences()} Real "
        f"weights: {found.mean(REAL)} ({words[found.verdict(REAL)]}, "
        f"{found.p(REAL)})."
    )


def _capitalized(text):
    return text[0].upper() + text[1:]


def _points(row):
    """Difference of a `Pooled` in percentage points."""
    return f"{-100 * row.comparison.difference:+.2f}"


def _percent(found, method):
    values = found.rows[method].values[found.measure.key].values()
    return f"{100 * sum(values) / len(values):.1f} %"


def _paper(tasks):
    """The values of the paper."""
    return joined(
        [tables.paper_text(t.task.paper[OURS], t.measure) for t in tasks]
    )


def _paper_range(found, method):
    low, high = found.task.paper[method]
    return f"{100 * low:.0f} to {100 * high:.0f} %"
