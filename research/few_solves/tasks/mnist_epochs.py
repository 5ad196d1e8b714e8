"""MNIST with batch normalization, ten epochs of small batches."""

from research.few_solves import selections
from research.few_solves.tasks import mnist
from research.few_solves.tasks.task import Task

EPOCHS, BATCH = 10, 128
# 10,000 of the 60,000 images validate, as in the other tasks on MNIST.
PER_EPOCH = 50_000 // BATCH
COUNTS = tuple(PER_EPOCH * epoch for epoch in (1, 3, 5, EPOCHS))
REAL_RATE = 0.005

TASKS = (
    Task(
        "mnist-bn-epochs",
        f"MNIST 784-256-10 with batch normalization, {EPOCHS} epochs",
        mnist.load,
        mnist.network(normalized=True),
        "The same images, network and statistics of batch normalization as "
        f"above, with batches of {BATCH} that are drawn anew for each update. "
        "These are not few solves, but the usual way to train, for comparison. "
        "A rate is constant, or falls to zero by a cosine (`decay`).",
        counts=COUNTS,
        batch=BATCH,
        curvature="fisher",
        methods=selections.epochs(COUNTS[-1]),
        tuning=1,
        chosen_at=COUNTS[-1],
        fresh=5,
        reference="gradient-decay",
        tested=COUNTS[-1],
        shown=tuple(selections.epochs(COUNTS[-1])),
        probe=mnist.PROBE,
        real_rate=REAL_RATE,
    ),
)
