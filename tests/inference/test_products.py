"""Compares the kernels of all sets of instructions with NumPy and Keras."""

import numpy as np
import pytest
from tensorflow import keras

from keras_qpsbgd import bits
from keras_qpsbgd.inference import products
from keras_qpsbgd.inference.products import Output
from keras_qpsbgd.inference.products import SignProduct
from keras_qpsbgd.inference.products import Workers
from keras_qpsbgd.inference.products import XnorProduct
from keras_qpsbgd.inference.windows import Windows

pytestmark = pytest.mark.once
# The first one is for NumPy.
VARIANTS = range(-1, len(products.variants()))


def result(kind, levels, num_bits, windows, output, value, workers):
    kernels = "numpy" if workers.variant < 0 else "c"
    flat = levels.reshape(-1, levels.shape[-1])
    found = kind(flat, num_bits, kernels, windows, output)(value, workers)
    if isinstance(found, bits.Signs):
        spare = bits.pack_signs(bits.unpack_signs(found)).words
        np.testing.assert_array_equal(spare, found.words)  # spare bits are 0
        return np.where(bits.unpack_signs(found), 1, -1)
    return found


def check(levels, num_bits, windows, x, expected):
    """Compares all kinds of products and outputs with integers."""
    rng = np.random.default_rng(0)
    size = levels.shape[-1]
    limits = rng.integers(-9, 10, size).astype(np.int32)
    limits[::4] = np.resize([-(2**30), 2**30], limits[::4].shape)
    scale, shift = np.exp2(rng.integers(-3, 3, (2, size))).astype(np.float32)
    signs = bits.pack_signs(x >= 0)
    for number in VARIANTS:
        for threads in (1, 3):
            workers = Workers(threads, number)
            for kind, value, limit in (
                (XnorProduct, signs, limits),
                (SignProduct, x, np.float32(limits)),
            ):
                sums = expected[kind]
                for output, wanted in (
                    (Output(), sums),
                    (Output(limit), np.where(sums >= limits, 1, -1)),
                    (
                        Output(None, scale, shift, -4.0, 9.0),
                        np.clip(sums * scale + shift, -4, 9),
                    ),
                ):
                    found = result(
                        kind, levels, num_bits, windows, output, value, workers
                    )
                    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 128, 129, 500, 4100])
def test_rows(n):
    rng = np.random.default_rng(n)
    for rows, outputs, num_bits in ((1, 9, 2), (5, 230, 1), (37, 3, 3)):
        largest = 2**num_bits - 1
        levels = 2 * rng.integers(largest + 1, size=(n, outputs)) - largest
        x = rng.integers(-50, 50, (rows, n)).astype("float32")
        expected = {
            XnorProduct: np.where(x < 0, -1, 1) @ levels,
            SignProduct: x @ levels,
        }
        check(levels, num_bits, None, x, expected)


@pytest.mark.parametrize("channels", [1, 3, 63, 64, 65, 128, 130])
@pytest.mark.parametrize(
    "size, strides, dilations, padding",
    [
        ((3, 3), 1, 1, "same"),
        ((3, 2), 2, 1, "same"),
        ((2, 3), 1, 2, "same"),
        ((2, 3), 3, 1, "valid"),
        ((1, 1), 1, 1, "valid"),
        ((5, 5), 1, 1, "same"),  # larger than the image
    ],
    ids=str,
)
def test_images(channels, size, strides, dilations, padding):
    rng = np.random.default_rng(channels)
    outputs = 65 if channels == 64 else 9
    levels = 2 * rng.integers(2, size=(*size, channels, outputs)) - 1
    x = rng.integers(-5, 6, (2, 4, 7, channels)).astype("float32")
    arguments = {
        "strides": strides,
        "padding": padding,
        "dilation_rate": dilations,
    }
    layer = keras.layers.Conv2D(outputs, size, use_bias=False, **arguments)
    layer.build(x.shape)
    layer.set_weights([levels.astype("float32")])
    signs = np.where(x < 0, -1, 1).astype("float32")
    expected = {
        XnorProduct: layer(signs).numpy(),
        SignProduct: layer(x).numpy(),
    }
    windows = Windows(size, (strides, strides), (dilations, dilations), padding)
    check(levels, 1, windows, x, expected)


