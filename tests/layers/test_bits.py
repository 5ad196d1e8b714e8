"""Tests weights of one to four bits and the scale of each channel."""

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.layers import rounding
from keras_qpsbgd.qubo import ops

BITS = (1, 2, 3, 4)
INPUT = keras.layers.InputLayer
UNIFORM = keras.initializers.RandomUniform(-1, 1, seed=1)


def nearest_levels(x, bits):
    """Compares `x` with every level, in exact arithmetic for these `x`."""
    top = 2**bits - 1
    levels = np.arange(-top, top + 1, 2)
    away = np.abs(np.float64(x)[..., None] - levels / top)
    # On the border of two cells, the upper level is the nearest.
    return levels[::-1][away[..., ::-1].argmin(axis=-1)]


def images(size=6):
    return np.random.default_rng(0).normal(size=(4, size, size, 2))


@pytest.mark.parametrize("bits", BITS)
def test_levels_are_the_nearest(bits):
    top = 2**bits - 1
    x = np.random.default_rng(0).uniform(-1.5, 1.5, 500).astype("float32")
    np.testing.assert_array_equal(
        rounding.levels(x, bits), nearest_levels(x, bits)
    )
    # The borders of the cells, multiplied by L so that they are exact.
    for cell in range(-(2 ** (bits - 1)) + 1, 2 ** (bits - 1)):
        border = np.float32(2 * cell) / np.float32(top)
        if np.float32(border * np.float32(top / 2)) == cell:
            assert rounding.levels(border, bits) == 2 * cell + 1
        inside = np.float32((2 * cell - 1e-3) / top)
        assert rounding.levels(inside, bits) == 2 * cell - 1
    ends = np.array([-np.inf, -2, -1, 1, 2, np.inf, 0.0, -0.0], "float32")
    expected = [-top, -top, -top, top, top, top, 1, 1]
    assert rounding.levels(ends, bits).numpy().tolist() == expected
    if bits > 1:
        assert np.isnan(rounding.levels(np.float32(np.nan), bits))
    else:
        np.testing.assert_array_equal(rounding.levels(x, 1), ops.sign(x))


@pytest.mark.parametrize("bits", BITS)
def test_weights_and_straight_through_gradient(bits):
    kernel = tf.constant(np.linspace(-1.3, 1.3, 40).astype("float32"))
    factors = tf.constant(np.random.default_rng(0).normal(size=40), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(kernel)
        found = rounding.binarize(kernel, bits)
        result = tf.reduce_sum(factors * found)
    top = np.float32(2**bits - 1)
    levels = rounding.levels(kernel, bits).numpy()
    np.testing.assert_allclose(found, levels / top, rtol=1.2e-7)
    assert found.numpy()[[0, -1]].tolist() == [-1, 1]  # exactly
    np.testing.assert_array_equal(tape.gradient(result, kernel), factors)
    compiled = tf.function(rounding.binarize, jit_compile=True)(kernel, bits)
    np.testing.assert_array_equal(found, compiled)


@pytest.mark.parametrize("scale", ("fan_in", "channel", None))
@pytest.mark.parametrize("bits", (1, 3))
@pytest.mark.parametrize("kind", ("dense", "conv", "first", "graph"))
def test_layers_compute_with_levels(kind, bits, scale):
    """The layers equal the Keras layer with the scaled levels as kernel."""
    arguments = {"bits": bits, "output_scale": scale}
    arguments["kernel_initializer"] = UNIFORM
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(4, 5)).astype("float32")
    if kind == "dense":
        layer = kq.layers.BinaryDense(3, **arguments)
        plain = keras.layers.Dense(3)
    elif kind == "graph":
        layer = kq.layers.BinaryGraphConv(3, **arguments)
        plain = keras.layers.Dense(3)
    else:
        inputs = images().astype("float32")
        layer = kq.layers.BinaryConv2D(3, 2, **arguments)
        if kind == "first":
            layer = kq.layers.BinaryConv2D(
                3, 2, data_format="channels_first", **arguments
            )
        plain = keras.layers.Conv2D(3, 2)
    given = inputs
    if kind == "graph":
        given = [inputs, np.eye(4, dtype="float32")]
    if kind == "first":
        given = inputs.transpose(0, 3, 1, 2)
    layer(given)
    plain(inputs)
    fan_in = 8 if inputs.ndim == 4 else 5
    factor = {"fan_in": fan_in**-0.5, None: 1.0}.get(scale)
    kernel, bias = layer.get_weights()[:2]
    assert not bias.any()
    bias = rng.normal(size=3)
    weights = [kernel, bias]
    if scale == "channel":
        np.testing.assert_allclose(layer.scale, [fan_in**-0.5] * 3, rtol=1e-6)
        assert [w is layer.scale for w in layer.weights] == [False, False, True]
        factor = rng.normal(size=3)
        weights.append(factor)
    layer.set_weights(weights)
    levels = layer.binary_kernel.numpy()
    np.testing.assert_array_equal(levels, nearest_levels(kernel, bits))
    plain.set_weights([levels / (2**bits - 1) * factor, bias])
    for training in (True, False, None):
        found = layer(given, training=training).numpy()
        if kind == "first":
            found = found.transpose(0, 2, 3, 1)
        np.testing.assert_allclose(found, plain(inputs), atol=1e-5)


