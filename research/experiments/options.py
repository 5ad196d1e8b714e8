"""What the experiments receive and return: options and descriptions."""

import dataclasses
import itertools
from collections.abc import Callable

from research.engine import task
from research.engine.methods import METHODS
from research.engine.methods import grids
from research.engine.statistics import TEST_ACCURACY
from research.engine.statistics import TEST_LOSS
from research.engine.statistics import TRAIN_LOSS

HOST = ("gurobi", "dwave")
# Host solvers take hours, so they run only on request.
DEFAULT = tuple(key for key in METHODS if key not in HOST)
# Most tasks have classes of about the same size.
BALANCED = tuple(key for key in METHODS if key != "constant")
# `ridge` is slow for wide layers. The ablation has it as a solver.
WIDE = tuple(key for key in DEFAULT if key in BALANCED and key != "ridge")
LOSSES = ("mean", "sum")
# BinaryConnect is SGD there.
PAPER_METHODS = ("native", "sgd", "signsgd", "proxquant")
# `--quick` runs all methods on the smallest task, and these on all others.
QUICK_TASK = "logistic"
QUICK_METHODS = ("native", "adam")
FIGURE_ONLY = {METHODS["native"].label: "figure only"}


def bop(rates, low, high, number, below=0):
    """Returns pairs of an averaging rate and a threshold, see `grids`."""
    thresholds = spread(low, high, number, below)
    return list(itertools.product(rates, thresholds))


def spread(low, high, number, below=0, above=0):
    """Returns numbers from `low` to `high` at equal ratios, with two digits.

    Args:
        low, high: Floats. The first grid from which a task was tuned.
        number: Integer. Size of this grid.
        below, above: Integers. How many numbers to add at the same ratio below
            `low` and above `high`, because some method chose an end.
    """
    ratio = (high / low) ** (1 / (number - 1))
    powers = range(-below, number + above)
    return tuple(float(f"{low * ratio**k:.2g}") for k in powers)


def usual_grids(
    rates,
    sgd,
    prox,
    thresholds,
    steps,
    bop_rates=(0.03, 0.1),
    more=0,
    summed=1,
    **others,
):
    """Returns eight configurations of each method, see `grids`.

    Args:
        rates, sgd, prox, thresholds: Pairs of the lowest and the highest
            number. `rates` are those of QP-SBGD, signSGD and Adam.
        steps: Integer. Number of steps of a run.
        bop_rates: Pair of averaging rates of Bop.
        more: Integer. Number of configurations beyond these, where some method
            chose an end.
        summed: Integer. Number of rows over which the loss is a sum, see
            `Options.summed`. The rates of SGD and ProxQuant are divided by it.
        **others: Further arguments of `grids`.
    """
    rates = spread(*rates, 8, above=more)
    return grids(
        qp=rates,
        sign=rates,
        adam=rates,
        sgd=spread(*(rate / summed for rate in sgd), 8, above=more),
        prox=spread(*(rate / summed for rate in prox), 4, below=more // 2),
        bop=bop(bop_rates, *thresholds, 4, below=more // 2),
        steps=steps,
        **others,
    )


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `python -m research reproduce`.

    Attributes:
        quick: Boolean. Short runs with few configurations and seeds, to check
            that everything works.
        paper: Boolean. Uses the paper's settings where it states them.
        loss: `"mean"` or `"sum"` over the rows of a batch. The paper does not
            say which. Other settings use the mean.
        seeds: Integer (optional). Number of fresh seeds. `None` uses the number
            of each task.
        methods: Tuple of keys of `METHODS`. If it is empty, `methods_of`
            returns those of a task.
        data_dir: String (optional). Folder of the data sets, see `datasets`.
    """

    quick: bool = False
    paper: bool = False
    loss: str = "mean"
    seeds: int | None = None
    methods: tuple = ()
    data_dir: str | None = None

    @property
    def output_scale(self):
        """The `output_scale` of the binary layers."""
        return None if self.paper else "fan_in"

    def summed(self, batch):
        """Returns the number of rows of a batch over which the loss is a sum.

        It is 1 if the loss is a mean.
        """
        return batch if self.loss == "sum" else 1

    @property
    def rule(self):
        """The `rule` of QP-SBGD."""
        return "paper" if self.paper else "averaged"

    def methods_of(self, task):
        """Returns the keys of the methods to run on a task."""
        keys = self.methods or DEFAULT
        if not self.methods and self.quick and task.name != QUICK_TASK:
            keys = QUICK_METHODS
        elif not self.methods and self.paper:
            keys = PAPER_METHODS
        return tuple(k for k in METHODS if k in keys and k in task.methods)

    def method(self, key):
        """Returns a `Method`. QP-SBGD has the rule to use."""
        method = METHODS[key]
        if self.paper and method.backend is not None:
            return dataclasses.replace(method, rule=self.rule)
        return method


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(task.Task):
    """A task of an experiment, with its table and its figure.

    Attributes:
        title: heading.
        prepare: function of a data folder that is called once before the
            processes start. It downloads data and fills caches.
        grids: dict that maps keys of methods to lists of configurations. All
            methods that are tuned have lists of the same length.
        variants: list of pairs of a `Method` and its grid, in place of
            `methods` and `grids`.
        methods: keys of the methods that run in reasonable time.
        tuning_seeds, fresh_seeds: numbers of seeds.
        host_seeds: number of fresh seeds for host solvers.
        measures: measures in the table. Methods are compared by the first.
        curves: measures that are drawn over epochs.
        paper: dict that maps methods to the paper's value of the first measure:
            a number, a range `(low, high)`, or text such as "figure only".
        kind: `"curves"` for methods over epochs, `"bars"` for methods without
            epochs, `"cells"` for methods over two settings of which none is
            chosen.
    """

    title: str
    grids: dict
    prepare: Callable | None = None
    variants: tuple = ()
    methods: tuple = BALANCED
    tuning_seeds: int = 3
    fresh_seeds: int = 10
    host_seeds: int = 3
    measures: tuple = (TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS)
    curves: tuple = (TEST_ACCURACY, TRAIN_LOSS)
    paper: dict = dataclasses.field(default_factory=lambda: FIGURE_ONLY)
    kind: str = "curves"


@dataclasses.dataclass(frozen=True)
class Description:
    """The tables and figures of an experiment.

    Attributes:
        name: folder of its records.
        title: heading.
        tasks: tuple of `Task`.
    """

    name: str
    title: str
    tasks: tuple
