"""Cost of `callbacks.QuboRecorder` relative to a step without it.

A layer with 128 inputs and 128 outputs trains on batches of 64 rows. The time
of a step that records every tenth update, in memory and to a file, is divided
by the time of the same step without a recorder. All sides are in one process
and take turns (see `timing.py`). The side `none` is a second model without a
recorder. Its ratio shows the precision of the measurement.

The blocks call the training function of the model directly, because `fit`
traces it again at the start and at the end of a recording.
"""

import dataclasses
import os
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd.callbacks import QuboRecorder
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.layers import BinaryDense
from keras_qpsbgd.optimizers import QPSBGD
from research.bench import timing

HELP = "time of a step that is recorded (6 minutes)"
THREADS = (1, 2)

SOLVERS = ("native", "ridge")
SIDES = ("none", "memory", "file")
RECORDED = ("memory", "file")
SIZE, ROWS, EVERY = 128, 64, 10
TARGET = 1.10


def names():
    """Returns the names that `--only` accepts."""
    return [*SOLVERS, *SIDES]


def measure(options):
    """Measures the ratios for each solver."""
    steps, blocks = (50, 4) if options.quick else (200, 20)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for solver in options.wanted(SOLVERS):
            sides = {
                side: _side(solver, side, folder, steps, blocks)
                for side in options.wanted(SIDES)
            }
            yardstick = _side(solver, "none", folder, steps, blocks)
            base, found = timing.compare(
                yardstick,
                sides,
                show=lambda text, name=solver: show_status(f"{name}, {text}"),
            )
            results[solver] = {
                "yardstick": dataclasses.asdict(base),
                "sides": {
                    side: dataclasses.asdict(times)
                    for side, times in found.items()
                },
            }
            keras.backend.clear_session()
    return results


def _side(solver, side, folder, steps, blocks):
    model = keras.Sequential(
        [keras.layers.InputLayer((SIZE,)), BinaryDense(SIZE)]
    )
    model.compile(
        QPSBGD(0.002, solver, seed=0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    if side == "none":
        model.make_train_function()
    else:
        path = os.path.join(folder, solver) if side == "file" else None
        recorder = QuboRecorder(path, every=EVERY)
        recorder.set_model(model)
        recorder.on_train_begin()
        recorder.on_train_batch_begin(0)
    batches = iter(_data())

    def block():
        for _ in range(steps):
            model.train_function(batches)

    return timing.Side(block, steps, blocks)


def _data():
    """Returns an endless dataset of 16 cached batches."""
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (16 * ROWS, SIZE)).astype("float32")
    y = random.integers(SIZE, size=(16 * ROWS, 1))
    data = tf.data.Dataset.from_tensor_slices((x, y))
    return data.batch(ROWS, drop_remainder=True).cache().repeat()


def table(results):
    """Returns the ratios of CPU and wall time by solver and side."""
    parts = []
    for threads, result in results.items():
        lines = [
            f"Step that records every {EVERY}th update / step without a "
            f"recorder, {_threads(threads)}",
            f"(layer {SIZE} x {SIZE}, {ROWS} rows)",
            f"{'solver':<10}{'recorder':<10}{'step ms':>9}{'CPU ratio':>12}"
            f"{'wall ratio':>12}",
        ]
        lines.append("-" * len(lines[-1]))
        for solver, row in result.items():
            milliseconds = 1e3 * row["yardstick"]["wall"]
            lines += [
                f"{solver:<10}{side:<10}{milliseconds:>9.2f}"
                f"{times['cpu_ratio']:>12.3f}{times['wall_ratio']:>12.3f}"
                for side, times in row["sides"].items()
            ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _threads(count):
    return f"{count} thread{'s' * (count > 1)}"


def verdicts(results):
    """Checks the target for every number of threads."""
    found = []
    for threads, result in results.items():
        for solver, row in result.items():
            for side, times in row["sides"].items():
                if side in RECORDED:
                    ratio = times["cpu_ratio"]
                    text = (
                        f"recorded / plain step, {solver}, {side}, CPU, "
                        f"{_threads(threads)}: {ratio:.3f} (< {TARGET:.2f})"
                    )
                    found.append((ratio < TARGET, text))
    return found
