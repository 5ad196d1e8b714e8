"""Options of the command line."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `python -m research reproduce`.

    Attributes:
        quick: Boolean. Short runs with few configurations and seeds, to check
            that everything works.
        paper: Boolean. Uses the paper's settings where it states them.
        seeds: Integer (optional). Number of fresh seeds. `None` uses the number
            of each task.
        backend: String (optional). Solver for the QUBOs of QP-SBGD. `None` is
            `native`.
        methods: Tuple of keys of `METHODS`.
        data_dir: String (optional). Folder of the data sets, see `datasets`.
    """

    quick: bool = False
    paper: bool = False
    seeds: int | None = None
    backend: str | None = None
    methods: tuple = ()
    data_dir: str | None = None

    @property
    def output_scale(self):
        """The `output_scale` of the binary layers."""
        return None if self.paper else "fan_in"

    @property
    def scale(self):
        """The `gradient_scale` of QP-SBGD."""
        return "raw" if self.paper else "max"
