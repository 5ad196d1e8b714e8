"""Values, tests and phrases about the records, for summaries in Markdown."""

import dataclasses
import pathlib

from keras_qpsbgd.compare import records
from keras_qpsbgd.compare.methods import METHODS
from keras_qpsbgd.compare.report import statistics
from keras_qpsbgd.compare.report import tables
from research.experiments import stored
from research.experiments.pages import pooled
from research.experiments.pages import results_page
from research.experiments.pages.markdown import joined

OURS = METHODS["native"].label
REAL = METHODS["real"].label
FROZEN = METHODS["frozen"].label
BINARY_CONNECT = tuple(METHODS[key].label for key in ("adam", "sgd", "signsgd"))
ALL_BINARY_CONNECT = "all forms of BinaryConnect"
# Names in running text.
NAMES = {
    METHODS["gurobi"].label: "`gurobi`",
    METHODS["dwave"].label: "`dwave` (mock)",
    METHODS["ridge"].label: "`ridge`",
    stored.SIGN: "`sign`",
    METHODS["paper"].label: "the rule of the paper",
    METHODS["signum"].label: "Signum",
    FROZEN: "frozen random layers",
    REAL: "real weights",
}
_FROM_OUR_SIDE = {"better": "behind", "worse": "ahead", "tie": "tie"}


class Folder:
    """The records of a folder such as `results`.

    Args:
        path: the folder.
        reports: `ExperimentReport` by name of the experiment.
    """

    def __init__(self, path, reports):
        self._path = pathlib.Path(path)
        self._runs = {}
        self.reports = reports

    def runs(self, experiment):
        """All records of an experiment."""
        if experiment not in self._runs:
            self._runs[experiment] = records.read(self._path / experiment)
        return self._runs[experiment]

    def tasks(self, experiment):
        """`Findings` of all tasks with a table of methods."""
        report = self.reports[experiment]
        found = (
            Findings.of(self.runs(experiment), task, report.reference_method)
            for task in report.tasks
            if task.kind != "cells"
        )
        return [one for one in found if len(one.rows) > 1]

    def pooled(self, experiment, measure):
        """Method -> `Pooled` over the tasks of an experiment."""
        report = self.reports[experiment]
        found = pooled.compare(
            self.runs(experiment),
            [task.name for task in report.tasks],
            measure,
            report.reference_method,
        )
        return {row.method: row for row in found}


