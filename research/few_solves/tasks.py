"""The tasks: their data, networks and methods.

`TASKS` contains all of them by name.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.comparison.task import Split
from keras_qpsbgd.comparison.task import random
from research.experiments.tasks import adult
from research.experiments.tasks import citation
from research.experiments.tasks import mnist
from research.experiments.tasks import mnist_pairs
from research.experiments.tasks import networks
from research.few_solves import methods
from research.few_solves.methods import METHODS
from research.few_solves.methods import Method

UPDATES = (1, 2, 3, 5, 10, 20, 50, 100)
SHOWN = (
    "newton",
    "average",
    "columns",
    "gradient",
    "whitened",
    "top",
    "adam",
    "averaged",
)


@dataclasses.dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        name: String.
        title: String.
        load: Function of the folder of the data, a list of seeds and a boolean
            that is `True` for few samples. Returns a dictionary from seeds to
            dictionaries with a `Split` for each of the parts `"train"`,
            `"validation"` and `"test"`.
        network: Function of the splits of a seed. Returns a new network.
        counts: Tuple of the numbers of updates after which a network is
            evaluated.
        batch: Integer (optional). Number of samples of an update, which are
            drawn anew for each update. `None` uses all training samples.
        methods: Dictionary of the methods by name.
        tuning: Integer. Number of seeds for the choice of a configuration.
        tuned_on: String (optional). The name of the task whose tuning seeds
            choose the configurations. `None` is this task.
        chosen_at: Integer (optional). The number of updates after which a
            configuration is chosen. `None` chooses one for each number.
        fresh: Integer. Number of other seeds, whose results are reported.
        reference: String. The method that others are compared with.
        tested: Integer. The number of updates of these comparisons.
        shown: Tuple of the methods in the figure.
        probe: Integer (optional). Number of training samples for the training
            loss. `None` uses all of them.
        real_rate: Float (optional). Rate of Adam for all variables that are
            not binary kernels, for all methods. `None` means that Adam and SGD
            train them with their own rate, and that the others use Adam with
            the rate 0.01.
        first_limit: Float (optional). The initial latent weights of binary
            layers are at most this large. `None` uses the limit of Glorot and
            Bengio, as for real weights.
        weight_decay: Float. Weight decay of the layer named `encoder`.
        is_graph: Boolean. Whether the inputs are the features and the
            adjacency of a graph.
        accuracy_digits: Integer. Decimals of accuracies in percent.
        is_enumerated: Boolean. Whether the best of all networks is computed.
    """

    name: str
    title: str
    load: Callable[[Any, list, bool], dict]
    network: Callable[[dict], Any]
    counts: tuple[int, ...] = UPDATES
    batch: int | None = None
    methods: dict[str, Method] = dataclasses.field(
        default_factory=lambda: METHODS
    )
    tuning: int = 4
    tuned_on: str | None = None
    chosen_at: int | None = None
    fresh: int = 20
    reference: str = "average"
    tested: int = 20
    shown: tuple[str, ...] = SHOWN
    probe: int | None = None
    real_rate: float | None = None
    first_limit: float | None = 1.0
    weight_decay: float = 0.0
    is_graph: bool = False
    accuracy_digits: int = 1
    is_enumerated: bool = False


def dense_network(*sizes):
    """Returns a function that returns a new network of `BinaryDense` layers.

    A single layer has no bias.

    Args:
        *sizes: Integers. Widths from inputs to outputs.
    """

    def network(splits):
        del splits
        keras.backend.clear_session()
        layers = [keras.Input((sizes[0],))]
        for size in sizes[1:-1]:
            layers.append(kq.layers.BinaryDense(size, activation="hard_tanh"))
        layers.append(kq.layers.BinaryDense(sizes[-1], use_bias=len(sizes) > 2))
        return keras.Sequential(layers)

    return network


# Single layers and the small network on pairs of digits

PAIRS = ((0, 2), (1, 2), (1, 7))
# Random problems: samples per part, inputs, and noise of the labels.
SAMPLES, INPUTS, NOISE = 300, 12, 0.5
POOLED = 7
SINGLE = {
    "reference": "newton",
    "tested": 2,
}


def enumerated_loss(split):
    """Returns the smallest loss of all layers with one output, no bias."""
    x, y = split.inputs[0][split.rows], split.y[split.rows]
    n = x.shape[1]
    bits = np.arange(2**n)[:, None] >> np.arange(n) & 1
    states = (2.0 * bits - 1.0).astype("float32")
    best = np.inf
    for begin in range(0, len(states), 8192):
        logits = x @ states[begin : begin + 8192].T / np.sqrt(n)
        losses = np.logaddexp(0, logits) - y.reshape(-1, 1) * logits
        best = min(best, float(losses.mean(axis=0).min()))
    return best


