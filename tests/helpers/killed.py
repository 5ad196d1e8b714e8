"""Functions that `test_kills.py` runs in separate processes and kills.

Each function creates an empty file `started` before it starts to write.
"""

import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from research.engine import records

EPOCHS = 12


class Started(keras.callbacks.Callback):
    def __init__(self, folder):
        super().__init__()
        self._folder = folder

    def on_train_begin(self, logs=None):
        (self._folder / "started").touch()


def train(folder):
    """Trains a model and writes all variables to `weights.npz`."""
    folder = pathlib.Path(folder)
    # One thread, so that the training time depends little on other load and the
    # kill comes during training.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.InputLayer((8,)),
            kq.layers.BinaryDense(300),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(200),
            keras.layers.Dense(1),
        ]
    )
    model.compile(kq.QPSBGD(0.01, real_optimizer="adam", seed=1), "mse")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 8)).astype("float32")
    y = x[:, :1] * x[:, 1:2]
    backup = kq.callbacks.BackupAndRestore(folder / "backup")
    model.fit(
        x,
        y,
        batch_size=8,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[Started(folder), backup],
    )
    variables = model.optimizer.variables
    if callable(variables):  # legacy Keras
        variables = variables()
    arrays = [*model.get_weights(), *map(np.array, variables)]
    np.savez(folder / "part.npz", *arrays)
    os.replace(folder / "part.npz", folder / "weights.npz")


def record_training(folder):
    """Trains without end and records every second update."""
    folder = pathlib.Path(folder)
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.layers.InputLayer((8,)), kq.layers.BinaryDense(64)]
    )
    model.compile(kq.QPSBGD(0.01, "sign", seed=1), "mse")
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    recorder = kq.callbacks.QuboRecorder(folder / "run", every=2)
    model.fit(
        x,
        np.tile(x, 8),
        batch_size=8,
        epochs=10**6,
        verbose=0,
        callbacks=[recorder, Started(folder)],
    )


def hold_the_lock(folder):
    folder = pathlib.Path(folder)
    with records.locked([folder / "experiment"]):
        (folder / "started").touch()
        time.sleep(600)
