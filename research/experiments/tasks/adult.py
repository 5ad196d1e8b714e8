"""UCI Adult: networks of two layers, ten layers and two very small layers.

About three of four rows have the same class, so every table has a row with the
constant answer.
"""

import dataclasses

import numpy as np

from research import datasets
from research.engine.methods import METHODS
from research.engine.statistics import TEST_ACCURACY
from research.engine.statistics import TEST_LOSS
from research.engine.statistics import TRAIN_LOSS
from research.engine.statistics import VALIDATION_LOSS
from research.engine.task import Split
from research.engine.task import random
from research.engine.task import shuffled_batches
from research.experiments.options import DEFAULT
from research.experiments.options import Task
from research.experiments.options import usual_grids
from research.experiments.tasks import networks

TWO_LAYERS = "adult-2layer"
TEN_LAYERS = "adult-10layer"
SMALL = "adult-small"
VALIDATION_ROWS = 1_000
TEST_ROWS = 4_000


@dataclasses.dataclass(frozen=True)
class Training:
    """A network and the length of its training."""

    sizes: tuple
    batches: int
    batch: int
    epochs: int

    @property
    def steps(self):
        return self.batches * self.epochs


TRAININGS = {
    TWO_LAYERS: Training((15, 10, 1), batches=32, batch=16, epochs=2),
    TEN_LAYERS: Training((123, *[128] * 9, 1), batches=32, batch=16, epochs=2),
    SMALL: Training((3, 5, 2), batches=30, batch=20, epochs=1),
}


LOSSES = {
    "measures": (TRAIN_LOSS, TEST_LOSS, TEST_ACCURACY),
    "curves": (TRAIN_LOSS, TEST_LOSS),
}


class Source:
    """The rows, with features of +1 and -1.

    Args:
        data_dir: String (optional). Folder of the data.
        num_features: Integer (optional). Number of features to keep. `None`
            keeps all.
        at_random: Boolean. Whether the seed draws the features. If `False`, the
            features whose share of ones in the training rows is closest to one
            half are kept.
    """

    def __init__(self, data_dir, num_features, at_random):
        (x, self.y), (x_test, y_test) = datasets.adult(data_dir, download=True)
        self.x = 2 * x - 1
        chosen = np.sort(random(0, 2).permutation(len(x_test))[:TEST_ROWS])
        self.x_test, self.y_test = 2 * x_test[chosen] - 1, y_test[chosen]
        self._num_features = num_features
        self._at_random = at_random

    def features(self, seed):
        """Returns the indices of the features that a run uses."""
        everything = np.arange(self.x.shape[1])
        if self._num_features is None:
            return everything
        if self._at_random:
            order = random(seed, 3).permutation(everything)
        else:
            order = np.argsort(np.abs(self.x.mean(axis=0)), kind="stable")
        return np.sort(order[: self._num_features])


def split(source, seed, train_rows):
    """Draws training rows, and validation rows from the remaining ones."""
    features = source.features(seed)
    order = random(seed, 0).permutation(len(source.x))
    x = source.x[:, features]
    train = order[:train_rows]
    validation = order[train_rows : train_rows + VALIDATION_ROWS]
    x_test = source.x_test[:, features]
    return {
        "train": Split((x,), train, source.y),
        "validation": Split((x,), validation, source.y),
        "test": Split((x_test,), np.arange(len(x_test)), source.y_test),
    }


def _task(options, name, **settings):
    training = TRAININGS[name]
    num_features = None if name == TEN_LAYERS else training.sizes[0]
    num_rows = training.batches * training.batch
    epochs = 1 if options.quick else training.epochs
    return Task(
        name=name,
        load=lambda data_dir: Source(data_dir, num_features, options.paper),
        prepare=lambda data_dir: datasets.adult(data_dir, download=True),
        splits=lambda source, seed, stage: split(source, seed, num_rows),
        batches=lambda seed, rows, stage: shuffled_batches(
            seed, rows, training.batch, epochs, training.batches // 2
        ),
        build=lambda source, weights: networks.mlp(
            training.sizes, weights, options.output_scale
        ),
        chosen_by=VALIDATION_LOSS,
        decay=not options.paper,
        **settings,
    )


def _grids(options, name, rates, sgd, prox, thresholds, more=0):
    training = TRAININGS[name]
    return usual_grids(
        rates,
        sgd,
        prox,
        thresholds,
        training.steps,
        more=more,
        summed=options.summed(training.batch),
    )


def two_layer_tasks(options):
    return [
        _task(
            options,
            TWO_LAYERS,
            title="Adult, 15-10-1",
            grids=_grids(
                options,
                TWO_LAYERS,
                (0.003, 3.0),
                (0.1, 100.0),
                (0.3, 100.0),
                (1e-4, 1e-1),
                more=2,
            ),
            **LOSSES,
            methods=tuple(METHODS),
        )
    ]


def ten_layer_tasks(options):
    sgd, prox = (0.01, 10.0), (1.0, 300.0)
    if options.paper:
        # The gradients of unscaled layers are larger.
        sgd, prox = (1e-4, 1.0), (0.01, 30.0)
    return [
        _task(
            options,
            TEN_LAYERS,
            title="Adult, ten layers",
            grids=_grids(
                options, TEN_LAYERS, (0.0001, 0.02), sgd, prox, (3e-5, 1e-2)
            ),
            **LOSSES,
            methods=DEFAULT,
            tuning_seeds=5,
            unit_variance=("proxquant",),
        )
    ]


def small_tasks(options):
    return [
        _task(
            options,
            SMALL,
            title="Adult, 3-5-2",
            grids=_grids(
                options,
                SMALL,
                (0.003, 3.0),
                (0.1, 100.0),
                (0.3, 100.0),
                (1e-3, 1.0),
            ),
            methods=tuple(METHODS),
            tuning_seeds=10,
            fresh_seeds=20,
        )
    ]
