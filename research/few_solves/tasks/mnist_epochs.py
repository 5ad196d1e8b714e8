"""MNIST with batch normalization, several epochs of small batches."""

from research.few_solves import selections
from research.few_solves.tasks import mnist
from research.few_solves.tasks.task import Task

BATCH = 128
# 10,000 of the 60,000 images validate, as in the other tasks on MNIST.
PER_EPOCH = 50_000 // BATCH
REAL_RATE = 0.005
SHORT = "mnist-bn-3-epochs"


def _task(name, epochs, tuned_on, fresh, about):
    counts = tuple(PER_EPOCH * epoch for epoch in epochs)
    methods = selections.epochs(counts[-1])
    return Task(
        name,
        f"MNIST 784-256-10 with batch normalization, {epochs[-1]} epochs",
        mnist.load,
        mnist.network(normalized=True),
        about,
        counts=counts,
        batch=BATCH,
        methods=methods,
        tuning=1,
        tuned_on=tuned_on,
        chosen_at=PER_EPOCH * 3,
        fresh=fresh,
        reference="adam-decay",
        tested=counts[-1],
        shown=tuple(methods),
        probe=mnist.PROBE,
        real_rate=REAL_RATE,
        first_limit=None,
        accuracy_digits=2,
    )


TASKS = (
    _task(
        SHORT,
        (1, 2, 3),
        None,
        2,
        "The same images, network and statistics of batch normalization as "
        f"above, with batches of {BATCH} that are drawn anew for each update. "
        "These are not few solves, but the usual way to train, for comparison. "
        "Latent weights start as Glorot and Bengio propose, and all rates fall "
        "to zero by a cosine.",
    ),
    _task(
        "mnist-bn-10-epochs",
        (1, 3, 5, 10),
        SHORT,
        5,
        "As with three epochs, whose validation data chose the rates.",
    ),
)
