"""Adult, with ten layers."""

from tensorflow import keras

from research.experiments.tasks import adult
from research.experiments.tasks import networks
from research.few_solves import selections
from research.few_solves.tasks.task import Task

TRAIN_ROWS = 1_200
BATCH = 512
SIZES = adult.TRAININGS[adult.TEN_LAYERS].sizes


def load(data_dir, seeds, quick):
    """Returns other training rows for each seed."""
    del quick
    source = adult.Source(data_dir, None, at_random=False)
    return {seed: adult.split(source, seed, TRAIN_ROWS) for seed in seeds}


def network(splits):
    """Returns the network of the experiment `adult-10layer`."""
    del splits
    keras.backend.clear_session()
    return networks.mlp(SIZES, "binary")


TASKS = (
    Task(
        "adult",
        "Adult, ten layers",
        load,
        network,
        counts=(1, 2, 3, 5, 10, 20, 50),
        batch=BATCH,
        methods=selections.ADULT,
        tuning=2,
        fresh=6,
        shown=selections.ADULT_SHOWN,
        real_rate=0.01,
    ),
)