def _digits(pooled):
    """Returns a function that loads the digit pairs."""

    def load(data_dir, seeds, quick):
        del quick
        return {seed: _pair(data_dir, seed, pooled) for seed in seeds}

    return load


def _pair(data_dir, seed, pooled):
    source = mnist_pairs.Source(data_dir, PAIRS[seed % len(PAIRS)])
    x = source.x
    if pooled:
        side = 28 // POOLED
        images = source.images.reshape(-1, POOLED, side, POOLED, side)
        x = images.mean(axis=(2, 4)).reshape(len(images), -1)
        x = (x / max(x.max(), 1.0)).astype("float32")
    # Other training samples for each seed.
    rng = np.random.default_rng([seed, 21])
    rows = dict(source.rows)
    known = np.concatenate([rows["train"], rows["validation"]])
    known = rng.permutation(known)
    count = len(rows["train"])
    rows["train"], rows["validation"] = known[:count], known[count:]
    return {name: Split((x,), r, source.y) for name, r in rows.items()}


def random_problems(data_dir, seeds, quick):
    """Returns random logistic regressions with noisy labels."""
    del data_dir, quick
    return {seed: _random_problem(seed) for seed in seeds}


def _random_problem(seed):
    rng = np.random.default_rng([seed, 22])
    mixing = np.eye(INPUTS) + rng.normal(size=(INPUTS, INPUTS)) / INPUTS**0.5
    weights = rng.normal(size=INPUTS)
    splits = {}
    for name in ("train", "validation", "test"):
        x = rng.normal(size=(SAMPLES, INPUTS)) @ mixing
        signal = x @ weights / np.std(x @ weights)
        y = signal + NOISE * rng.normal(size=SAMPLES) > 0
        splits[name] = Split(
            (x.astype("float32"),), np.arange(SAMPLES), y.astype("int32")
        )
    return splits


SMALL = (
    Task(
        "logistic",
        f"Random logistic regression, {INPUTS} inputs",
        random_problems,
        dense_network(INPUTS, 1),
        counts=(1, 2, 3, 5, 10, 20),
        fresh=100,
        is_enumerated=True,
        **SINGLE,
    ),
    Task(
        "layer-16",
        "One layer on pairs of digits, 16 inputs",
        _digits(pooled=False),
        dense_network(16, 1),
        fresh=21,
        is_enumerated=True,
        **SINGLE,
    ),
    Task(
        "layer-49",
        "One layer on pairs of digits, 49 inputs",
        _digits(pooled=True),
        dense_network(49, 1),
        fresh=21,
        **SINGLE,
    ),
    Task(
        "pairs",
        "Pairs of digits, 16-4-4-2",
        _digits(pooled=False),
        dense_network(16, 4, 4, 2),
        fresh=21,
    ),
)


# Adult, with ten layers

ADULT_ROWS = 1_200
ADULT_BATCH = 512
ADULT_SIZES = adult.TRAININGS[adult.TEN_LAYERS].sizes


def load_adult(data_dir, seeds, quick):
    """Returns other training rows for each seed."""
    del quick
    source = adult.Source(data_dir, None, at_random=False)
    return {seed: adult.split(source, seed, ADULT_ROWS) for seed in seeds}


def adult_network(splits):
    """Returns the network of the experiment `adult-10layer`."""
    del splits
    keras.backend.clear_session()
    return networks.mlp(ADULT_SIZES, "binary")


ADULT = Task(
    "adult",
    "Adult, ten layers",
    load_adult,
    adult_network,
    counts=(1, 2, 3, 5, 10, 20, 50),
    batch=ADULT_BATCH,
    methods=methods.ADULT,
    tuning=2,
    fresh=6,
    shown=methods.ADULT_SHOWN,
    real_rate=0.01,
)


# Cora: binary graph convolutions after an encoder with real weights

# With 0.03, four of five methods had higher validation losses after 100 updates
# on a seed that is not used otherwise.
ENCODER_RATE = 0.1


def load_cora(data_dir, seeds, quick):
    """Returns the public split for all seeds."""
    del quick
    graph = citation.Citation(citation.CORA, data_dir)
    return dict.fromkeys(seeds, graph.splits)


def cora_network(splits):
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


