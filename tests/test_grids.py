"""`grids.find`: arrays of levels times scales."""

import numpy as np
import pytest

from keras_qpsbgd import grids

SHAPES = [
    # shape, axes with scales
    ((40, 30), (1,)),
    ((40, 30), (0,)),
    ((40, 30), ()),
    ((9, 4), (1,)),
    ((3, 3, 8, 1), (2,)),
    ((3, 3, 6, 5), (2,)),  # transposed
    ((3, 2, 6, 2), (2, 3)),  # depthwise
    ((6, 4, 5), (0, 2)),
    ((2, 2, 2, 3, 4), (4,)),
]


def levels_and_scales(shape, axes, bits, seed=0):
    rng = np.random.default_rng(seed)
    limit = 2**bits - 1
    levels = 2 * rng.integers(limit + 1, size=shape) - limit
    sizes = [n if axis in axes else 1 for axis, n in enumerate(shape)]
    return levels, rng.lognormal(0, 5, sizes).astype("float32")


@pytest.mark.once
@pytest.mark.parametrize("bits", range(1, 5))
@pytest.mark.parametrize("shape, axes", SHAPES)
def test_arrays_on_a_grid(shape, axes, bits):
    levels, scales = levels_and_scales(shape, axes, bits)
    array = (levels * scales.astype("float64")).astype("float32")
    found = grids.find(array)
    assert (found.bits, found.axes) == (bits, axes)
    assert found.scales.shape == scales.shape
    # Bit by bit, also the sign of zero.
    assert (found.levels * found.scales).tobytes() == array.tobytes()
    assert found.num_bytes == -(-array.size * bits // 8) + 4 * scales.size
    # With the rounding errors of a converter.
    errors = np.random.default_rng(1).uniform(-2e-7, 2e-7, shape)
    rounded = (array * (1 + errors)).astype("float32")
    assert grids.find(rounded) is None
    found = grids.find(rounded, grids.TOLERANCE)
    assert (found.bits, found.axes) == (bits, axes)
    np.testing.assert_allclose(
        found.levels * found.scales, array, rtol=2 * grids.TOLERANCE
    )


@pytest.mark.once
def test_zeros():
    array = np.zeros((8, 5), "float32")
    array[0] = -0.0
    array[:, 1] = [3, -1, 3, 3, 1, 1, -1, 3]
    found = grids.find(array)
    assert (found.bits, found.axes) == (2, (1,))
    assert (found.levels * found.scales).tobytes() == array.tobytes()


@pytest.mark.once
@pytest.mark.parametrize("value", [0, 2, 17, 1.5, np.nan, np.inf])
def test_a_single_other_weight(value):
    levels, _ = levels_and_scales((100, 90), (), 4)
    array = levels.astype("float32")
    assert grids.find(array).bits == 4
    array[70, 80] = value
    assert grids.find(array) is None


@pytest.mark.once
@pytest.mark.parametrize(
    "array",
    [
        np.ones((8, 1), "float64"),
        np.ones(8, "float32"),
        np.zeros((0, 3), "float32"),
        np.float32([[1.3, 2.4, 3.5]]),  # one weight per scale
        np.random.default_rng(0).normal(size=(50, 40)).astype("float32"),
    ],
)
def test_other_arrays(array):
    assert grids.find(array) is None
