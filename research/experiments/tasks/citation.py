"""Graph networks on the citation graphs Cora and PubMed."""

import numpy as np
import tensorflow as tf

from keras_qpsbgd import layers
from research import datasets
from research.engine.methods import grids
from research.engine.statistics import TEST_ACCURACY
from research.engine.statistics import TEST_LOSS
from research.engine.statistics import TRAIN_LOSS
from research.engine.statistics import VALIDATION_ACCURACY
from research.engine.task import Split
from research.engine.task import random
from research.experiments.options import WIDE
from research.experiments.options import Task
from research.experiments.options import bop
from research.experiments.options import spread
from research.experiments.options import usual_grids
from research.experiments.tasks import networks
from research.experiments.tasks.networks import node_batches
from research.experiments.tasks.networks import sparse_tensor

CORA = "cora"
PUBMED = "pubmed"
CORA_BINARY = "cora-binary"
PUBMED_BINARY = "pubmed-binary"
ABLATION = "cora-ablation"
TITLES = {
    CORA: "Cora, binary layers 10-16-7 after a real-valued encoder",
    PUBMED: "PubMed, binary layers 10-16-3 after a real-valued encoder",
    CORA_BINARY: "Cora, all layers binary (1433-16-7), random splits",
    PUBMED_BINARY: "PubMed, all layers binary (500-16-3), random splits",
    ABLATION: "Cora, learning rate and batches per epoch",
}
MEASURES = (TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, VALIDATION_ACCURACY)
WEIGHT_DECAY = 5e-4  # of the encoder's first layer, as in Kipf and Welling
ENCODER = (32, 10)
HIDDEN = 16
BATCHES = 4  # of an epoch
PAPER_BATCHES = 16
STEPS = 200
PAPER_STEPS = {CORA: 400, PUBMED: 200}
# Networks without an encoder.
TRAIN_PER_CLASS = 20
VALIDATION_PER_CLASS = 30
TEST_NODES = 1_000
# Validation on 90 nodes of PubMed has a standard error of 4 points for a seed.
TUNING_SEEDS = 10
MOMENTUM = 0.9  # of batch normalization
REAL_RATE = 0.01


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


class RandomSplits:
    """A citation graph whose splits are drawn at random.

    As in Shchur et al. (2018), 20 nodes of each class train and 30 of each
    class validate. 1,000 of the others test. The first layer multiplies the
    features by the adjacency, which has no weights, so this is done once. Each
    split then needs the features of its nodes and of their neighbors, and the
    rows of the adjacency of its nodes. So batch normalization sees no padding,
    and no node whose neighbors are missing. The number of neighbors depends on
    the seed.
    """

    def __init__(self, name, data_dir):
        graph = datasets.citation(name, data_dir, download=True)
        self.num_features = graph.num_features
        self.num_classes = graph.num_classes
        self._a = layers.BinaryGraphConv.preprocess(graph.a).tocsr()
        self._x = np.asarray((self._a @ graph.x).todense())
        self._y = graph.y
        # Entries are far below 1, since the features of a node sum to 1.
        self._x /= np.sqrt(np.mean(np.square(self._x)))

    def splits(self, seed):
        parts = {"train": [], "validation": [], "test": []}
        ends = [TRAIN_PER_CLASS, TRAIN_PER_CLASS + VALIDATION_PER_CLASS]
        generator = random(seed, 2)
        for kind in range(self.num_classes):
            nodes = generator.permutation(np.flatnonzero(self._y == kind))
            for part, rows in zip(parts.values(), np.split(nodes, ends)):
                part.append(rows)
        parts = {name: np.concatenate(rows) for name, rows in parts.items()}
        parts["test"] = generator.permutation(parts["test"])[:TEST_NODES]
        return {name: self._part(rows) for name, rows in parts.items()}

    def _part(self, rows):
        """Returns what the classification of some nodes needs."""
        marked = np.zeros(len(self._y))
        marked[rows] = 1
        others = np.flatnonzero((self._a @ marked > 0) & (marked == 0))
        kept = np.concatenate([rows, others])
        x = self._x[kept].astype("float32")
        a = self._a[rows][:, kept].toarray().astype("float32")
        return Split((x, a), np.arange(len(rows)), self._y[rows])


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
    """Sixteen configurations for each method."""
    return grids(
        qp=spread(0.021, 2.1, 4),
        sign=spread(0.0001, 0.1, 4),
        adam=spread(0.0001, 0.1, 4),
        sgd=spread(0.02, 20.0, 4),
        prox=spread(0.1, 30.0, 4),
        prox_reaches=(3.0,),
        bop=bop((0.01,), 1e-5, 1e-1, 4),
        steps=steps,
        real_rates=(0.003, 0.01, 0.03, 0.1),
        frozen_real_rates=spread(0.001, 0.3, 16),
    )


