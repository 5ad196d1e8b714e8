"""The measures, tables and figures of an experiment.

These classes contain only data. The experiments create them, and `tables`,
`figures` and `results_page` read them together with the records of the runs.

Example:

    report = ExperimentReport(
        name="adult-3layer",
        title="Adult, three layers",
        setting="Fifteen features, 32 batches of 16, two epochs.",
        open_choices=("The paper does not name the features: the first 15.",),
        tasks=(
            TaskReport(
                name="adult-3layer",
                title="15-10-1",
                measures=(TEST_ACCURACY, TEST_LOSS),
                curves=(TRAIN_LOSS,),
                paper={"QP-SBGD": "figure only"},
            ),
        ),
    )
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Measure:
    """A measure in a table or a figure.

    Attributes:
        key: name in `result` and `curves` of a record.
        label: name in tables and figures.
        higher_is_better: whether higher values are better.
        percent: whether to show a fraction such as 0.8 as 80 %.
    """

    key: str
    label: str
    higher_is_better: bool
    percent: bool = False

    @property
    def sign(self):
        """+1 if higher values are better, else -1."""
        return 1 if self.higher_is_better else -1


TRAIN_LOSS = Measure("train_loss", "training loss", False)
TRAIN_ACCURACY = Measure(
    "train_accuracy", "training accuracy", True, percent=True
)
VALIDATION_LOSS = Measure("validation_loss", "validation loss", False)
VALIDATION_ACCURACY = Measure(
    "validation_accuracy", "validation accuracy", True, percent=True
)
TEST_LOSS = Measure("test_loss", "test loss", False)
TEST_ACCURACY = Measure("test_accuracy", "test accuracy", True, percent=True)

# The method whose weights are not binary. It is not a baseline; it shows what
# binary weights cost.
REAL_WEIGHTS = "real weights"

# Methods over epochs; methods without epochs; one method over two settings
# without choosing a configuration.
KINDS = ("curves", "bars", "cells")


@dataclasses.dataclass(frozen=True)
class TaskReport:
    """One table and one figure.

    Attributes:
        name: `task` of its records.
        title: heading.
        measures: measures in the table. Methods are compared by the first.
        curves: measures that are drawn over epochs.
        paper: dict that maps methods to the paper's value of the first measure:
            a number, a range `(low, high)`, or text such as "figure only".
        literature: dict that maps labels to values of the first measure that
            were published elsewhere.
        kind: one of `KINDS`.
        chosen_by: measure by which configurations were chosen.
        methods: labels of all methods. The page lists those without runs.
    """

    name: str
    title: str
    measures: tuple
    curves: tuple
    paper: dict
    literature: dict = dataclasses.field(default_factory=dict)
    kind: str = "curves"
    chosen_by: Measure = VALIDATION_ACCURACY
    methods: tuple = ()

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(
                f"`kind` must be one of {', '.join(KINDS)}. "
                f"Received: {self.kind}"
            )
        if not self.measures:
            raise ValueError("`measures` must not be empty. Received: ()")


@dataclasses.dataclass(frozen=True)
class ExperimentReport:
    """A section of the page of results.

    Attributes:
        name: folder of its records.
        title: heading.
        setting: data, network and steps in two or three sentences.
        open_choices: sentences on what the paper does not specify and what was
            chosen instead.
        tasks: tuple of `TaskReport`.
        pictures: pairs of a file name in the folder and a caption.
        reference_method: the method that the others are compared with.
        backend: backend that solved the QUBOs, `None` for `native`.
    """

    name: str
    title: str
    setting: str
    open_choices: tuple
    tasks: tuple
    pictures: tuple = ()
    reference_method: str = "QP-SBGD"
    backend: str | None = None