CORA = Task(
    "cora",
    "Cora, encoder and binary graph convolutions",
    load_cora,
    cora_network,
    methods=methods.CORA,
    tuning=3,
    fresh=10,
    tested=100,
    shown=methods.CORA_SHOWN,
    real_rate=ENCODER_RATE,
    weight_decay=citation.WEIGHT_DECAY,
    is_graph=True,
)


# MNIST with ten classes, 784-256-10: large batches, and several epochs

MNIST_SIZES = (784, 256, 10)
BATCHES = (5_000, 20_000)
VALIDATION = 10_000
PROBE = 10_000
# With 0.01, the losses of Adam and signSGD were twice as high on a seed that is
# not used otherwise. The outputs are normalized, and few updates hardly change
# their scale.
NORMALIZATION_RATE = 0.1
# Samples of each part of a quick run.
QUICK = 400
# Column by column, a sweep has one or three solves per column.
COUNTS = (1, 2, 3, 6, 9, 15, 24)


def load_mnist(data_dir, seeds, quick):
    """Returns the same images for all seeds."""
    (x, y), (x_test, y_test) = mnist.images(data_dir, random(0, 2))
    rows = np.arange(len(x))
    held = len(rows) // 6
    most = QUICK if quick else None
    splits = {
        "train": Split((x,), rows[held:][:most], y),
        "validation": Split((x,), rows[:held][:most], y),
        "test": Split((x_test,), np.arange(len(x_test))[:most], y_test),
    }
    return dict.fromkeys(seeds, splits)


def mnist_network(normalized):
    """Returns a function that returns a new network."""

    def make(splits):
        del splits
        keras.backend.clear_session()
        # Without momentum, the statistics are those of the last batch.
        momentum = 0.0 if normalized else None
        return networks.mlp(
            MNIST_SIZES, "binary", batch_normalization=momentum, clip=1.0
        )

    return make


def _mnist_task(batch, normalized):
    kind = "mnist-bn" if normalized else "mnist"
    chosen = methods.MNIST
    if normalized:
        chosen = methods.MNIST_NORMALIZED
    elif batch > BATCHES[0]:
        chosen = methods.MNIST_OTHERS  # takes more time
    with_or_without = "with" if normalized else "without"
    return Task(
        f"{kind}-{batch}",
        f"MNIST 784-256-10 {with_or_without} batch normalization, batches of "
        f"{batch:,}",
        load_mnist,
        mnist_network(normalized),
        counts=COUNTS,
        batch=batch,
        methods=chosen,
        tuning=1,
        tuned_on=f"{kind}-{BATCHES[0]}" if batch > BATCHES[0] else None,
        chosen_at=COUNTS[-1],
        fresh=3 if normalized or batch == BATCHES[0] else 5,
        reference="columns-one",
        tested=24,
        shown=tuple(m for m in methods.MNIST_SHOWN if m in chosen),
        probe=PROBE,
        real_rate=NORMALIZATION_RATE if normalized else 0.01,
    )


# Several epochs of small batches
EPOCH_BATCH = 128
# 10,000 of the 60,000 images validate, as in the other tasks on MNIST.
PER_EPOCH = 50_000 // EPOCH_BATCH
EPOCH_REAL_RATE = 0.005
SHORT = "mnist-bn-3-epochs"


def _epochs_task(name, epochs, tuned_on, fresh):
    counts = tuple(PER_EPOCH * epoch for epoch in epochs)
    chosen = methods.epochs(counts[-1])
    return Task(
        name,
        f"MNIST 784-256-10 with batch normalization, {epochs[-1]} epochs",
        load_mnist,
        mnist_network(normalized=True),
        counts=counts,
        batch=EPOCH_BATCH,
        methods=chosen,
        tuning=1,
        tuned_on=tuned_on,
        chosen_at=PER_EPOCH * 3,
        fresh=fresh,
        reference="adam-decay",
        tested=counts[-1],
        shown=tuple(chosen),
        probe=PROBE,
        real_rate=EPOCH_REAL_RATE,
        first_limit=None,
        accuracy_digits=2,
    )


MNIST = (
    *(
        _mnist_task(batch, normalized)
        for normalized in (False, True)
        for batch in BATCHES
    ),
    # Not few solves, but the usual way to train, for comparison.
    _epochs_task(SHORT, (1, 2, 3), None, 2),
    _epochs_task("mnist-bn-10-epochs", (1, 3, 5, 10), SHORT, 5),
)

TASKS = {task.name: task for task in (*SMALL, ADULT, CORA, *MNIST)}
