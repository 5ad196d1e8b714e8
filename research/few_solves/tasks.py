"""The tasks: their data, networks and methods.

`TASKS` contains all of them by name. All networks are dense layers without
biases, so that all weights are binary, except for batch normalization.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from tensorflow import keras

from research.engine.task import Split
from research.engine.task import random
from research.experiments.tasks import adult
from research.experiments.tasks import mnist
from research.experiments.tasks import mnist_pairs
from research.experiments.tasks import networks
from research.few_solves.methods import COLUMNS
from research.few_solves.methods import LARGE
from research.few_solves.methods import MINI
from research.few_solves.methods import NETWORK
from research.few_solves.methods import SINGLE
from research.few_solves.methods import WIDE
from research.few_solves.methods import Method

# Numbers of sweeps, or of updates. `costs.counts` adds those at equal cost.
COUNTS = {
    COLUMNS: (1, 2, 3, 5, 10),
    LARGE: (1, 3, 10, 100),
    MINI: (10, 50, 150, 500),
}


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
        sizes: Tuple of the widths of the network, from inputs to outputs.
        methods: Dictionary of the methods by name.
        counts: Dictionary from kinds of methods to numbers of sweeps after
            which a network is evaluated, or of updates of a run.
        batch: Integer (optional). Number of samples of a sweep or of an update
            with a large batch, which are drawn anew for each. `None` uses all
            training samples.
        mini: Integer. Number of samples of a mini-batch.
        tuning: Integer. Number of seeds for the choice of a configuration.
        fresh: Integer. Number of other seeds, whose results are reported.
        probe: Integer (optional). Number of training samples for the training
            loss and for batch normalization. `None` uses all of them.
        is_normalized: Boolean. Whether the network has batch normalization.
        is_enumerated: Boolean. Whether the best of all networks is computed.
    """

    name: str
    title: str
    load: Callable[[Any, list, bool], dict]
    sizes: tuple[int, ...]
    methods: dict[str, Method]
    counts: dict = dataclasses.field(default_factory=lambda: COUNTS)
    batch: int | None = None
    mini: int = 32
    tuning: int = 3
    fresh: int = 12
    probe: int | None = None
    is_normalized: bool = False
    is_enumerated: bool = False

    def network(self):
        """Returns a new network."""
        keras.backend.clear_session()
        # Without momentum, the statistics are those of the last batch.
        momentum = 0.0 if self.is_normalized else None
        return networks.mlp(
            self.sizes, "binary", batch_normalization=momentum, clip=1.0
        )

    @property
    def shapes(self):
        """Tuple of the shapes of the kernels."""
        return tuple(zip(self.sizes, self.sizes[1:]))


# Single layers, and a small network on pairs of digits

PAIRS = ((0, 2), (1, 2), (1, 7))
# Random problems: samples per part, inputs, and noise of the labels.
SAMPLES, INPUTS, NOISE = 300, 12, 0.5
ADULT_INPUTS, ADULT_ROWS = 14, 500


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


def load_digits(data_dir, seeds, quick):
    """Returns one of the pairs of digits for each seed."""
    del quick
    return {seed: _pair(data_dir, seed) for seed in seeds}


def _pair(data_dir, seed):
    source = mnist_pairs.Source(data_dir, PAIRS[seed % len(PAIRS)])
    # Other training samples for each seed.
    rng = np.random.default_rng([seed, 21])
    rows = dict(source.rows)
    known = np.concatenate([rows["train"], rows["validation"]])
    known = rng.permutation(known)
    count = len(rows["train"])
    rows["train"], rows["validation"] = known[:count], known[count:]
    return {name: Split((source.x,), r, source.y) for name, r in rows.items()}


def load_adult(data_dir, seeds, quick):
    """Returns other training rows for each seed."""
    del quick
    source = adult.Source(data_dir, ADULT_INPUTS, at_random=False)
    return {seed: adult.split(source, seed, ADULT_ROWS) for seed in seeds}


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


# MNIST with ten classes

# Samples of each part of a quick run.
QUICK = 400


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


LOGISTIC = Task(
    "logistic",
    f"Random logistic regression, one layer {INPUTS}-1",
    random_problems,
    (INPUTS, 1),
    SINGLE,
    is_enumerated=True,
)
ADULT = Task(
    "adult",
    f"Adult, one layer {ADULT_INPUTS}-1",
    load_adult,
    (ADULT_INPUTS, 1),
    SINGLE,
    counts={COLUMNS: (1, 2, 3, 10), LARGE: (1, 10), MINI: (50,)},
    is_enumerated=True,
)
DIGITS = Task(
    "digits",
    "Pairs of digits, network 16-4-4-2",
    load_digits,
    (16, 4, 4, 2),
    NETWORK,
    counts={
        COLUMNS: (1, 2, 3, 10),
        LARGE: (1, 10),
        MINI: (50,),
    },
)
MNIST = Task(
    "mnist",
    "MNIST, network 784-256-10 with batch normalization",
    load_mnist,
    (784, 256, 10),
    WIDE,
    counts={
        COLUMNS: (1, 2, 3),
        LARGE: (5,),
        MINI: (100, 400),
    },
    # Three sweeps of 10,000 samples cost as much as 30 epochs or more.
    batch=2_000,
    mini=128,
    tuning=1,
    fresh=4,
    probe=10_000,
    is_normalized=True,
)

TASKS = {task.name: task for task in (LOGISTIC, ADULT, DIGITS, MNIST)}