@pytest.mark.parametrize("sign", [1, -1])
def test_long_rows_do_not_overflow(sign):
    """The counts of a byte have to be widened in time."""
    n = 70_000
    levels = np.full((n, 5), sign)
    ones = bits.pack_signs(np.ones((9, n), bool))
    for number in VARIANTS:
        found = result(
            XnorProduct, levels, 1, None, None, ones, Workers(1, number)
        )
        np.testing.assert_array_equal(found, np.full((9, 5), sign * n))


def test_no_positions():
    """An image that is smaller than the window, and an empty batch."""
    windows = Windows((5, 5), (1, 1), (1, 1), "valid")
    levels = np.ones((5, 5, 3, 4), int)
    for number in VARIANTS:
        for shape in ((2, 3, 9, 3), (0, 9, 9, 3)):
            x = np.ones(shape, "float32")
            for kind, value in (
                (SignProduct, x),
                (XnorProduct, bits.pack_signs(x > 0)),
            ):
                workers = Workers(2, number)
                found = result(kind, levels, 1, windows, None, value, workers)
                assert found.size == 0


def test_nan_stays():
    """Also where small numbers become 0, as in Keras."""
    x = np.float32([[np.nan, 1.0], [-2.0, 1.0]] * 9)
    levels = np.ones((2, 5), int)
    for number in VARIANTS:
        workers = Workers(1, number)
        output = Output(low=0.0)
        found = result(SignProduct, levels, 1, None, output, x, workers)
        assert np.isnan(found[::2]).all()
        assert (found[1::2] == 0).all()


@pytest.mark.skipif(not products.variants(), reason="not compiled")
def test_c_functions_check_sizes():
    kernels = products._kernels
    numbers = np.array([2, 1, 1, 70, 3, *[1] * 6, 0, 0, 1, 1], np.int64)
    x = np.zeros((2, 70), np.float32)
    words = np.zeros((2, 2), np.uint64)
    kernel = np.zeros((2, 1, 3), np.uint64)
    lanes = np.zeros((1, 2, 8), np.uint64)
    sums = np.zeros((2, 3), np.int32)
    limits = np.zeros(3, np.int32)

    def product(numbers, *ends, variant=0, limits=None, x=words, out=sums):
        return kernels.bit_product(
            variant, numbers, x, lanes, limits, out, *ends
        )

    def real(numbers, *ends, planes=1, scale=None, shift=None):
        return kernels.sign_product(
            0,
            numbers,
            x,
            kernel,
            planes,
            None,
            scale,
            shift,
            0.0,
            1.0,
            sums.view(np.float32),
            *ends,
        )

    def pool(numbers, *ends):
        numbers = numbers.copy()
        numbers[4] = 70 if numbers[4] == 3 else numbers[4]
        return kernels.bit_pool(numbers, words, None, None, words.copy())

    for call in (product, real, pool):
        call(numbers, 0, 2)
        wrong = {0: 3, 1: 2, 2: 0, 3: 200, 4: 9, 5: 2**20, 7: 0, 9: -1, 13: 2}
        for place, number in wrong.items():
            changed = numbers.copy()
            changed[place] = number
            with pytest.raises(ValueError, match="sizes"):
                call(changed, 0, 2)
            changed[place] = 2**62
            with pytest.raises(ValueError, match="sizes"):
                call(changed, 0, 2)
        with pytest.raises(ValueError, match="sizes"):
            call(numbers[1:], 0, 2)
    for ends in ((0, 3), (-1, 2), (2, 1)):
        with pytest.raises(ValueError, match="sizes"):
            product(numbers, *ends)
    for changes in (
        {"variant": 9},
        {"variant": -1},
        {"limits": limits[:2]},
        {"limits": limits},  # the results would be words
        {"x": words[:1]},
    ):
        with pytest.raises(ValueError, match="sizes"):
            product(numbers, 0, 2, **changes)
    for changes in ({"planes": 2}, {"planes": 0}, {"scale": sums[0]}):
        with pytest.raises(ValueError, match="sizes"):
            real(numbers, 0, 2, **changes)
    with pytest.raises((TypeError, BufferError)):
        product(numbers, 0, 2, out=bytes(24))
