"""MNIST with ten classes, 784-256-10: large batches, and several epochs."""

import numpy as np
from tensorflow import keras

from keras_qpsbgd.comparison.task import Split
from keras_qpsbgd.comparison.task import random
from research.experiments.tasks import mnist
from research.experiments.tasks import networks
from research.few_solves import selections
from research.few_solves.tasks.task import Task

SIZES = (784, 256, 10)
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


def load(data_dir, seeds, quick):
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


def network(normalized):
    """Returns a function that returns a new network."""

    def make(splits):
        del splits
        keras.backend.clear_session()
        # Without momentum, the statistics are those of the last batch.
        momentum = 0.0 if normalized else None
        return networks.mlp(
            SIZES, "binary", batch_normalization=momentum, clip=1.0
        )

    return make


def _task(batch, normalized):
    kind = "mnist-bn" if normalized else "mnist"
    methods = selections.MNIST
    if normalized:
        methods = selections.MNIST_NORMALIZED
    elif batch > BATCHES[0]:
        methods = selections.MNIST_OTHERS  # takes more time
    with_or_without = "with" if normalized else "without"
    return Task(
        f"{kind}-{batch}",
        f"MNIST 784-256-10 {with_or_without} batch normalization, batches of "
        f"{batch:,}",
        load,
        network(normalized),
        counts=COUNTS,
        batch=batch,
        methods=methods,
        tuning=1,
        tuned_on=f"{kind}-{BATCHES[0]}" if batch > BATCHES[0] else None,
        chosen_at=COUNTS[-1],
        fresh=3 if normalized or batch == BATCHES[0] else 5,
        reference="columns-one",
        tested=24,
        shown=tuple(m for m in selections.MNIST_SHOWN if m in methods),
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
    methods = selections.epochs(counts[-1])
    return Task(
        name,
        f"MNIST 784-256-10 with batch normalization, {epochs[-1]} epochs",
        load,
        network(normalized=True),
        counts=counts,
        batch=EPOCH_BATCH,
        methods=methods,
        tuning=1,
        tuned_on=tuned_on,
        chosen_at=PER_EPOCH * 3,
        fresh=fresh,
        reference="adam-decay",
        tested=counts[-1],
        shown=tuple(methods),
        probe=PROBE,
        real_rate=EPOCH_REAL_RATE,
        first_limit=None,
        accuracy_digits=2,
    )


TASKS = (
    *(
        _task(batch, normalized)
        for normalized in (False, True)
        for batch in BATCHES
    ),
    # Not few solves, but the usual way to train, for comparison.
    _epochs_task(SHORT, (1, 2, 3), None, 2),
    _epochs_task("mnist-bn-10-epochs", (1, 3, 5, 10), SHORT, 5),
)
