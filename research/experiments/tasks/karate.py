"""A graph network on the karate club."""

import numpy as np

from keras_qpsbgd import layers
from research import datasets
from research.engine.statistics import TRAIN_ACCURACY
from research.engine.statistics import TRAIN_LOSS
from research.engine.task import TUNING
from research.engine.task import Split
from research.engine.task import random
from research.experiments.options import Task
from research.experiments.options import usual_grids
from research.experiments.tasks import networks
from research.experiments.tasks.networks import node_batches
from research.experiments.tasks.networks import sparse_tensor

NAME = "karate"
STEPS = 150
TRAIN_NODES = 20


class Club:
    """The karate club; features are the six bits of a member's number."""

    def __init__(self, data_dir):
        del data_dir
        graph = datasets.karate(train_per_class=5)
        a = layers.BinaryGraphConv.preprocess(graph.a)
        self.inputs = (graph.x.astype("float32"), sparse_tensor(a))
        self.y = graph.y
        self.train = np.flatnonzero(graph.train_mask)
        self.test = np.flatnonzero(graph.test_mask)

    def splits(self, seed, stage):
        """Returns 20 training members, five of each group, and 14 to test.

        They are the same for all seeds. Otherwise, with only 34 members, one
        seed would validate on test members of another. For tuning, the seed
        draws one of the five members of each group for validation.
        """
        if stage == TUNING:
            groups = [self.train[self.y[self.train] == k] for k in range(4)]
            left_out = random(seed, 2).permuted(groups, axis=1)[:, 0]
            train = np.setdiff1d(self.train, left_out)
            parts = {"train": train, "validation": left_out}
        else:
            parts = {"train": self.train, "test": self.test}
        return {
            name: Split(self.inputs, rows, self.y)
            for name, rows in parts.items()
        }


def tasks(options):
    steps = STEPS // (5 if options.quick else 1)
    return [
        Task(
            name=NAME,
            title="Karate club, 6-8-4",
            load=Club,
            splits=lambda source, seed, stage: source.splits(seed, stage),
            batches=lambda seed, rows, stage: node_batches(
                seed, rows, 1, steps, evaluate_every=3
            ),
            build=lambda source, weights: networks.graph_network(
                6, 4, weights, options.output_scale, hidden=8
            ),
            grids=usual_grids(
                (0.001, 1.0),
                (0.1, 100.0),
                (1.0, 300.0),
                (1e-4, 1e-1),
                steps,
                more=2,
                summed=options.summed(TRAIN_NODES),
            ),
            reported=(TRAIN_ACCURACY, TRAIN_LOSS),
            tuning_seeds=20,
            fresh_seeds=50,
            host_seeds=10,
            decay=not options.paper,
            is_graph=True,
        )
    ]
