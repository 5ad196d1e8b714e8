"""Solve QUBOs on many machines.

All host solvers except `dwave` accept a `concurrent.futures.Executor` as
`executor`, which solves the columns of all layers in parallel. This script uses
the executor of a Dask cluster with two local processes. To use a whole cluster,
replace `LocalCluster(...)` with the address of its scheduler. To use several
processes on this machine without Dask, pass `kq.backends.process_pool()`.

    python -m pip install "keras_qpsbgd[dwave,cluster]"
    python examples/cluster.py

An executor pays off if solving takes longer than sending the data, as with
exact solvers, long annealing or wide layers. Every worker imports TensorFlow
and starts its own solver, so the first step is slow.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Without this, `distributed.py` in this folder shadows Dask's package
# `distributed`.
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if path != HERE]

import numpy as np
from dask.distributed import Client
from dask.distributed import LocalCluster
from tensorflow import keras

import keras_qpsbgd as kq


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(512, 24)).astype("float32")
    y = (x[:, :8].sum(axis=1) > 0).astype("int32")
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.InputLayer((24,)),
            kq.layers.BinaryDense(16, activation="hard_tanh"),
            kq.layers.BinaryDense(2),
        ]
    )
    with LocalCluster(n_workers=2, threads_per_worker=1) as cluster:
        with Client(cluster) as client:
            backend = {
                "name": "simulated_annealing",
                "num_reads": 5,
                "executor": client.get_executor(),
            }
            model.compile(
                kq.QPSBGD(0.02, backend=backend, seed=0),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
            )
            history = model.fit(x, y, epochs=5, batch_size=64, verbose=2)
            workers = len(client.scheduler_info()["workers"])
    print(model.optimizer.solver_report())
    print(f"workers: {workers}")
    print(f"accuracy: {history.history['accuracy'][-1]:.3f}")


# Workers import this file. Without this line, each would start a cluster.
if __name__ == "__main__":
    main()
