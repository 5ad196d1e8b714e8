"""Tests the activation `binary` in every layer and with every optimizer."""

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.layers import statistics

# (input, output, derivative)
POINTS = [
    (-np.inf, -1, 0),
    (-2.0, -1, 0),
    (-1.0, -1, 1),
    (-0.5, -1, 1),
    (-1e-4, -1, 1),
    (-0.0, 1, 1),
    (0.0, 1, 1),
    (0.5, 1, 1),
    (1.0, 1, 1),
    (1.5, 1, 0),
    (np.inf, 1, 0),
    (np.nan, -1, 0),
]


@pytest.mark.parametrize(
    "dtype, jit",
    [("float64", False), ("float32", True), ("float16", False)],
)
def test_values_and_gradient(dtype, jit):
    @tf.function(jit_compile=jit)
    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = kq.activations.binary(x)
            total = tf.reduce_sum(3 * y)
        return y, tape.gradient(total, x)

    x, signs, slopes = np.array(POINTS).T
    y, gradient = both(tf.constant(x, dtype))
    assert y.dtype == gradient.dtype == dtype
    np.testing.assert_array_equal(tf.cast(y, "float32"), signs)
    np.testing.assert_array_equal(tf.cast(gradient, "float32"), 3 * slopes)


def test_name_of_the_activation():
    assert keras.activations.get("binary") is kq.activations.binary
    layer = keras.layers.Activation("binary")
    np.testing.assert_array_equal(layer(np.array([[-3.0, 0.0]])), [[-1, 1]])
    again = keras.layers.Activation.from_config(layer.get_config())
    assert again.activation is kq.activations.binary


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
@pytest.mark.parametrize("suffix", ["keras", "h5"])
@pytest.mark.parametrize("name", ["binary", "hard_tanh"])
def test_saved_models(tmp_path, name, suffix):
    """Legacy Keras has no hard tanh, so binary layers add one."""
    layers = [
        keras.layers.InputLayer((4,)),
        kq.layers.BinaryDense(3, activation=name),
    ]
    if name == "binary":  # every layer accepts it
        layers.append(keras.layers.Dense(3, activation=name))
        layers.append(keras.layers.Activation(name))
    model = keras.Sequential(layers)
    x = np.random.default_rng(0).normal(size=(5, 4))
    path = str(tmp_path / f"model.{suffix}")
    model.save(path)
    loaded = keras.models.load_model(path)
    np.testing.assert_array_equal(loaded(x), model(x))


def test_rows_are_binary():
    first = kq.layers.BinaryDense(8, activation="binary")
    second = kq.layers.BinaryDense(3)
    x = np.random.default_rng(0).normal(size=(16, 5))
    rows = first(x)
    second.build((None, 8))
    mark = statistics.mark_of(second.kernel)
    mark.observer = observer = tools.KeptRows()
    second(rows)
    np.testing.assert_array_equal(observer.rows, [rows])
    assert set(np.unique(rows)) == {-1, 1}
