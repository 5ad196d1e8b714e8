"""What a step of QP-SBGD costs, in steps of Adam on the same network.

    python benchmarks/step_cost.py

Ratios of CPU time on one thread, measured through `model.fit`. The two sides
take turns, block by block, so that whatever else the machine does meets both;
the figure is the median of the ratios of neighbouring blocks.
"""

import argparse
import math
import os
import statistics
import time

# Before TensorFlow starts its threads: XLA's pool knows no other switch.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_cpu_multi_thread_eigen=false",
    ]
)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from tensorflow import keras  # noqa: E402

import keras_qpsbgd as kq  # noqa: E402

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


class StraightThroughDense(keras.layers.Layer):
    """The least that a binary layer can be: the yardstick of `BinaryDense`."""

    def __init__(self, units, activation=None):
        super().__init__()
        self.units = units
        self.activation = keras.activations.get(activation)

    def build(self, input_shape):
        self.fan_in = input_shape[-1]
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.fan_in, self.units),
            initializer="glorot_uniform",
        )
        self.bias = self.add_weight(
            name="bias", shape=(self.units,), initializer="zeros"
        )

    def call(self, inputs):
        kernel = _straight_through(tf.convert_to_tensor(self.kernel))
        outputs = tf.matmul(inputs, kernel) / math.sqrt(self.fan_in)
        outputs += tf.convert_to_tensor(self.bias)
        return self.activation(outputs)


@tf.custom_gradient
def _straight_through(kernel):
    one = tf.ones_like(kernel)
    return tf.where(kernel >= 0, one, -one), lambda upstream: upstream


def small_mlp(dense):
    return keras.Sequential(
        [
            keras.layers.InputLayer((16,)),
            dense(4, activation="hard_tanh"),
            dense(4, activation="hard_tanh"),
            dense(2),
        ]
    )


def mnist_mlp():
    return keras.Sequential(
        [
            keras.layers.InputLayer((784,)),
            kq.layers.BinaryDense(256, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.Activation("hard_tanh"),
            kq.layers.BinaryDense(10, use_bias=False),
            keras.layers.BatchNormalization(),
        ]
    )


class Side:
    """A compiled model and a fixed data set of one block."""

    def __init__(self, model, optimizer, batch, steps):
        inputs = model.input_shape[-1]
        classes = model.output_shape[-1]
        random = np.random.default_rng(0)
        x = random.uniform(-1, 1, (batch * steps, inputs)).astype("float32")
        y = random.integers(classes, size=len(x))
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)
        # Batches are made beforehand: only the step is to be measured.
        self.data = data.cache()
        self.steps = steps
        self.model = model
        self.model.compile(
            optimizer=optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )

    def block(self):
        """CPU milliseconds per step."""
        start = time.process_time()
        self.model.fit(self.data, shuffle=False, verbose=0)
        return 1e3 * (time.process_time() - start) / self.steps


def compare(left, right, blocks):
    """Medians of both sides and of the ratios of neighbouring blocks."""
    for _ in range(2):  # tracing, compilation, the cache
        left.block()
        right.block()
    pairs = []
    for index in range(blocks):
        if index % 2:  # neither side is always the second
            pairs.append((left.block(), right.block()))
        else:
            pairs.append((right.block(), left.block())[::-1])
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
    )


def measure_small(blocks):
    return compare(
        Side(
            small_mlp(kq.layers.BinaryDense), kq.QPSBGD(0.02, seed=0), 64, 300
        ),
        Side(small_mlp(kq.layers.BinaryDense), "adam", 64, 300),
        blocks,
    )


def measure_layer(blocks):
    return compare(
        Side(small_mlp(kq.layers.BinaryDense), "adam", 64, 300),
        Side(small_mlp(StraightThroughDense), "adam", 64, 300),
        blocks,
    )


def measure_mnist(blocks):
    return compare(
        Side(mnist_mlp(), kq.QPSBGD(0.002, seed=0), 128, 50),
        Side(mnist_mlp(), "adam", 128, 50),
        blocks,
    )


MEASUREMENTS = {
    "QP-SBGD : Adam, 16-4-4-2, batch 64": (measure_small, 2.5),
    "BinaryDense : plain layer, both Adam": (measure_layer, 1.05),
    "QP-SBGD : Adam, 784-256-10, batch 128": (measure_mnist, 5.0),
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--blocks", type=int, default=20, help="pairs of blocks"
    )
    blocks = parser.parse_args().blocks
    print("CPU milliseconds per step, one thread\n")
    print(f"{'':<38}{'first':>7}{'second':>8}{'ratio':>8}{'target':>9}")
    for name, (measure, target) in MEASUREMENTS.items():
        first, second, ratio = measure(blocks)
        verdict = "PASS" if ratio <= target else "FAIL"
        limit = f"<= {target:g}"
        print(
            f"{name:<38}{first:>7.2f}{second:>8.2f}{ratio:>8.2f}{limit:>9}"
            f"  {verdict}",
            flush=True,
        )


if __name__ == "__main__":
    main()