def binary_task(options, name, graph, **settings):
    """Returns the task of a network without an encoder.

    Args:
        options: `Options`.
        name: String. Name in the records.
        graph: `"cora"` or `"pubmed"`.
        **settings: Further arguments of `Task`.
    """
    steps = STEPS // (10 if options.quick else 1)
    found = {
        "grids": usual_grids(
            (0.0003, 0.3),
            (0.1, 100.0),
            (0.3, 100.0),
            (1e-6, 1e-3),
            steps,
            bop_rates=(0.01, 0.1),
            more=4,
            real_rates=(REAL_RATE,),
            frozen_real_rates=spread(0.001, 0.3, 8, above=4),
        ),
        "fresh_seeds": 20,
        "tuning_seeds": TUNING_SEEDS,
        # The paper's rule has no blocks. With 1,433 inputs it takes an hour.
        "methods": tuple(
            key for key in WIDE if graph != CORA or key != "paper"
        ),
        "measures": MEASURES,
        "paper": {},
    }
    return Task(
        name=name,
        title=TITLES.get(graph + "-binary"),
        load=lambda data_dir: RandomSplits(graph, data_dir),
        prepare=lambda data_dir: datasets.citation(
            graph, data_dir, download=True
        ),
        splits=lambda source, seed, stage: source.splits(seed),
        batches=lambda seed, rows, stage: node_batches(
            seed, rows, 1, steps, evaluate_every=10
        ),
        build=lambda source, weights: networks.binary_graph_network(
            source.num_features, source.num_classes, weights, HIDDEN, MOMENTUM
        ),
        reported=(VALIDATION_ACCURACY,),
        is_graph=True,
        **(found | settings),
    )


def _steps(options, graph):
    steps = PAPER_STEPS[graph] if options.paper else STEPS
    return steps // (10 if options.quick else 1)


def _main(options, graph, methods):
    steps = _steps(options, graph)
    return _task(
        options,
        graph,
        graph,
        steps,
        measures=MEASURES,
        grids=_grids(steps),
        tuning_seeds=2,
        methods=methods,
    )


def cora_tasks(options):
    main = _main(options, CORA, (*WIDE, "gurobi"))
    if not options.paper:
        return [binary_task(options, CORA_BINARY, CORA), main]
    cells = [
        {"rate": rate, "real_rate": 0.01, "batches": batches}
        for batches in (16, 4, 1)
        for rate in (0.001, 0.005, 0.02, 0.1)
    ]
    ablation = _task(
        options,
        ABLATION,
        CORA,
        _steps(options, CORA),
        measures=(TEST_ACCURACY,),
        curves=(),
        kind="cells",
        grids={"native": cells},
        methods=("native",),
        fresh_seeds=6,
        ablation=True,
    )
    return [main, ablation]


def pubmed_tasks(options):
    main = _main(options, PUBMED, WIDE)
    if options.paper:
        return [main]
    return [binary_task(options, PUBMED_BINARY, PUBMED), main]
