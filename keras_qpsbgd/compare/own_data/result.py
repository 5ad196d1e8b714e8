"""What `kq.compare` returns."""

import os
from typing import Any

from keras_qpsbgd.compare.methods import METHODS
from keras_qpsbgd.compare.report import canvas
from keras_qpsbgd.compare.report import figures
from keras_qpsbgd.compare.report import tables
from keras_qpsbgd.compare.report.protocol import TEST_ACCURACY
from keras_qpsbgd.compare.report.protocol import TEST_LOSS
from keras_qpsbgd.compare.report.protocol import TRAIN_LOSS
from keras_qpsbgd.compare.report.protocol import TaskReport


class Comparison:
    """The runs of a comparison, as numbers, as a table and as a figure.

    `print` shows the table, a notebook renders it.

    Attributes:
        runs: list of dicts, one for each run: `method`, `stage` ("tuning" or
            "fresh"), `configuration`, `seed`, `curves` over epochs, `result`.
        chosen: dict, method -> configuration that was best on validation data.
        results: dict, method -> {seed: test accuracy, or test loss if a `loss`
            was given}.
        p_values: dict, method -> p of the paired t-test against the reference,
            which is left out; NaN with a single seed.
        reference: the method that all others are compared with.

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
        """See `kq.compare`.

        Args:
            name: title of table and figure.
            runs: records.
            reference: key of a method.
            is_class: whether there are accuracies.
        """
        self.runs = runs
        self.reference = reference
        self._label = METHODS[reference].label
        shown = (TEST_ACCURACY, TEST_LOSS) if is_class else (TEST_LOSS,)
        self._task = TaskReport(
            name=name,
            title=name,
            measures=(*shown, TRAIN_LOSS),
            curves=(shown[0], TRAIN_LOSS),
            paper=None,
        )
        keys = {method.label: key for key, method in METHODS.items()}
        rows = tables.rows_of(runs, self._task, self._label)
        first = shown[0].key
        self.chosen = {keys[row.method]: row.configuration for row in rows}
        self.results = {keys[row.method]: row.values[first] for row in rows}
        self.p_values = {
            keys[row.method]: row.comparison.p
            for row in rows
            if row.comparison is not None
        }

    def table(self) -> str:
        """The table as text, at most 80 columns wide."""
        return tables.terminal(self.runs, self._task, self._label)

    def markdown(self) -> str:
        """The table in Markdown."""
        return tables.markdown(self.runs, self._task, self._label)

    def plot(self, ax: Any = None) -> Any:
        """Draws means and standard errors over epochs.

        Args:
            ax: `None` (default) makes a new figure; a path makes one and writes
                it there; axes of matplotlib are drawn on, the test scores
                alone.

        Returns:
            The figure, or `ax` if axes were given.

        Raises:
            ImportError: matplotlib is not installed.
        """
        if hasattr(ax, "plot"):
            figures.draw_curves(self.runs, self._task, self._label, ax)
            return ax
        figure = figures.figure_of(self.runs, self._task, self._label)
        if ax is not None:
            canvas.save(figure, os.fspath(ax))
        return figure

    def __repr__(self):
        return self.table()

    def _repr_markdown_(self):
        return self.markdown()
