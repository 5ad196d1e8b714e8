"""The tasks: data, networks and the known optimum of single layers."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from tensorflow import keras

import keras_qpsbgd as kq
from research.experiments.tasks import mnist_pairs

PAIRS = ((0, 2), (1, 2), (1, 7))
# Numbers of inputs up to which the best of all layers is computed.
ENUMERATED = 16
# Random problems: samples per part, inputs, and noise of the labels.
SAMPLES, INPUTS, NOISE = 300, 12, 0.5
POOLED = 7


@dataclasses.dataclass(frozen=True)
class Data:
    """Inputs and labels of the three parts.

    Attributes:
        train: Tuple of inputs and labels.
        validation: The same.
        test: The same.
    """

    train: tuple
    validation: tuple
    test: tuple


@dataclasses.dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        name: String.
        title: String.
        data: Function of the folder of the data and a seed. Returns `Data`.
        layers: Tuple of integers, the sizes of the network.
        updates: Integer. Number of updates of a run.
        tuning: Integer. Number of seeds for the choice of a configuration.
        fresh: Integer. Number of other seeds, whose results are reported.
    """

    name: str
    title: str
    data: Callable[[Any, int], Data]
    layers: tuple[int, ...]
    updates: int = 100
    tuning: int = 4
    fresh: int = 20

    @property
    def is_single(self):
        """Whether the network is a single layer with one output."""
        return len(self.layers) == 2

    def network(self):
        """Returns a new network."""
        keras.backend.clear_session()
        layers = [keras.Input((self.layers[0],))]
        for size in self.layers[1:-1]:
            layers.append(kq.layers.BinaryDense(size, activation="hard_tanh"))
        layers.append(
            kq.layers.BinaryDense(
                self.layers[-1], use_bias=not self.is_single, name="output"
            )
        )
        return keras.Sequential(layers)

    def loss(self):
        """Returns the loss of the network."""
        if self.is_single:
            return keras.losses.BinaryCrossentropy(from_logits=True)
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def curvature(self):
        """Returns the argument `curvature` of `QPSBGD`."""
        kind = "binary" if self.is_single else "categorical"
        return {"output": f"{kind}_crossentropy"}


def enumerated_loss(x, y):
    """Returns the smallest loss of all layers with one output, no bias."""
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
    """Returns a function that loads one of the digit pairs."""

    def load(data_dir, seed):
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
        return Data(*((x[r], source.y[r]) for r in rows.values()))

    return load


def random_problem(data_dir, seed):
    """Returns a random logistic regression with noisy labels."""
    del data_dir
    rng = np.random.default_rng([seed, 22])
    mixing = np.eye(INPUTS) + rng.normal(size=(INPUTS, INPUTS)) / INPUTS**0.5
    weights = rng.normal(size=INPUTS)
    parts = []
    for _ in range(3):
        x = rng.normal(size=(SAMPLES, INPUTS)) @ mixing
        signal = x @ weights / np.std(x @ weights)
        y = signal + NOISE * rng.normal(size=SAMPLES) > 0
        parts.append((x.astype("float32"), y.astype("int32")))
    return Data(*parts)


TASKS = {
    task.name: task
    for task in (
        Task(
            "logistic",
            f"Random logistic regression, {INPUTS} inputs",
            random_problem,
            (INPUTS, 1),
            updates=20,
            fresh=100,
        ),
        Task(
            "layer-16",
            "One layer on pairs of digits, 16 inputs",
            _digits(pooled=False),
            (16, 1),
            fresh=21,
        ),
        Task(
            "layer-49",
            "One layer on pairs of digits, 49 inputs",
            _digits(pooled=True),
            (49, 1),
            fresh=21,
        ),
        Task(
            "pairs",
            "Pairs of digits, 16-4-4-2",
            _digits(pooled=False),
            (16, 4, 4, 2),
            fresh=21,
        ),
    )
}
