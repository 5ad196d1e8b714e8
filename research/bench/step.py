"""Cost of a training step of QP-SBGD relative to a step of Adam.

The networks train with `model.fit` and the same binary layers. The time of a
step of QP-SBGD with `native`, `ridge` and `sign` is divided by the time of a
step of Keras Adam (straight-through gradients). The batches are cached. All
sides of a comparison are in one process and take turns (see `timing.py`). A
slow side gets fewer and shorter blocks.

`recording` is the time of a step that records every tenth update to a file with
`callbacks.QuboRecorder`, divided by the same step without a recorder, for a
layer with 128 inputs and 128 outputs and batches of 64 rows. The side `none` is
a second model without a recorder. Its ratio shows the precision of the
measurement.
"""

import os
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd.callbacks import QuboRecorder
from keras_qpsbgd.layers import BinaryDense
from keras_qpsbgd.optimizers import QPSBGD
from research.bench import fit_steps
from research.bench import timing
from research.bench.fit_steps import DEFAULT
from research.engine import tables

HELP = "time of a training step relative to Adam (5 minutes)"
RECORDING = "recording"
ROWS = 64
RECORDED_SIZE, EVERY = 128, 10
RECORDERS = ("none", "file")


def measure(quick):
    """Measures the ratios and the times of the yardsticks."""
    results = {"default": DEFAULT, "networks": {}}
    for name, network in fit_steps.NETWORKS.items():
        results["networks"][name] = fit_steps.measure(name, network, quick)
        keras.backend.clear_session()
    results[RECORDING] = _measure_recording(quick)
    return results


def _measure_recording(quick):
    """Measures recorded steps relative to steps without a recorder."""
    steps, blocks = (50, 4) if quick else (100, 12)
    with tempfile.TemporaryDirectory() as folder:
        yardstick, *sides = (
            _recorded(recorder, folder, steps, blocks)
            for recorder in ("none", *RECORDERS)
        )
        sides = dict(zip(RECORDERS, sides))
        return fit_steps.compare(RECORDING, yardstick, sides)


def _recorded(recorder, folder, steps, blocks):
    """Returns a `timing.Side` of a layer that is recorded.

    The blocks call the training function of the model directly, because `fit`
    traces it again at the start and at the end of a recording.
    """
    model = keras.Sequential(
        [keras.layers.InputLayer((RECORDED_SIZE,)), BinaryDense(RECORDED_SIZE)]
    )
    model.compile(
        QPSBGD(0.002, seed=0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    if recorder == "none":
        model.make_train_function()
    else:
        callback = QuboRecorder(os.path.join(folder, "run"), every=EVERY)
        callback.set_model(model)
        callback.on_train_begin()
        callback.on_train_batch_begin(0)
    batches = iter(_recorded_data())

    def block():
        for _ in range(steps):
            model.train_function(batches)

    return timing.Side(block, steps, blocks)


def _recorded_data():
    """Returns an endless dataset of 16 cached batches."""
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (16 * ROWS, RECORDED_SIZE)).astype("float32")
    y = random.integers(RECORDED_SIZE, size=(16 * ROWS, 1))
    data = tf.data.Dataset.from_tensor_slices((x, y))
    return data.batch(ROWS, drop_remainder=True).cache().repeat()


# The tables of the documentation


def rows(result):
    """Returns the ratios of CPU times by network and solver."""
    return {
        name: {
            solver: times["cpu_ratios"]
            for solver, times in row["sides"].items()
        }
        for name, row in result["networks"].items()
    }


def blocks(result):
    """Returns the blocks `step` and `recording`."""
    found = rows(result)
    solvers = list(next(iter(found.values())))
    head = ["network", *(f"`{solver}`" for solver in solvers)]
    lines = [
        [name, *(timing.text(row[solver]) for solver in solvers)]
        for name, row in found.items()
    ]
    none, file = (
        timing.text(result[RECORDING]["sides"][side]["cpu_ratios"])
        for side in RECORDERS
    )
    return {
        "step": tables.markdown_table(head, lines),
        "recording": (
            f"CPU time of a step that records every {EVERY}th update of a "
            f"{RECORDED_SIZE} x {RECORDED_SIZE} layer to a file / without "
            f"recording: {file}. Two steps without recording: {none}."
        ),
    }
