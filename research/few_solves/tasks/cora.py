"""Cora: binary graph convolutions after an encoder with real weights."""

import tensorflow as tf
from tensorflow import keras

from research.experiments.tasks import citation
from research.experiments.tasks import networks
from research.few_solves import selections
from research.few_solves.tasks.task import Task


def load(data_dir, seeds, quick):
    """Returns the public split for all seeds."""
    del quick
    graph = citation.Citation(citation.CORA, data_dir)
    return dict.fromkeys(seeds, graph.splits)


def network(splits):
    """Returns the network of the experiment `cora`."""
    keras.backend.clear_session()
    x, _ = splits["train"].inputs
    return networks.graph_network(
        x.shape[1],
        int(splits["train"].y.max()) + 1,
        "binary",
        hidden=citation.HIDDEN,
        encoder=citation.ENCODER,
        sparse_features=isinstance(x, tf.SparseTensor),
    )


TASKS = (
    Task(
        "cora",
        "Cora, encoder and binary graph convolutions",
        load,
        network,
        "Public split of Planetoid: 140 nodes to train on, all of them in each "
        "update, 500 to validate and 1,000 to test. An encoder with real "
        "weights, features-32-10, which Adam trains in all methods, then "
        "binary graph convolutions 10-16-7. The rate of the encoder is part of "
        "the configurations. Seeds differ in initial weights and dropout. "
        "`fit_columns` was left out: it only trains `BinaryDense` layers.",
        curvature="fisher",
        methods=selections.CORA,
        tuning=3,
        fresh=10,
        tested=100,
        shown=selections.CORA_SHOWN,
        tunes_real_rate=True,
        real_rate=0.01,
        weight_decay=citation.WEIGHT_DECAY,
        is_graph=True,
    ),
)
