"""Training gives the kernels that it gave before the library was reorganized.

The hashes were recorded at commit 2398f8f. They cover the signs of all weights
after every epoch, which do not depend on rounding.
"""

import hashlib

import numpy as np
import pytest
from tensorflow import keras

import keras_qpsbgd as kq

pytestmark = pytest.mark.once

CASES = {
    "native": ("75ef2bd515f2fea8", (12, 8, 3), "native", {}),
    "exact": ("75ef2bd515f2fea8", (12, 8, 3), "exact", {}),
    "ridge": ("37aee608c3c79e83", (40, 24, 3), "ridge", {}),
    "sign": ("0091592083d4af30", (40, 24, 3), "sign", {}),
    "dwave": (
        "4fb7bbafb0ae4a17",
        (8, 6, 3),
        {"name": "dwave", "mock": True, "num_reads": 10},
        {},
    ),
    "convolution": ("49b19c303ec47a99", None, "native", {}),
    "paper": ("5b40331155c0990a", (12, 8, 3), "exact", {"rule": "paper"}),
    "paper, convolution": (
        "6d321d9a1fd11a4d",
        None,
        "exact",
        {"rule": "paper"},
    ),
}
# The default, the rule of the paper and the fastest ones run each time.
FAST = ("native", "sign", "paper")


def dense(widths):
    layers = [keras.layers.InputLayer((widths[0],))]
    for width in widths[1:-1]:
        layers.append(kq.layers.BinaryDense(width, activation="hard_tanh"))
    return [*layers, kq.layers.BinaryDense(widths[-1])]


def convolution():
    return [
        keras.layers.InputLayer((6, 6, 1)),
        kq.layers.BinaryConv2D(4, 3, activation="hard_tanh"),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.slow] * (case not in FAST))
        for case in CASES
    ],
)
def test_training_gives_the_recorded_signs(case):
    expected, widths, backend, arguments = CASES[case]
    keras.utils.set_random_seed(3)
    rng = np.random.default_rng(5)
    shape = (64, widths[0]) if widths else (64, 6, 6, 1)
    x = rng.normal(size=shape).astype("float32")
    y = rng.integers(0, 3, 64)
    model = keras.Sequential(dense(widths) if widths else convolution())
    optimizer = kq.QPSBGD(backend=backend, seed=7, **arguments)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    optimizer.build(model.trainable_variables)
    found = hashlib.sha256()
    for _ in range(4):
        model.fit(x, y, epochs=1, batch_size=16, verbose=0, shuffle=False)
        for weights in model.get_weights():
            if weights.ndim > 1:
                found.update(np.where(weights >= 0, 1, -1).astype(np.int8))
    assert found.hexdigest()[:16] == expected
