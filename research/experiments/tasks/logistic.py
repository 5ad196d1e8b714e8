"""Logistic regression on two blobs: three weights of +1 and -1."""

import numpy as np

from research.engine.methods import grid
from research.engine.statistics import TEST_ACCURACY
from research.engine.statistics import TEST_LOSS
from research.engine.statistics import TRAIN_LOSS
from research.engine.statistics import VALIDATION_LOSS
from research.engine.task import Split
from research.engine.task import random
from research.engine.task import shuffled_batches
from research.experiments.options import Task
from research.experiments.options import usual_grids
from research.experiments.tasks import networks

NAME = "logistic"
ROWS = {"train": 320, "validation": 320, "test": 1_000}
BATCH = 16
EPOCHS = 5  # 100 steps
DISTANCE = 3.0  # from the origin to a blob's center, in standard deviations


def blobs(source, seed, stage):
    """Two blobs on opposite sides of the origin, and a constant input of 1.

    The seed rotates them. For every direction there are weights of +1 and -1
    within 45 degrees, so the classes can be separated.
    """
    del source, stage
    generator = random(seed, 0)
    angle = generator.uniform(0, 2 * np.pi)
    center = DISTANCE * np.array([np.cos(angle), np.sin(angle)])
    splits = {}
    for name, rows in ROWS.items():
        y = np.arange(rows) % 2
        points = generator.normal(size=(rows, 2))
        points += np.where(y, 1, -1)[:, None] * center
        x = np.concatenate([points, np.ones((rows, 1))], axis=1)
        splits[name] = Split((x.astype("float32"),), np.arange(rows), y)
    return splits


def tasks(options):
    """Returns the tasks."""
    epochs = 1 if options.quick else EPOCHS
    steps = epochs * ROWS["train"] // BATCH
    small = usual_grids(
        (0.003, 30.0),
        (0.03, 30.0),
        (0.1, 30.0),
        (1e-6, 1e-1),
        steps,
        summed=options.summed(BATCH),
    )
    if options.paper:
        stated = {"native": 0.05, "signsgd": 0.01, "sgd": 5e-5}
        small |= {key: grid([rate]) for key, rate in stated.items()}
        small["ridge"] = small["paper"] = small["native"]
    return [
        Task(
            name=NAME,
            title="Logistic regression, 3-1",
            measures=(TRAIN_LOSS, TEST_LOSS, TEST_ACCURACY),
            curves=(TRAIN_LOSS, TEST_LOSS),
            load=lambda data_dir: None,
            splits=blobs,
            batches=lambda seed, rows, stage: shuffled_batches(
                seed, rows, BATCH, epochs, evaluations=5
            ),
            build=lambda source, weights: networks.mlp(
                (3, 1), weights, options.output_scale
            ),
            grids=small,
            chosen_by=VALIDATION_LOSS,
            decay=not options.paper,
            host_seeds=10,
        )
    ]
