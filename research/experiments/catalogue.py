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
    """An experiment.

    Attributes:
        tasks: function of `Options`; returns a list of `Task`.
        report: function of `Options`; returns an `ExperimentReport`.
        draw: function of the options, the folder and the configuration chosen
            for QP-SBGD on the first task, or `None`. Draws more pictures.
        overview: whether an overview of the first task is drawn (not with
            `--paper`).
        in_paper: whether the paper has this experiment.
    """

    tasks: Callable
    report: Callable
    draw: Callable | None = None
    overview: bool = False
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
    citation.CORA: Experiment(
        citation.cora_tasks, citation.cora_report, overview=True
    ),
    citation.PUBMED: Experiment(citation.pubmed_tasks, citation.pubmed_report),
    direction.NAME: Experiment(direction.tasks, direction.report),
    mnist.NAME: Experiment(mnist.tasks, mnist.report, in_paper=False),
}