@dataclasses.dataclass(frozen=True)
class Findings:
    """One measure of one task.

    Attributes:
        task: its `TaskReport`.
        measure: the `Measure`.
        rows: method -> `Row`.
        runs: records of the task.
    """

    task: object
    measure: object
    rows: dict
    runs: list

    @classmethod
    def of(cls, runs, task, reference):
        """Findings on the first measure of a task."""
        runs = tables.select(runs, task=task.name)
        rows = tables.rows_of(runs, task, reference)
        return cls(task, task.measures[0], {r.method: r for r in rows}, runs)

    def on(self, measure):
        """The same on another measure."""
        task = dataclasses.replace(self.task, measures=(measure,))
        return self.of(self.runs, task, OURS)

    @property
    def ours(self):
        """QP-SBGD: mean and standard error."""
        return self.value(OURS)

    @property
    def seeds(self):
        """Number of fresh seeds of QP-SBGD."""
        return len(self.rows[OURS].values[self.measure.key])

    def value(self, method):
        """Mean and standard error."""
        return tables.row_text(self.rows[method], self.measure)

    def mean(self, method):
        """Mean."""
        # Without the standard error, but with its number of decimals.
        text = self.value(method)
        unit = " %" if self.measure.percent else ""
        return text.split(" +- ")[0].removesuffix(unit) + unit

    def p(self, method):
        """`p = 0.010`."""
        return p_text(self.rows[method].comparison.p)

    def with_p(self, method):
        """`Bop (79.4 %, p = 0.010)`."""
        return f"{name_of(method)} ({self.mean(method)}, {self.p(method)})"

    def binary(self, verdict=None):
        """Other binary methods, best first; without solvers on the host.

        Args:
            verdict: keep those with this verdict; `None` keeps all.
        """
        rows = [
            row
            for row in results_page.binary_methods(self.rows.values(), OURS)
            if row.method not in results_page.ON_HOST
            and verdict in (None, self.verdict(row.method))
        ]
        methods = [row.method for row in rows]
        return sorted(methods, key=self.score, reverse=True)

    def score(self, method):
        """Returns the mean, negated if lower is better."""
        return self.measure.sign * self._mean_and_error(method)[0]

    def error(self, method):
        """Returns the standard error."""
        return self._mean_and_error(method)[1]

    def _mean_and_error(self, method):
        values = self.rows[method].values[self.measure.key].values()
        return statistics.mean_and_error(list(values))

    def best_other(self):
        """The best other binary method; see `results_page.best_other`."""
        rows = list(self.rows.values())
        return results_page.best_other(rows, OURS, self.measure).method

    def verdict(self, method):
        """Returns whether we are "ahead", "behind", a "tie" or "not tested"."""
        return _FROM_OUR_SIDE.get(self.rows[method].verdict, "not tested")

    def tied(self, one, other):
        """True if a paired test shows no difference between two methods."""
        first, second = (
            self.rows[method].values[self.measure.key]
            for method in (one, other)
        )
        return statistics.paired_test(first, second).p >= statistics.LEVEL

    def at_edge(self, method):
        """`"lowest"` or `"highest"` if the chosen rate ends its grid."""
        tuning = tables.select(self.runs, method=method, stage="tuning")
        grid = [run["configuration"] for run in tuning]
        chosen = self.rows[method].configuration
        return statistics.edge(chosen, grid, "rate") if grid else None

    def sentences(self):
        """Returns whom we are ahead of, tied with and behind."""
        found = []
        for verdict, start in (("ahead", "Ahead of"), ("behind", "Behind")):
            methods = self.binary(verdict)
            if methods:
                found.append(f"{start} {self.listing(methods)}.")
        ties = self.binary("tie")
        if ties:
            lowest = min(self.rows[m].comparison.p for m in ties)
            at_least = p_text(lowest).replace("=", ">=")
            if len(ties) == 1:
                at_least = p_text(lowest)
            text = joined(self.with_means(ties))
            found.insert(1, f"Tied with {text}; {at_least}.")
        return " ".join(found)

    def listing(self, methods):
        """Methods with means and p-values; those with p < 0.001 share it."""
        clear = [m for m in methods if self.p(m) == p_text(0.0)]
        parts = []
        if len(clear) < len(methods):
            others = [self.with_p(m) for m in methods if m not in clear]
            parts.append(joined(others))
        if clear:
            also = "and of " if parts else ""
            text = joined(self.with_means(clear))
            parts.append(f"{also}{text}, {p_text(0.0)}")
        return ", ".join(parts)

    def with_means(self, methods):
        """Methods, best first, with their means; see `names_of`."""
        kinds = [m for m in methods if m in BINARY_CONNECT]
        texts = []
        for method in methods:
            if len(kinds) < len(BINARY_CONNECT) or method not in kinds:
                texts.append(f"{name_of(method)} ({self.mean(method)})")
            elif method == kinds[0]:
                low, high = (self.mean(m) for m in (kinds[0], kinds[-1]))
                if self.measure.higher_is_better:  # the best comes first
                    low, high = high, low
                low = low.removesuffix(" %")
                texts.append(f"{ALL_BINARY_CONNECT} ({low} to {high})")
        return texts


def names_of(methods):
    """Methods in running text; all forms of BinaryConnect are one entry."""
    if {*BINARY_CONNECT} <= {*methods}:
        others = [m for m in methods if m not in BINARY_CONNECT]
        return joined([ALL_BINARY_CONNECT, *map(name_of, others)])
    return joined([name_of(method) for method in methods])


def name_of(method):
    """A method in running text."""
    if method in BINARY_CONNECT:
        return method.replace(" (", " with ").removesuffix(")")
    return NAMES.get(method, method)


def p_text(p):
    """`p = 0.010`, `p < 0.001`."""
    text = tables.p_text(p)
    return f"p < {text[1:]}" if text.startswith("<") else f"p = {text}"
