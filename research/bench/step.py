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
from research.bench.fit_steps import SOLVERS
from research.engine import tables

HELP = "time of a training step relative to Adam (5 minutes)"
THREADS = (1,)
RECORDING = "recording"
ROWS = 64
RECORDED_SIZE, EVERY = 128, 10
RECORDERS = ("none", "file")


def names():
    """Returns the names that `--only` accepts."""
    return [*fit_steps.NETWORKS, RECORDING, *SOLVERS]


def measure(options):
    """Measures the ratios and the times of the yardsticks."""
    results = {"default": DEFAULT, "networks": {}}
    solvers = options.wanted(SOLVERS)
    for row in options.wanted([*fit_steps.NETWORKS, RECORDING]):
        if row == RECORDING:
            results[RECORDING] = _measure_recording(options)
        else:
            results["networks"][row] = fit_steps.measure(
                row, fit_steps.NETWORKS[row], solvers, options
            )
        keras.backend.clear_session()
    return results


def _measure_recording(options):
    """Measures recorded steps relative to steps without a recorder."""
    steps, blocks = (50, 4) if options.quick else (100, 12)
    with tempfile.TemporaryDirectory() as folder:
        yardstick, *sides = (
            _recorded(DEFAULT, recorder, folder, steps, blocks)
            for recorder in ("none", *RECORDERS)
        )
        sides = dict(zip(RECORDERS, sides))
        return fit_steps.compare(RECORDING, yardstick, sides)


def _recorded(solver, recorder, folder, steps, blocks):
    """Returns a `timing.Side` of a layer that is recorded.

    The blocks call the training function of the model directly, because `fit`
    traces it again at the start and at the end of a recording.
    """
    model = keras.Sequential(
        [keras.layers.InputLayer((RECORDED_SIZE,)), BinaryDense(RECORDED_SIZE)]
    )
    model.compile(
        QPSBGD(0.002, SOLVERS[solver], seed=0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    if recorder == "none":
        model.make_train_function()
    else:
        path = os.path.join(folder, solver) if recorder == "file" else None
        callback = QuboRecorder(path, every=EVERY)
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


def table(results):
    """Returns the ratios of CPU and wall time by network and solver."""
    parts = []
    for threads, result in results.items():
        title = f"time of a step relative to Adam, {_threads(threads)}"
        for kind, word in (("cpu", "CPU"), ("wall", "wall")):
            rows = result["networks"]
            parts.append(fit_steps.table(rows, kind, f"{word} {title}"))
        parts.append(_other_rows(result, threads))
    return "\n\n".join(part for part in parts if part)


def _threads(count):
    return f"{count} thread{'s' * (count > 1)}"


def _other_rows(result, threads):
    if RECORDING not in result:
        return ""
    size = RECORDED_SIZE
    lines = [
        f"Step that records every {EVERY}th update / step without a recorder,",
        f"layer {size} x {size}, {_threads(threads)}",
        f"{'':<28}{'CPU ratio':>12}{'wall ratio':>12}",
    ]
    lines += [
        f"{recorder:<28}{times['cpu_ratio']:>12.3f}{times['wall_ratio']:>12.3f}"
        for recorder, times in result[RECORDING]["sides"].items()
    ]
    return "\n".join(lines)


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
