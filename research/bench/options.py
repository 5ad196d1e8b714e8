"""Options of a benchmark run."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a benchmark run, shared by all suites.

    Attributes:
        quick: Boolean. Whether to run about ten times faster, with results that
            are too rough to report.
        seeds: Integer (optional). Number of training runs per method, for
            suites that train. Defaults to the number of the suite.
        data_dir: Path (optional). Folder of the datasets, see `datasets.files`.
        only: Names of the rows and columns to measure. If it contains no row,
            all rows are measured, and if it contains no column, all columns.
        device: String. `"cpu"` or `"gpu"`.
        output: Folder of the results, for suites that can be resumed.
    """

    quick: bool = False
    seeds: int | None = None
    data_dir: str | None = None
    only: tuple = ()
    device: str = "cpu"
    output: str = "."

    def wanted(self, names):
        """Returns the `names` that are in `only`, or all if none is."""
        names = list(names)
        return [name for name in names if name in self.only] or names
