"""What a user asked for."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `python -m research reproduce`.

    Attributes:
        quick: short runs, few configurations and seeds: does it work?
        paper: everything that the paper states, as it states it.
        seeds: number of fresh seeds; `None` is that of each task.
        backend: what solves QP-SBGD's QUBOs instead of `native`.
        methods: keys of methods.
        data_dir: folder of the data sets, see `datasets`.
    """

    quick: bool = False
    paper: bool = False
    seeds: int | None = None
    backend: str | None = None
    methods: tuple = ()
    data_dir: str | None = None

    @property
    def output_scale(self):
        """`output_scale` of the binary layers."""
        return None if self.paper else "fan_in"

    @property
    def scale(self):
        """`gradient_scale` of QP-SBGD."""
        return "raw" if self.paper else "max"
