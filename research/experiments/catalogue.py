"""All experiments, by name."""

import dataclasses
from collections.abc import Callable

from research.experiments.tasks import adult
from research.experiments.tasks import citation
from research.experiments.tasks import direction
from research.experiments.tasks import karate
from research.experiments.tasks import logistic
from research.experiments.tasks import mnist
from research.experiments.tasks import mnist_pairs


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What is trained, and what is said about it; functions of `Options`.

    `draw`, if there is one, draws further pictures: a function of options,
    folder, and the configuration chosen for QP-SBGD on the first task.
    What is not `in_paper` has no form that the paper states.
    """

    tasks: Callable
    report: Callable
    draw: Callable | None = None
    in_paper: bool = True


EXPERIMENTS = {
    logistic.NAME: Experiment(logistic.tasks, logistic.report),
    adult.TWO_LAYERS: Experiment(adult.two_layer_tasks, adult.two_layer_report),
    adult.TEN_LAYERS: Experiment(adult.ten_layer_tasks, adult.ten_layer_report),
    adult.SMALL: Experiment(adult.small_tasks, adult.small_report),
    mnist_pairs.NAME: Experiment(
        mnist_pairs.tasks, mnist_pairs.report, mnist_pairs.draw
    ),
    karate.NAME: Experiment(karate.tasks, karate.report),
    citation.CORA: Experiment(citation.cora_tasks, citation.cora_report),
    citation.PUBMED: Experiment(citation.pubmed_tasks, citation.pubmed_report),
    direction.NAME: Experiment(direction.tasks, direction.report),
    mnist.NAME: Experiment(mnist.tasks, mnist.report, in_paper=False),
}
