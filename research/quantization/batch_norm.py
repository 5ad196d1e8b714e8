"""Measures what `kq.quantize` gains from folding and correcting batch norms.

    python -m research.quantization.batch_norm --data DIR --seeds 5

Small networks are trained on MNIST and quantized with all their layers. In
`plain` and `separable`, every convolution has a normalization after it, which
can be folded. In `preactivation`, a residual network, they come before the
convolutions. One line of JSON is printed per quantized network.
"""

import argparse
import contextlib
import itertools
import json
import pathlib
import time

import numpy as np
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.quantization import batch_norm

L = keras.layers
SAMPLES, EPOCHS, CALIBRATION = 20000, 3, 1024
METHODS = ("gptq+scales", "descent+scales")
BITS = (1, 2)
SETTINGS = ("neither", "fold", "correct", "both")


def plain():
    """Returns a network whose normalizations follow convolutions."""
    x = inputs = keras.Input((28, 28, 1))
    for filters, strides in ((16, 2), (32, 2), (32, 1), (32, 1)):
        x = L.Conv2D(filters, 3, strides, "same", use_bias=False)(x)
        x = L.ReLU()(L.BatchNormalization(momentum=0.9)(x))
    x = L.Dense(10)(L.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, x)


def separable():
    """Returns a network of depthwise and pointwise convolutions."""
    inputs = keras.Input((28, 28, 1))
    x = L.Conv2D(32, 3, 4, "same", use_bias=False)(inputs)
    x = L.ReLU()(L.BatchNormalization(momentum=0.9)(x))
    for _ in range(6):
        x = L.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
        x = L.ReLU()(L.BatchNormalization(momentum=0.9)(x))
        x = L.Conv2D(48, 1, use_bias=False)(x)
        x = L.ReLU()(L.BatchNormalization(momentum=0.9)(x))
    x = L.Dense(10)(L.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, x)


def preactivation():
    """Returns a network whose normalizations precede convolutions."""
    inputs = keras.Input((28, 28, 1))
    x = L.Conv2D(32, 3, 4, "same", use_bias=False)(inputs)
    for _ in range(8):
        y = L.ReLU()(L.BatchNormalization(momentum=0.9)(x))
        x = L.Add()([x, L.Conv2D(32, 3, padding="same", use_bias=False)(y)])
    x = L.ReLU()(L.BatchNormalization(momentum=0.9)(x))
    x = L.Dense(10)(L.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, x)


def read(folder):
    """Returns the training and the test data of MNIST."""
    with np.load(pathlib.Path(folder, "mnist.npz")) as file:
        x, y = file["x_train"][:SAMPLES], file["y_train"][:SAMPLES]
        test = file["x_test"], file["y_test"]
    return [
        (v[..., None].astype("float32") / 255, c) for v, c in ((x, y), test)
    ]


def train(build, data, seed):
    """Returns a trained network."""
    keras.utils.set_random_seed(seed)
    model = build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    steps = EPOCHS * len(data[0]) // 128
    rate = keras.optimizers.schedules.CosineDecay(0.004, steps)
    model.compile(keras.optimizers.Adam(rate), loss)
    model.fit(*data, batch_size=128, epochs=EPOCHS, verbose=0)
    return model


@contextlib.contextmanager
def only(setting):
    """Switches folding or the correction off."""
    fold, correct = batch_norm.fold, batch_norm.Correction._correct
    if setting in ("neither", "correct"):
        batch_norm.fold = lambda model, batch, targets: batch_norm.Folded(
            model, targets, set()
        )
    if setting in ("neither", "fold"):
        batch_norm.Correction._correct = lambda self, layer: None
    try:
        yield
    finally:
        batch_norm.fold, batch_norm.Correction._correct = fold, correct


def measure(model, data, setting, bits, method, seed):
    """Quantizes a network and returns its accuracy and its output error."""
    (x, _), (x_test, y_test) = data
    start = time.process_time()
    with only(setting):
        quantized, _ = kq.quantize(
            model, x[:CALIBRATION], bits, method=method, seed=seed, verbose=0
        )
    seconds = time.process_time() - start
    wanted, found = (m.predict(x_test, 500, 0) for m in (model, quantized))
    total = ((wanted - wanted.mean(axis=0)) ** 2).sum()
    return {
        "float": float((wanted.argmax(axis=1) == y_test).mean()),
        "accuracy": float((found.argmax(axis=1) == y_test).mean()),
        "error": float(((found - wanted) ** 2).sum() / total),
        "cpu_seconds": seconds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder of mnist.npz")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    data = read(options.data)
    builds = (plain, separable, preactivation)
    for build, seed in itertools.product(builds, range(options.seeds)):
        model = train(build, data[0], seed)
        for method, bits, setting in itertools.product(METHODS, BITS, SETTINGS):
            record = {
                "network": build.__name__,
                "seed": seed,
                "method": method,
                "bits": bits,
                "setting": setting,
                **measure(model, data, setting, bits, method, seed),
            }
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
