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


def graph_model():
    x = keras.Input((4,), batch_size=5)
    a = keras.Input((5,), batch_size=5)
    h = kq.layers.BinaryGraphConv(3, activation="binary")([x, a])
    return keras.Model([x, a], kq.layers.BinaryGraphConv(2)([h, a]))


def models():
    """Returns a model and its input for each kind of layer."""
    layers = kq.layers
    first = keras.layers.InputLayer
    rng = np.random.default_rng(0)
    adjacency = np.full((5, 5), 0.2, "float32")
    return {
        "dense": (
            [first((4,)), layers.BinaryDense(3, activation="binary")],
            rng.normal(size=(5, 4)),
        ),
        "conv": (
            [first((5, 5, 1)), layers.BinaryConv2D(3, 3, activation="binary")],
            rng.normal(size=(2, 5, 5, 1)),
        ),
        "einsum": (
            [
                first((4, 3)),
                layers.BinaryEinsumDense(
                    "abc,cd->abd", (None, 2), activation="binary"
                ),
            ],
            rng.normal(size=(2, 4, 3)),
        ),
        "hard_tanh": (  # legacy Keras has none, so the package adds one
            [first((3,)), layers.BinaryDense(3, activation="hard_tanh")],
            9 * np.sign(rng.normal(size=(5, 3))),
        ),
        "stock": (
            [
                first((4,)),
                keras.layers.Dense(3, activation="binary"),
                keras.layers.BatchNormalization(),
                keras.layers.Activation("binary"),
            ],
            rng.normal(size=(5, 4)),
        ),
        "graph": (
            graph_model(),
            [rng.normal(size=(5, 4)).astype("float32"), adjacency],
        ),
    }


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
@pytest.mark.parametrize(
    "kind, suffix",
    [(kind, "keras") for kind in models()]
    + [(kind, "h5") for kind in ("dense", "hard_tanh", "graph")],
)
def test_saved_models(tmp_path, kind, suffix):
    model, x = models()[kind]
    if isinstance(model, list):
        model = keras.Sequential(model)
        assert set(np.unique(model(x))) <= {-1.0, 1.0}
    path = str(tmp_path / f"model.{suffix}")
    model.save(path)
    loaded = keras.models.load_model(path)
    np.testing.assert_array_equal(loaded(x), model(x))
    np.testing.assert_array_equal(
        type(model).from_config(model.get_config())(x).shape, model(x).shape
    )


OPTIMIZERS = {
    "paper": lambda: kq.QPSBGD(0.3, "sign", rule="paper"),
    "sign": lambda: kq.QPSBGD(0.3, "sign"),
    "sign_sgd": lambda: kq.optimizers.SignSGD(0.1),
    "prox_quant": lambda: kq.optimizers.ProxQuant(0.1),
    "bop": lambda: kq.optimizers.Bop(threshold=0.0),
    "adam": lambda: keras.optimizers.Adam(0.3),
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_every_optimizer_trains_both_layers(name):
    weights = "latent" if name == "prox_quant" else "binary"
    model = keras.Sequential(
        [
            keras.layers.InputLayer((tools.INPUTS,)),
            kq.layers.BinaryDense(
                6, activation="binary", training_weights=weights
            ),
            kq.layers.BinaryDense(3, training_weights=weights),
        ]
    )
    before = tools.kernels(model)
    opt = OPTIMIZERS[name]()
    opt.build(model.trainable_variables)
    how = "jit_compile" if name == "sign" else "run_eagerly"
    tools.fit(model, opt, *tools.data(), epochs=2, **{how: True})
    for old, new in zip(before, tools.kernels(model)):
        assert np.isfinite(new).all()
        assert not np.array_equal(old, new)


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
