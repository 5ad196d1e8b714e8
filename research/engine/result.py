"""The result of `kq.compare`."""

import os
from typing import Any

from research.engine import figures
from research.engine import tables
from research.engine.methods import KEYS
from research.engine.methods import METHODS
from research.engine.statistics import TEST_ACCURACY
from research.engine.statistics import TEST_LOSS
from research.engine.statistics import TRAIN_LOSS


class Comparison:
    """The result of `kq.compare`: numbers, a table and a figure.

    `print(comparison)` prints the table, and a notebook renders it. These are
    its columns:

    - `test accuracy` (unless a `loss` was passed), `test loss` and `training
      loss`: mean and standard error over the seeds.
    - `difference`: the mean of the method minus the mean of the reference, for
      the first of these measures.
    - `p`: the p-value of a paired t-test of this difference.
    - `verdict`: `better` or `worse` than the reference if p < 0.05, otherwise
      `tie` (no significant difference). `not tested` if there is no p-value,
      for example with one seed.
    - `configuration`: the chosen learning rates.

    All attributes refer to a method by its key in `methods`, such as
    `"native"`.

    Attributes:
        reference: String. The method that the others are compared with.
        results: Dictionary. Maps each method to a dict `{seed: value}` of its
            test accuracy, or of its test loss if a `loss` was passed.
        p_values: Dictionary. Maps each method except the reference to the
            p-value of a two-sided paired t-test against the reference. It is
            NaN with a single seed.
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
            runs: List of records, see `research.engine.records`.
            reference: String. Key of a method.
            is_class: Boolean. Whether the runs have accuracies.
        """
        self.runs = [{**run, "method": KEYS[run["method"]]} for run in runs]
        self.reference = reference
        self._records = runs
        self._label = METHODS[reference].label
        shown = (TEST_ACCURACY, TEST_LOSS) if is_class else (TEST_LOSS,)
        self._task = tables.TaskReport(
            name=name,
            title=name,
            measures=(*shown, TRAIN_LOSS),
            curves=(shown[0], TRAIN_LOSS),
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
        return tables.text_table(*tables.table_of(self._rows, self._task))

    def markdown(self) -> str:
        """Returns the table in Markdown."""
        return tables.markdown_table(*tables.table_of(self._rows, self._task))

    def plot(self, ax: Any = None) -> Any:
        """Plots means and standard errors over the epochs.

        Args:
            ax: Path or Matplotlib axes (optional). If it is a path, a new
                figure is saved to this file. On axes, only the test accuracy is
                drawn (or the test loss if a `loss` was passed). Defaults to
                `None`, which creates a new figure.

        Returns:
            The figure, or the axes if `ax` is axes.

        Raises:
            ImportError: If Matplotlib is not installed.
        """
        if hasattr(ax, "plot"):
            figures.draw_curves(self._records, self._task, self._label, ax)
            return ax
        figure = figures.figure_of(self._records, self._task, self._label)
        if ax is not None:
            figures.save(figure, os.fspath(ax))
        return figure

    def __repr__(self):
        return self.table()

    def _repr_markdown_(self):
        return self.markdown()
