"""What the experiments receive and return: options and descriptions."""

import dataclasses

from keras_qpsbgd.comparison import methods


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
        is_old: Boolean. Whether the records come from version 0.1, see
            `stored`.
    """

    quick: bool = False
    paper: bool = False
    seeds: int | None = None
    backend: str | None = None
    methods: tuple = ()
    data_dir: str | None = None
    is_old: bool = False

    @property
    def output_scale(self):
        """The `output_scale` of the binary layers."""
        return None if self.paper else "fan_in"

    @property
    def rule(self):
        """The `rule` of QP-SBGD."""
        return "paper" if self.paper else "averaged"

    def method(self, key):
        """Returns a `Method`. QP-SBGD has the rule and the solver to use."""
        method = methods.with_backend(key, self.backend)
        if self.paper and method.backend is not None:
            return dataclasses.replace(method, rule=self.rule)
        return method


@dataclasses.dataclass(frozen=True)
class Description:
    """The tables and figures of an experiment.

    Attributes:
        name: folder of its records.
        title: heading.
        tasks: tuple of `TaskReport`.
        pooled: whether the tasks share measures and seeds, and are also
            compared together.
        reference_method: the method that the others are compared with.
    """

    name: str
    title: str
    tasks: tuple
    pooled: bool = False
    reference_method: str = "QP-SBGD"
