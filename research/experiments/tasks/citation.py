"""Graph networks on the citation graphs Cora and PubMed."""

import dataclasses

import numpy as np
import tensorflow as tf

from keras_qpsbgd import layers
from keras_qpsbgd.comparison.methods import grids
from keras_qpsbgd.comparison.statistics import TEST_ACCURACY
from keras_qpsbgd.comparison.statistics import TRAIN_LOSS
from keras_qpsbgd.comparison.statistics import VALIDATION_ACCURACY
from keras_qpsbgd.comparison.task import Split
from research import datasets
from research.experiments.options import DEFAULT
from research.experiments.options import Task
from research.experiments.tasks import networks
from research.experiments.tasks.networks import node_batches
from research.experiments.tasks.networks import sparse_tensor

CORA = "cora"
PUBMED = "pubmed"
ABLATION = "cora-ablation"
OPTIONS = "cora-options"  # records of version 0.1
TITLES = {
    CORA: "Cora, binary graph network",
    PUBMED: "PubMed, binary graph network",
    ABLATION: "Cora, learning rate and batches per epoch",
    OPTIONS: "Cora, with momentum, hold or mean of reads",
}
MEASURES = (TEST_ACCURACY, VALIDATION_ACCURACY, TRAIN_LOSS)
WEIGHT_DECAY = 5e-4  # of the encoder's first layer, as in Kipf and Welling
ENCODER = (32, 10)
HIDDEN = 16
BATCHES = 4  # of an epoch
PAPER_BATCHES = 16
STEPS = {CORA: 400, PUBMED: 200}
FROZEN_RATES = (
    *(0.001, 0.002, 0.003, 0.005, 0.01, 0.02),
    *(0.03, 0.05, 0.07, 0.1, 0.2, 0.3),
)


class Citation:
    """A citation graph, reduced to the nodes that each split needs."""

    def __init__(self, name, data_dir):
        graph = datasets.citation(name, data_dir, download=True)
        self.num_features = graph.num_features
        self.num_classes = graph.num_classes
        # Sparse features are faster on Cora, but not on PubMed.
        entries = graph.num_nodes * graph.num_features
        self.is_sparse = graph.x.nnz < 0.05 * entries
        a = layers.BinaryGraphConv.preprocess(graph.a)
        self.splits = {
            "train": self._part(graph, a, graph.train_mask),
            "validation": self._part(graph, a, graph.val_mask),
            "test": self._part(graph, a, graph.test_mask),
        }

    def _part(self, graph, a, mask):
        """Returns the subgraph that two layers need to classify some nodes.

        The rows of all neighbors are complete, so logits and gradients equal
        those of the whole graph.
        """
        reached = mask.copy()
        for _ in range(2):
            reached = reached | (a @ reached > 0)
        kept = np.flatnonzero(reached)
        position = np.cumsum(reached) - 1
        x, a = graph.x[kept], a[kept][:, kept]
        x = sparse_tensor(x) if self.is_sparse else tf.constant(x.toarray())
        rows = position[np.flatnonzero(mask)]
        return Split((x, sparse_tensor(a)), rows, graph.y[kept])


def _task(options, name, graph, steps, **settings):
    batches = PAPER_BATCHES if options.paper else BATCHES
    every = 4

    def cut(seed, rows, stage, batches=batches):
        return node_batches(
            seed, rows, batches, steps, every, one_draw=options.paper
        )

    return Task(
        name=name,
        title=TITLES[name],
        load=lambda data_dir: Citation(graph, data_dir),
        prepare=lambda data_dir: datasets.citation(
            graph, data_dir, download=True
        ),
        splits=lambda source, seed, stage: dict(source.splits),
        batches=cut,
        build=lambda source, weights: networks.graph_network(
            source.num_features,
            source.num_classes,
            weights,
            options.output_scale,
            HIDDEN,
            ENCODER,
            source.is_sparse,
        ),
        reported=(VALIDATION_ACCURACY,),
        decay=False,
        weight_decay=WEIGHT_DECAY,
        is_graph=True,
        **settings,
    )


def _grids(steps):
    """Six configurations for each method."""
    return grids(
        qp=(0.005, 0.01, 0.02),
        sign=(0.0003, 0.001, 0.003),
        adam=(0.0003, 0.001, 0.003),
        sgd=(0.03, 0.1, 0.3),
        prox=(1.0, 3.0, 10.0),
        prox_reaches=(3.0,),
        bop=((0.01, 1e-4), (0.01, 1e-3), (0.01, 1e-2)),
        steps=steps,
        real_rates=(0.01, 0.03),
        frozen_real_rates=(0.003, 0.005, 0.01, 0.02, 0.03, 0.1),
    )


def _wider_grids(steps):
    """Twelve configurations for each method.

    Those of `_grids`, one step more at the end that the method chose on Cora,
    and a third rate of the encoder. `ridge` shares its rates with QP-SBGD.
    """
    return grids(
        qp=(0.005, 0.01, 0.02, 0.04),
        sign=(0.0001, 0.0003, 0.001, 0.003),
        adam=(0.0001, 0.0003, 0.001, 0.003),
        sgd=(0.01, 0.03, 0.1, 0.3),
        prox=(0.3, 1.0, 3.0, 10.0),
        prox_reaches=(3.0,),
        bop=((0.01, 1e-4), (0.01, 1e-3), (0.01, 1e-2), (0.01, 1e-1)),
        steps=steps,
        real_rates=(0.01, 0.03, 0.1),
        frozen_real_rates=FROZEN_RATES,
    )


def cora_tasks(options):
    steps = STEPS[CORA] // (10 if options.quick else 1)
    main = _task(
        options,
        CORA,
        CORA,
        steps,
        measures=MEASURES,
        literature={"Bi-GCN, width 16": 0.770, "Bi-GCN, width 64": 0.812},
        grids=_grids(steps) if options.paper else _wider_grids(steps),
        methods=(*DEFAULT, "gurobi"),
    )
    cells = [
        {"rate": rate, "real_rate": 0.01, "batches": batches}
        for batches in (16, 4, 1)
        for rate in (0.001, 0.005, 0.02, 0.1)
    ]
    ablation = _task(
        options,
        ABLATION,
        CORA,
        steps,
        measures=(TEST_ACCURACY,),
        curves=(),
        kind="cells",
        grids={"native": cells},
        methods=("native",),
        fresh_seeds=6,
        ablation=True,
    )
    found = [main, ablation]
    if options.is_old and not options.paper:
        found.append(
            dataclasses.replace(
                main, name=OPTIONS, title=TITLES[OPTIONS], paper={}
            )
        )
    return found


def pubmed_tasks(options):
    steps = STEPS[PUBMED] // (10 if options.quick else 1)
    return [
        _task(
            options,
            PUBMED,
            PUBMED,
            steps,
            measures=MEASURES,
            literature={"Bi-GCN, width 16": 0.765, "Bi-GCN, width 64": 0.782},
            grids=_grids(steps),
            methods=DEFAULT,
        )
    ]
