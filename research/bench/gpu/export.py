"""Writes training steps as programs of XLA, with initial states and batches.

    python -m research.bench.gpu.export FOLDER

The steps are those of Keras, `model.train_step`, compiled with XLA as on a GPU
and with what `native` and `ridge` do on a GPU. The data is random.
"""

import pathlib
import sys

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd.backends.graph import products
from keras_qpsbgd.optimizers import QPSBGD
from research.bench import fit_steps
from research.bench import stored
from research.bench.gpu import lowering
from research.bench.gpu import tables

NETWORKS = fit_steps.GPU_NETWORKS
# Backends of QP-SBGD by name, and Adam.
OPTIMIZERS = {
    "adam": None,
    **{name: fit_steps.SOLVERS[name] for name in tables.OPTIMIZERS},
}
BATCHES = 8


def main(folder):
    """Exports the steps of all networks and optimizers."""
    folder = pathlib.Path(folder)
    products.on_gpu = lambda: True
    for network in NETWORKS:
        for optimizer in OPTIMIZERS:
            size = export(folder, network, optimizer)
            print(f"{network}, {optimizer}: {size:,} bytes", flush=True)
            keras.backend.clear_session()
    # The runner stores it with the times.
    (folder / "code.txt").write_text(stored.code("gpu"))


def export(folder, network, optimizer):
    """Exports one step.

    Args:
        folder: `pathlib.Path`.
        network: String. Name of a network.
        optimizer: String. One of `OPTIMIZERS`.

    Returns:
        The size of the program in bytes.
    """
    model, x, y = _compiled_model(network, optimizer)

    @tf.function(jit_compile=True, autograph=False)
    def train_step(x, y):
        return model.train_step((x, y))

    batch = tf.constant(x[0]), tf.constant(y[0])
    program, graph = lowering.lower(train_step, *batch)
    values = lowering.State(graph).values()
    arrays = {f"state{index}": value for index, value in enumerate(values)}
    path = folder / network / f"{optimizer}.xz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(program)
    np.savez_compressed(path.with_suffix(".npz"), **arrays, inputs=x, targets=y)
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
    main(*sys.argv[1:])
