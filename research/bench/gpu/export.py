"""Writes training steps as programs of XLA, with initial states and batches.

    python -m research.bench.gpu.export FOLDER [--only NAME ...] [--check]

The steps are those of Keras, `model.train_step`, compiled with XLA as on a GPU
and with what `native` and `ridge` do on a GPU. The data is random.
`--only` selects networks and optimizers. `--check` also takes the first step
here and stores the signs of its updates, to which `runner.py` compares those of
the other device.
"""

import argparse
import pathlib
import sys

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd.backends.graph import products
from keras_qpsbgd.cli.console import WIDTH
from keras_qpsbgd.optimizers import QPSBGD
from research.bench import fit_steps
from research.bench import stored
from research.bench.gpu import lowering
from research.bench.harness import Options

NETWORKS = fit_steps.GPU_NETWORKS
# Backends of QP-SBGD by name, and Adam.
OPTIMIZERS = {"adam": None, **fit_steps.SOLVERS}
BATCHES = 8


def main(arguments=None):
    """Exports the steps of the command line."""
    names = [*NETWORKS, *OPTIMIZERS]
    parser = argparse.ArgumentParser(
        prog="python -m research.bench.gpu.export",
        description="Write training steps as programs of XLA.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=WIDTH),
    )
    parser.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
    parser.add_argument(
        "--only",
        nargs="+",
        default=(),
        choices=names,
        metavar="NAME",
        help=f"networks and optimizers: {', '.join(names)} (default: all)",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="store the signs of the updates of the first step",
    )
    arguments = parser.parse_args(arguments)
    products.on_gpu = lambda: True
    options = Options(only=tuple(arguments.only))
    for network in options.wanted(NETWORKS):
        for optimizer in options.wanted(OPTIMIZERS):
            size = export(arguments.folder, network, optimizer, arguments.check)
            print(f"{network}, {optimizer}: {size:,} bytes", flush=True)
            keras.backend.clear_session()
    # The runner stores it with the times.
    (arguments.folder / "code.txt").write_text(stored.code("gpu"))


def export(folder, network, optimizer, check=False):
    """Exports one step.

    Args:
        folder: `pathlib.Path`.
        network: String. Name of a network.
        optimizer: String. One of `OPTIMIZERS`.
        check: Boolean. Whether to store the signs of the updates.

    Returns:
        The size of the program in bytes.
    """
    model, x, y = _compiled_model(network, optimizer)

    @tf.function(jit_compile=True, autograph=False)
    def train_step(x, y):
        return model.train_step((x, y))

    batch = tf.constant(x[0]), tf.constant(y[0])
    program, graph = lowering.lower(train_step, *batch)
    state = lowering.State(graph)
    before = state.values()
    arrays = {f"state{index}": value for index, value in enumerate(before)}
    if check:
        train_step(*batch)
        after = state.values()
        for variable in model.trainable_variables:
            index = state.position(variable)
            if before[index].ndim > 1:  # a kernel
                signs = np.sign(after[index] - before[index]).astype("int8")
                arrays[f"signs{index}"] = signs
    path = folder / network / f"{optimizer}.xz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(program)
    arrays |= {"inputs": x, "targets": y}
    np.savez_compressed(path.with_suffix(".npz"), **arrays)
    return len(program)


def _compiled_model(name, optimizer):
    """Returns a model that is ready to train, and its batches."""
    network = NETWORKS[name]
    keras.utils.set_random_seed(0)  # the same weights for all optimizers
    if OPTIMIZERS[optimizer]:
        optimizer = QPSBGD(network.rate, OPTIMIZERS[optimizer], seed=0)
    training = fit_steps.Training(network, optimizer)
    model = training.model
    model.optimizer.build(model.trainable_variables)
    return model, *training.arrays(BATCHES)


if __name__ == "__main__":
    sys.exit(main())
