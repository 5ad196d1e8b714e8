"""Compares the compiled kernels of an installed wheel with NumPy.

Needs this package and NumPy only. `.github/workflows/wheels.yml` runs it on
every system that wheels are built for.
"""

import numpy as np

from keras_qpsbgd.inference import products

assert "c" in products.available(), "the wheel has no compiled kernels"
rng = np.random.default_rng(0)
for inputs, outputs in ((5, 3), (64, 250), (200, 10), (784, 300)):
    words = -(-inputs // 64)
    for rows in (1, 2, 5):
        # Integers, so that the order of additions does not matter.
        x = rng.integers(-9, 9, (rows, inputs)).astype(np.float32)
        bits = rng.integers(2**63, size=(rows, words), dtype=np.uint64)
        blocks = rng.integers(2**63, size=(words, outputs), dtype=np.uint64)
        kernel = np.ascontiguousarray(blocks.T)
        for c, numpy, values, weights, kind in (
            (
                products._sign_c,
                products._sign_numpy,
                x,
                blocks,
                np.float32,
            ),
            (
                products._xnor_c,
                products._xnor_numpy,
                bits,
                kernel,
                np.int32,
            ),
        ):
            found, expected = np.zeros((2, rows, outputs), kind)
            c(values, weights, found, inputs)
            numpy(values, weights, expected, inputs)
            np.testing.assert_array_equal(found, expected)
print("The compiled kernels agree with NumPy.")
