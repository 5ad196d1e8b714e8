"""What a suite is asked for."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a benchmark run, the same for all suites.

    Attributes:
        quick: about ten times shorter; for a first look, not for figures.
        seeds: trainings per method, where the suite trains; `None` is the
            suite's own number.
        data_dir: where data sets are looked for; `None` as in `datasets`.
        only: names of rows and columns of the suite's table to measure; of
            those of which none is named, all are.
        output: folder of the results, for suites that can be resumed.
    """

    quick: bool = False
    seeds: int | None = None
    data_dir: str | None = None
    only: tuple = ()
    output: str = "."

    def wanted(self, names):
        """Those of `names` that are in `only`; all, if none is."""
        names = list(names)
        return [name for name in names if name in self.only] or names
