"""The result of `kq.compare`."""

import os
from typing import Any

from keras_qpsbgd.compare.methods import KEYS
from keras_qpsbgd.compare.methods import METHODS
from keras_qpsbgd.compare.report import canvas
from keras_qpsbgd.compare.report import figures
from keras_qpsbgd.compare.report import tables
from keras_qpsbgd.compare.report.protocol import TEST_ACCURACY
from keras_qpsbgd.compare.report.protocol import TEST_LOSS
from keras_qpsbgd.compare.report.protocol import TRAIN_LOSS
from keras_qpsbgd.compare.report.protocol import TaskReport


class Comparison:
    """The result of `kq.compare`: numbers, a table and a figure.

    `print(comparison)` prints the table, and a notebook renders it. Its columns
    are

    - `test accuracy` (not if a `loss` was passed), `test loss` and `training
      loss`: mean and standard error over the seeds,
    - `difference`: the mean of the method minus the mean of the reference, in
      the first of these measures,
    - `p`: the p-value of the paired t-test of this difference,
    - `verdict`: `better` or `worse` than the reference if p < 0.05, otherwise
      `tie`; `not tested` if there is no p-value, for example with one seed,
    - `configuration`: the chosen learning rates.

    All attributes refer to a method by its key in `methods`, such as
    `"native"`.

    Attributes:
        reference: String. The method that the others are compared with.
        results: Dictionary. Maps each method to a dict `{seed: value}` of its
            test accuracy, or of its test loss if a `loss` was passed.
        p_values: Dictionary. Maps each method except the reference to the
            p-value of a two-sided paired t-test against the reference. NaN with
            a single seed.
        chosen: Dictionary. Maps each method to the configuration with the best
            mean on the validation data.
        runs: List of dicts, one for each run, with the keys `"task"` (the
            `name` of the comparison), `"method"`, `"stage"` (`"tuning"` or
            `"fresh"`), `"configuration"`, `"seed"`, `"curves"` (dict of lists,
            one value per epoch) and `"result"` (dict of the values after the
            last epoch).

    Example:
        ```python
        comparison = kq.compare(build_model, train, validation, test)
        print(comparison)
        comparison.chosen["native"]  # {"rate": 0.02}
        comparison.plot("curves.png")
        ```
    """

    def __init__(
        self,
        name: str,
        runs: list[dict[str, Any]],
        reference: str,
        is_class: bool,
    ) -> None:
        """Creates the result. `kq.compare` calls this.

        Args:
            name: String. Title of the table and the figure.
            runs: List of records, see `keras_qpsbgd.compare.records`.
            reference: String. Key of a method.
            is_class: Boolean. Whether the runs have accuracies.
        """
        self.runs = [{**run, "method": KEYS[run["method"]]} for run in runs]
        self.reference = reference
        self._records = runs
        self._label = METHODS[reference].label
        shown = (TEST_ACCURACY, TEST_LOSS) if is_class else (TEST_LOSS,)
        self._task = TaskReport(
            name=name,
            title=name,
            measures=(*shown, TRAIN_LOSS),
            curves=(shown[0], TRAIN_LOSS),
            paper={},
        )
        self._rows = tables.rows_of(runs, self._task, self._label)
        rows = {KEYS[row.method]: row for row in self._rows}
        first = shown[0].key
        self.chosen = {key: row.configuration for key, row in rows.items()}
        self.results = {key: row.values[first] for key, row in rows.items()}
        self.p_values = {
            key: row.comparison.p
            for key, row in rows.items()
            if row.comparison is not None
        }

    def table(self) -> str:
        """Returns the table as text with at most 80 columns."""
        return tables.text_table(*self._table())

    def markdown(self) -> str:
        """Returns the table in Markdown."""
        return tables.markdown_table(*self._table())

    def plot(self, ax: Any = None) -> Any:
        """Plots means and standard errors over the epochs.

        Args:
            ax: Path or Matplotlib axes (optional). A path is the file to which
                the new figure is saved. On axes, only the test accuracy is
                drawn (the test loss if a `loss` was passed). Defaults to
                `None`, which creates a new figure.

        Returns:
            The figure, or `ax` if it is axes.

        Raises:
            ImportError: If Matplotlib is not installed.
        """
        if hasattr(ax, "plot"):
            figures.draw_curves(self._records, self._task, self._label, ax)
            return ax
        figure = figures.figure_of(self._records, self._task, self._label)
        if ax is not None:
            canvas.save(figure, os.fspath(ax))
        return figure

    def _table(self):
        """Returns the header and the rows of the table."""
        measures = self._task.measures
        head = [
            "method",
            *(measure.label for measure in measures),
            "seeds",
            "difference",
            "p",
            "verdict",
            "configuration",
        ]
        body = [
            [
                row.method,
                *(tables.row_text(row, measure) for measure in measures),
                str(len(row.values[measures[0].key])),
                *self._compared(row),
                tables.configuration_text(row.configuration),
            ]
            for row in self._rows
        ]
        return head, body

    def _compared(self, row):
        if row.comparison is None:
            return ["", "", "reference"]
        # A `Row` has the reference minus the method.
        difference = -row.comparison.difference
        return [
            tables.difference_text(difference, self._task.measures[0]),
            tables.p_text(row.comparison.p),
            row.verdict,
        ]

    def __repr__(self):
        return self.table()

    def _repr_markdown_(self):
        return self.markdown()
