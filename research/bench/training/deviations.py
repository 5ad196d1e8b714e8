"""Effect of each part of the rule of QP-SBGD, on handwritten digits.

    python -m research.bench.training.deviations

Trains a 64-32-10 network with binary weights and hard tanh, without batch
normalization, with QP-SBGD and the native backend for 20 epochs. The learning
rates decay to zero. Each row changes one thing. Every row uses the best of the
same three learning rates by validation accuracy on seeds 100 and 101. The test
accuracy is on seeds 0 to 4.
"""

import contextlib
import math
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse

import numpy as np
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import ops
from keras_qpsbgd.backends.graph.native import NativeBackend
from keras_qpsbgd.cli import digits
from keras_qpsbgd.compare.report.statistics import mean_and_error

RATES = (0.003, 0.01, 0.03)
EPOCHS = 20
BATCH = 32


def nothing_is_held():
    return replaced(
        "has_information",
        lambda gradient, fields, forces: tf.ones(fields.shape, tf.bool),
    )


def ascent_is_allowed():
    return replaced("never_ascend", lambda states, fields: states)


@contextlib.contextmanager
def replaced(name, value):
    original = getattr(ops, name)
    setattr(ops, name, value)
    forget_searches()
    try:
        yield
    finally:
        setattr(ops, name, original)
        forget_searches()


def forget_searches():
    """Clears the compiled searches, which still use the previous function."""
    vars(NativeBackend).get("_compiled", {}).clear()


PAPER = {"rule": "paper"}
# Name, arguments of `train`, change in the package.
ROWS = [
    ("unchanged", {}, contextlib.nullcontext),
    ("rule of the paper", PAPER, contextlib.nullcontext),
    ("no momentum", {"momentum": 0.0}, contextlib.nullcontext),
    ("no couplings (Signum)", {"backend": "sign"}, contextlib.nullcontext),
    ("no division by sqrt(n)", {"output": None}, contextlib.nullcontext),
    ("ascent allowed", {}, ascent_is_allowed),
    ("ascent allowed, rule of the paper", PAPER, ascent_is_allowed),
    ("pixels in [0, 1]", {"inputs": "01"}, contextlib.nullcontext),
    ("pixels in [0, 1], nothing held", {"inputs": "01"}, nothing_is_held),
]


def train(data, rate, seed, output="fan_in", inputs="pm", **options):
    """Trains a network and returns validation and test accuracy.

    Args:
        data: Digits of `digits.load`.
        rate: Float. The learning rate, which decays to zero.
        seed: Integer.
        output: `output_scale` of the binary layers.
        inputs: String. `"01"` for pixels in [0, 1], else they are in [-1, 1].
        **options: Arguments of `QPSBGD`.
    """
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.layers.InputLayer((64,)),
            kq.layers.BinaryDense(32, output_scale=output),
            keras.layers.Activation("hard_tanh"),
            kq.layers.BinaryDense(10, output_scale=output),
        ]
    )
    x, y = data.train
    steps = EPOCHS * math.ceil(len(x) / BATCH)
    optimizer = kq.QPSBGD(
        keras.optimizers.schedules.CosineDecay(rate, steps),
        seed=seed,
        **options,
    )
    optimizer.build(model.trainable_variables)
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    def scaled(x):
        return (x + 1) / 2 if inputs == "01" else x

    model.fit(scaled(x), y, epochs=EPOCHS, batch_size=BATCH, verbose=0)
    return [
        model.evaluate(scaled(part[0]), part[1], batch_size=512, verbose=0)[1]
        for part in (data.validation, data.test)
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=5,
        metavar="N",
        help="number of seeds for the test accuracy (default: %(default)s)",
    )
    arguments = parser.parse_args()
    data = digits.load()
    print(f"{'':<36}{'rate':>8}{'test accuracy':>20}")
    for name, settings, change in ROWS:
        with change():
            scores = {
                rate: np.mean(
                    [train(data, rate, s, **settings)[0] for s in (100, 101)]
                )
                for rate in RATES
            }
            rate = max(scores, key=scores.get)
            found = [
                100 * train(data, rate, seed, **settings)[1]
                for seed in range(arguments.seeds)
            ]
        mean, error = mean_and_error(found)
        result = f"{mean:.1f} +- {error:.1f} %"
        print(f"{name:<36}{rate:>8}{result:>20}", flush=True)
    print("+- is the standard error of the mean over seeds.")


if __name__ == "__main__":
    main()
