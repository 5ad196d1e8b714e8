"""Killed processes, and two processes that write the same files."""

import multiprocessing
import os
import pathlib
import random
import time

import numpy as np
import pytest
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd import analysis
from keras_qpsbgd import callbacks
from keras_qpsbgd import disk
from research.engine import records

ROOT = pathlib.Path(__file__).parents[2]
RANDOM = random.Random(0)
KILLS = 2  # of each training


@pytest.fixture(scope="module")
def start():
    """Returns a function that starts a function of `killed.py` in a process.

    All processes end with the tests. The fork server imports everything once,
    so it needs `PYTHONPATH` to find the modules.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["killed"])
    processes = []

    def start(name, folder, *arguments):
        import killed

        process = context.Process(
            target=getattr(killed, name),
            args=(str(folder), *arguments),
            daemon=True,
        )
        process.start()
        processes.append(process)
        return process

    with pytest.MonkeyPatch.context() as patch:
        paths = [str(ROOT / "tests" / "helpers"), str(ROOT)]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        yield start
        for process in processes:
            process.kill()
            process.join()


def wait_for(path, process):
    while not path.exists():
        assert process.is_alive()
        time.sleep(0.001)
    path.unlink()


def kill(process):
    """Kills a process and checks that it had not failed before."""
    process.kill()
    process.join()
    assert process.exitcode in (0, -9)


# --- training ---


def arrays_of(path):
    with np.load(path) as file:
        return [file[f"arr_{k}"] for k in range(len(file.files))]


@pytest.mark.slow
def test_killed_training_resumes_to_the_same_result(start, tmp_path):
    """The weights and the optimizer variables are bitwise equal."""

    def train(name):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        process = start("train", folder)
        wait_for(folder / "started", process)
        return process, time.monotonic()

    whole, begin = train("whole")
    whole.join()
    seconds = time.monotonic() - begin
    assert whole.exitcode == 0
    expected = arrays_of(tmp_path / "whole" / "weights.npz")
    for k in range(KILLS):
        killed, begin = train(str(k))
        end = begin + (k + RANDOM.random()) / KILLS * seconds
        time.sleep(max(0.0, end - time.monotonic()))
        kill(killed)
        (tmp_path / str(k) / "weights.npz").unlink(missing_ok=True)
        resumed, _ = train(str(k))
        resumed.join()
        assert resumed.exitcode == 0
        found = arrays_of(tmp_path / str(k) / "weights.npz")
        assert len(found) == len(expected) and all_equal(found, expected)


@pytest.mark.slow
def test_killed_recorder_leaves_a_readable_file(start, tmp_path):
    path = tmp_path / "run"
    for _ in range(KILLS):
        process = start("record_training", tmp_path)
        wait_for(tmp_path / "started", process)
        while path.stat().st_size < 10**5:
            assert process.is_alive()
            time.sleep(0.001)
        time.sleep(RANDOM.random() * 0.05)
        kill(process)
        assert process.exitcode == -9
        run = analysis.load_run(path)
        assert not run.complete
        assert run.settings["every"] == 2
        steps = [update.step for update in run.updates]
        assert steps == list(range(0, 2 * len(steps), 2)) and len(steps) > 10
        for update in run.updates:
            assert (update.states != 0).all()
            # A state of the right shape that does not ascend.
            ascent = (update.qubo.fields * update.states).sum(axis=0)
            assert (ascent <= 1e-4).all()
        for epoch, logs in enumerate(run.epochs):
            assert logs["epoch"] == epoch and np.isfinite(logs["loss"])


class Killed(BaseException):
    """An exception that no code handles."""


class KilledAfterWeights(keras.Sequential):
    """Raises `Killed` after writing `left` files of weights."""

    left = None

    def save_weights(self, *arguments, **named):
        super().save_weights(*arguments, **named)
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise Killed


def weights_with_adam(used, left=None):
    """Returns the weights after four epochs of two steps."""
    keras.utils.set_random_seed(0)
    model = KilledAfterWeights(
        [keras.layers.InputLayer((8,)), keras.layers.Dense(1)]
    )
    model.left = left
    model.compile("adam", "mse", run_eagerly=True)
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    model.fit(
        x,
        x[:, :1],
        batch_size=32,
        epochs=4,
        shuffle=False,
        verbose=0,
        callbacks=used,
    )
    return model.get_weights()


def all_equal(found, expected):
    return all(np.array_equal(a, b) for a, b in zip(found, expected))


@pytest.mark.slow
@pytest.mark.skipif(not _keras.KERAS_3, reason="one file in legacy Keras")
@pytest.mark.parametrize(
    "callback, is_equal",
    [
        (keras.callbacks.BackupAndRestore, False),
        (callbacks.BackupAndRestore, True),
    ],
    ids=["keras", "ours"],
)
def test_kill_between_weights_and_epoch(tmp_path, callback, is_equal):
    """This is why `callbacks.BackupAndRestore` exists.

    Keras silently resumes with weights and epoch number that do not match. If
    this test fails for its callback, Keras is fixed.
    """
    with pytest.raises(Killed):
        weights_with_adam([callback(str(tmp_path / "a"))], left=3)
    found = weights_with_adam([callback(str(tmp_path / "a"))])
    assert all_equal(found, weights_with_adam([])) == is_equal


# --- files ---


@pytest.mark.slow
@pytest.mark.once
def test_lock_of_a_killed_command(start, tmp_path):
    pytest.importorskip("filelock")
    holder = start("hold_the_lock", tmp_path)
    wait_for(tmp_path / "started", holder)
    with pytest.raises(ValueError, match="Another command .* Received: "):
        with records.locked([tmp_path / "experiment"]):
            pass
    kill(holder)
    with records.locked([tmp_path / "experiment"]):
        pass


@pytest.mark.once
@pytest.mark.parametrize("last", ["fsync", "replace"])
def test_old_file_stays_until_the_new_one_is_complete(
    tmp_path, monkeypatch, last
):
    path = tmp_path / "a"
    disk.write(path, "old")

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, last, fail)
    with pytest.raises(OSError, match="no space"):
        disk.write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