def test_a_custom_layer_without_rows():
    class BinaryFactors(kq.layers.BinaryLayer):
        def build(self, input_shape):
            self.kernel = self.add_weight(
                name="kernel", shape=(input_shape[-1],), initializer=UNIFORM
            )
            self.mark_binary(self.kernel)

        def binary_call(self, inputs, binary_kernel):
            return inputs * binary_kernel

        def call(self, inputs, training=None):
            return self.binary_product(inputs, training)

    layer = BinaryFactors(bits=2, output_scale="channel")
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    found = layer(x)
    np.testing.assert_allclose(found, x * layer.binary_kernel / 3, rtol=1e-5)
    assert layer.scale.shape == (4,)
    layer.kernel.assign([0.5, 0.5, 0.5, 0.5])
    model = keras.Sequential([layer])
    model.compile(kq.QPSBGD(0.25, "sign"), "mse", run_eagerly=True)
    model.fit(x, x * [1.0, -1.0, 1.0, -1.0], batch_size=64, verbose=0)
    expected = [0.75, 0.25, 0.75, 0.25]
    np.testing.assert_allclose(layer.kernel, expected, rtol=1e-5)


def test_shared_kernels_need_the_same_bits():
    class Shared(kq.layers.BinaryDense):
        def build(self, input_shape):
            self.mark_binary(first.kernel)

    first = kq.layers.BinaryDense(2, bits=2)
    first.build((None, 3))
    Shared(2, bits=2).build((None, 3))
    with pytest.raises(ValueError, match="same `bits`, 2. Received: bits=3"):
        Shared(2, bits=3).build((None, 3))


def test_mixed_precision():
    """Levels come from the float32 kernel. The scale is float32."""
    layer = kq.layers.BinaryDense(
        1, bits=2, output_scale="channel", dtype="mixed_float16"
    )
    layer(np.ones((1, 2)))
    kernel = np.float32([[-1e-9], [2 / 3 - 1e-7]])  # float16 rounds both up
    layer.set_weights([kernel, np.zeros(1), np.ones(1)])
    assert layer.binary_kernel.numpy().tolist() == [[-1], [1]]
    output = layer(np.array([[1.0, 3.0]]))
    assert output.dtype == "float16"
    assert float(output[0, 0]) == pytest.approx(2 / 3, abs=2e-3)
    assert layer.scale.numpy().dtype == "float32"


@pytest.mark.parametrize(
    "suffix", ("keras", pytest.param("h5", marks=pytest.mark.exhaustive))
)
def test_save_load_and_continue(tmp_path, suffix):
    x, y = images(), np.array([0, 1, 2, 1])
    layer = kq.layers.BinaryDense(3, bits=3, output_scale="channel")
    model = keras.Sequential([INPUT((6, 6, 2)), keras.layers.Flatten(), layer])
    opt = tools.optimizer(backend="sign")
    model.compile(opt, tools.loss(), run_eagerly=True)
    model.fit(x, y, verbose=0)
    path = str(tmp_path / f"model.{suffix}")
    model.save(path)
    loaded = keras.models.load_model(path)
    assert loaded.layers[-1].bits == 3
    names = [weight.name.split("/")[-1] for weight in loaded.layers[-1].weights]
    assert [name.split(":")[0] for name in names] == ["kernel", "bias", "scale"]
    # Keras 3 does not restore the state of an optimizer from an HDF5 file.
    for _ in range(1 if suffix == "h5" else 2):
        tools.assert_equal(loaded.get_weights(), model.get_weights())
        np.testing.assert_array_equal(loaded(x), model(x))
        for each in (model, loaded):
            each.fit(x, y, shuffle=False, verbose=0)


def test_summary_by_hand():
    model = keras.Sequential(
        [
            INPUT((5,)),
            kq.layers.BinaryDense(3, bits=2, output_scale="channel"),
            kq.layers.BinaryDense(2, bits=4, use_bias=False),
        ]
    )
    texts = []
    found = kq.summary(model, texts.append)
    first, last = found.layers
    assert (first.bits, first.binary_params, first.real_params) == (2, 15, 6)
    assert first.packed_bytes == 4 + 24  # 30 bits, and six real numbers
    assert first.bits_per_weight == (32 + 192) / 21
    assert first.float32_bytes == 4 * 18  # a float layer has no scale
    assert (last.bits, last.packed_bytes, last.bits_per_weight) == (4, 3, 4)
    assert found.bits_per_weight == (32 + 192 + 24) / 27
    assert found.compression == 4 * 24 / 31
    assert "Compression: 3.1x" in texts[0]


def test_flip_ratio_counts_levels():
    layer = kq.layers.BinaryDense(1, bits=2)
    layer.build((None, 4))
    layer.kernel.assign([[0.2], [0.2], [-0.9], [0.9]])
    metric = kq.metrics.FlipRatio(layer)
    metric.reset_state()
    layer.kernel.assign([[0.3], [0.8], [-0.7], [0.9]])  # levels 1, 3, -3, 3
    metric.update_state()
    assert float(metric.result()) == 0.25
