"""Tests one run of an experiment in both versions of Keras."""

from research.engine.methods import METHODS
from research.engine.training import Trainer
from research.experiments.options import Options
from research.experiments.tasks import logistic


def test_one_run_of_an_experiment():
    """`test_experiments.py` has all other tests, for Keras 3 only."""
    (task,) = logistic.tasks(Options(quick=True))
    trainer = Trainer(task, None, METHODS["signum"], {})
    first, other, again = (
        trainer.run(seed, {"rate": 0.15}, "fresh") for seed in (0, 1, 0)
    )
    assert first == again != other
    assert first["result"]["test_accuracy"] > 0.9
