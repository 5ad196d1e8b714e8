"""Compares the compiled kernels of an installed wheel with NumPy.

Needs this package and NumPy only. `.github/workflows/wheels.yml` runs it on
every system that wheels are built for.
"""

import numpy as np

from keras_qpsbgd import bits
from keras_qpsbgd.inference import products
from keras_qpsbgd.inference.windows import Windows

assert "c" in products.available(), "the wheel has no compiled kernels"
rng = np.random.default_rng(0)
SHAPES = [(5,), (64,), (784,), (6, 7, 3), (5, 9, 64), (4, 4, 130)]


def arrays(found):
    return found.words if isinstance(found, bits.Signs) else found


for shape in SHAPES:
    windows = None
    inputs = shape[-1]
    if len(shape) == 3:
        windows = Windows((3, 3), (1, 1), (1, 1), "same")
        inputs *= 9
    for count, outputs in ((1, 10), (3, 70), (20, 250)):
        levels = 2 * rng.integers(2, size=(inputs, outputs)) - 1
        # Integers, so that the order of additions does not matter.
        x = rng.integers(-9, 9, (count, *shape)).astype(np.float32)
        limits = rng.integers(-9, 9, outputs).astype(np.int32)
        for kind, value, limit in (
            (products.SignProduct, x, limits.astype(np.float32)),
            (products.XnorProduct, bits.pack_signs(x >= 0), limits),
        ):
            for output in (products.Output(), products.Output(limit)):
                found = [
                    arrays(
                        kind(levels, 1, kernels, windows, output)(
                            value, products.Workers(1, max(number, 0))
                        )
                    )
                    for number, kernels in enumerate(
                        ["numpy"] + ["c"] * len(products.variants()), -1
                    )
                ]
                for other in found[1:]:
                    np.testing.assert_array_equal(other, found[0])
print("These kernels agree with NumPy:", ", ".join(products.variants()))
