"""Which part of the averaged rule earns what?

Every variant changes one part of the default, and is tuned on its own. The
variants without averages show what the row weights earn: `rule="paper"` divides
each row by its squared norm, and the other one weighs all rows alike. Without
couplings, the states are the signs of the averaged gradient: the rule is Signum
with a look ahead and with our step size, and the difference from the default is
what the couplings are worth.
"""

import dataclasses

from research.engine.methods import METHODS
from research.engine.methods import Method
from research.engine.methods import grid
from research.experiments.options import spread
from research.experiments.tasks import adult
from research.experiments.tasks import citation
from research.experiments.tasks import mnist_pairs

NAME = "ablation"
# Label, settings, backend.
VARIANTS = (
    ("no momentum", {"momentum": 0.0}, "native"),
    ("covariance of one batch", {"covariance_decay": 0.0}, "native"),
    ("no averages", {"momentum": 0.0, "covariance_decay": 0.0}, "native"),
    # Around the default of 10.
    ("kappa 3", {"kappa": 3.0}, "native"),
    ("kappa 30", {"kappa": 30.0}, "native"),
    ("solver: ridge", {}, "ridge"),
    ("no couplings (Signum with our step size)", {}, "sign"),
)
# For layers of at most 16 inputs.
SMALL_VARIANTS = (
    ("solver: exact", {}, "exact"),
    ("solver: simulated annealing", {}, "simulated_annealing"),
)


def variants(rates, real_rates=(None,), more=(), is_wide=False):
    """Returns the default rule and its variants, with their grids.

    Args:
        rates: learning rates.
        real_rates: learning rates of all other variables.
        more: further variants.
        is_wide: whether layers are too wide for the rule of the paper, which
            has no blocks.
    """
    paper = dataclasses.replace(
        METHODS["paper"], label="no averages, row weights of the paper"
    )
    found = [(METHODS["native"], grid(rates, real_rates))]
    if not is_wide:
        found.append((paper, grid(rates, real_rates)))
    for label, settings, backend in (*VARIANTS, *more):
        method = Method("native", label, backend)
        found.append((method, grid(rates, real_rates, **settings)))
    return tuple(found)


def tasks(options):
    """Returns the tasks: small layers, deep, and a graph."""
    (pair, *_) = mnist_pairs.tasks(options)
    (deep,) = adult.ten_layer_tasks(options)
    graph = citation.binary_task(options, citation.CORA_BINARY, citation.CORA)
    real = (citation.REAL_RATE,)
    settings = (
        (pair, variants(spread(0.003, 1.0, 4, above=1), more=SMALL_VARIANTS)),
        (deep, variants(spread(0.0005, 0.02, 4, below=1))),
        (
            graph,
            variants(spread(0.001, 0.1, 4, above=3), real, is_wide=True),
        ),
    )
    return [
        dataclasses.replace(
            task,
            name=f"ablation-{task.name}",
            variants=found,
            methods=(),
            grids={},
            fresh_seeds=10,
            tuning_seeds=5,
            paper={},
        )
        for task, found in settings
    ]
