"""Train a binary network on two replicas with `tf.distribute`.

    python -m pip install "keras_qpsbgd[dwave,legacy]"
    python examples/distributed.py

Each replica gets half of every batch. Gradients are summed over the replicas,
and couplings are averaged. Only the first replica solves the QUBOs, in the
graph (`native`) or on the host (a `dimod.Sampler`). All replicas use its
solutions, so all copies of a kernel stay equal. Here, all inputs of a layer are
+1 or -1. The averaged couplings are then the same as on one device, and so are
the kernels, up to rounding. The script shows this for

1. Keras 3: `MirroredStrategy` with two logical CPUs of one process;
2. legacy Keras: `MultiWorkerMirroredStrategy` with two processes, which the
   script starts.

Keras 3.15 does not support several workers. Even with a plain `Dense` layer,
`fit` raises "ValueError: Attempt to convert a value (PerReplica...". See
https://github.com/keras-team/keras/issues/20585. Use legacy Keras instead.

If a solver fails with `on_failure="raise"`, `fit` ends on the first worker. The
others stop when its process ends.
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np

# The size of a step is a mean over all gradients, which rounds differently if
# two devices add them up.
ROUNDING = 1e-5


def train(strategy, backend):
    """Trains for some steps and returns all kernels in one vector."""
    from tensorflow import keras

    import keras_qpsbgd as kq

    # With this seed, no QUBO has two solutions of nearly equal energy.
    # Otherwise, the choice would depend on rounding errors, and thus on how a
    # batch is split.
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.choice([-1.0, 1.0], size=(160, 16)), rng.integers(3, size=160)
    with strategy.scope():
        hidden = kq.layers.BinaryDense(8, activation="binary")
        model = keras.Sequential([hidden, kq.layers.BinaryDense(3)])
        model.build((None, 16))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(kq.QPSBGD(0.02, backend=backend, seed=0), loss)
    before = hidden.kernel.numpy()
    # `batch_size` counts the samples of all replicas.
    model.fit(x, y, batch_size=32, shuffle=False, verbose=0)
    assert (before != hidden.kernel.numpy()).any(), "nothing was learned"
    return np.concatenate([np.ravel(k.kernel.numpy()) for k in model.layers])


def child(path):
    """Trains in a child process and writes the kernels to a file."""
    import tensorflow as tf
    from dwave.samplers import SimulatedAnnealingSampler

    class Sampler(SimulatedAnnealingSampler):
        calls = 0

        def sample(self, bqm, **parameters):
            self.calls += 1
            return super().sample(bqm, **parameters)

    found, sampler = {}, Sampler()
    if "TF_CONFIG" in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        cpu = tf.config.list_physical_devices("CPU")[0]
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        strategy = tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"])
        one = tf.distribute.get_strategy()
        found["one"] = [train(one, "native"), train(one, Sampler())]
    assert strategy.num_replicas_in_sync == 2
    found["two"] = [train(strategy, "native"), train(strategy, sampler)]
    np.savez(path, calls=sampler.calls, **found)


def start(*environments):
    """Starts a child process for each environment and returns their results."""
    # Two workers cannot share a GPU.
    settings = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    children, deadline = {}, time.monotonic() + 120
    with tempfile.TemporaryDirectory() as folder:
        try:
            for i, environment in enumerate(environments):
                path = os.path.join(folder, f"{i}.npz")
                command = [sys.executable, __file__, path]
                env = {**os.environ, **settings, **environment}
                children[path] = subprocess.Popen(command, env=env)
            for process in children.values():
                if process.wait(deadline - time.monotonic()):
                    sys.exit("a process failed")
        finally:  # a worker would wait forever for a lost one
            for process in children.values():
                process.kill()
                process.wait()
        return [dict(np.load(path)) for path in children]


def main():
    (found,) = start({"TF_USE_LEGACY_KERAS": "0"})
    mirrored = np.allclose(found["two"], found["one"], atol=ROUNDING)
    print("equal kernels on two replicas and on one device:", mirrored)
    if importlib.util.find_spec("tf_keras") is None:
        print("two workers: skipped, tf_keras is not installed")
        return mirrored

    free = ("localhost", 0)
    with socket.create_server(free) as a, socket.create_server(free) as b:
        names = [f"localhost:{s.getsockname()[1]}" for s in (a, b)]
    tasks = [{"type": "worker", "index": index} for index in range(2)]
    configs = [{"cluster": {"worker": names}, "task": task} for task in tasks]
    legacy = {"TF_USE_LEGACY_KERAS": "1"}
    first, second = start(
        *({**legacy, "TF_CONFIG": json.dumps(config)} for config in configs)
    )
    calls = [int(worker["calls"]) for worker in (first, second)]
    print("calls of the host solver by worker:", calls)
    single = np.allclose(first["two"], found["one"], atol=ROUNDING)
    print("equal kernels on two workers and on one device:", single)
    equal = np.array_equal(first["two"], second["two"])
    print("equal kernels on both workers:", equal)
    return mirrored and single and equal and calls[0] > 0 and calls[1] == 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(sys.argv[1])
    else:
        sys.exit(not main())
