"""Checkpoints of long runs."""

import pytest
import tensorflow as tf

from keras_qpsbgd.compare import checkpoint

pytestmark = pytest.mark.once


def test_checkpoint_of_another_run_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    variable, path = tf.Variable([1.0, 2.0]), tmp_path / "a.npz"
    ours = checkpoint.Checkpoint(path, {"seed": 0})
    ours.save([variable], {"epoch": [0, 1]}, 3)
    variable.assign([0.0, 0.0])
    curves = {"epoch": [0]}
    theirs = checkpoint.Checkpoint(path, {"seed": 1})
    assert theirs.restore([variable], curves) == 0
    assert not variable.numpy().any() and curves == {"epoch": [0]}
    assert ours.restore([variable], curves) == 3
    assert list(variable.numpy()) == [1, 2] and curves == {"epoch": [0, 1]}
    ours.remove()
    assert ours.restore([variable], curves) == 0
    # Short runs are not saved at every evaluation.
    monkeypatch.undo()
    ours.save([variable], curves, 1)
    assert not path.exists()


def test_time_includes_the_time_before_a_kill(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(checkpoint.time, "process_time", lambda: clock[0])
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    killed = checkpoint.Checkpoint(tmp_path / "a.npz", {})
    clock[0] = 160.0
    killed.save([], {}, 1)
    clock[0] = 7.0  # the clock of another process
    resumed = checkpoint.Checkpoint(tmp_path / "a.npz", {})
    assert resumed.restore([], {}) == 1
    clock[0] = 37.0
    assert resumed.seconds() == 90.0
