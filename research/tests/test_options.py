"""What `--paper`, `--loss` and `--quick` change."""

import numpy as np
import pytest

from research.engine import records
from research.engine.methods import METHODS
from research.engine.task import FRESH
from research.engine.training import Trainer
from research.experiments import catalogue
from research.experiments.catalogue import EXPERIMENTS
from research.experiments.options import HOST
from research.experiments.options import LOSSES
from research.experiments.options import Options

pytestmark = pytest.mark.once


def test_the_loss_can_be_a_sum(monkeypatch):
    """Its gradient is larger by the number of rows. Reported losses are not."""
    gradients, losses = {}, {}
    for loss in LOSSES:
        options = Options(paper=True, loss=loss)
        (task,) = catalogue.tasks_of("logistic", options)
        trainer = Trainer(task, task.load(None), METHODS["sgd"], {})
        monkeypatch.setattr(trainer, "_steps", lambda *_: None)
        run = trainer.run(0, {"rate": 0.1}, FRESH)
        losses[loss] = run["result"]["train_loss"]
        rows = np.arange(16, dtype="int32")
        gradients[loss] = trainer.gradients(rows)[0].numpy()
    np.testing.assert_allclose(
        gradients["sum"], 16 * gradients["mean"], rtol=1e-5
    )
    assert losses["sum"] == losses["mean"]


def test_paper_stands_only_beside_its_own_settings():
    for options, expected in ((Options(), False), (Options(paper=True), True)):
        (task, *_) = catalogue.tasks_of("mnist-pairs", options)
        assert bool(task.paper) == expected


def test_quick_runs_few_methods(tmp_path):
    options = Options(quick=True)
    runs = records.Runs(tmp_path)
    items = {
        name: catalogue.items_of(name, options, runs) for name in EXPERIMENTS
    }
    keys = {item.method.key for item in items["logistic"]}
    assert {"ridge", "paper", "bop", "real"} <= keys and not {*HOST} & keys
    assert [item.method.key for item in items["mnist"]] == ["native", "adam"]
    assert sum(item.size() for found in items.values() for item in found) < 200
