"""Compares `Predictor` with the predictions of Keras."""

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.inference import Predictor
from keras_qpsbgd.inference import products

KERNELS = products.available()
layers = keras.layers
BinaryDense = kq.layers.BinaryDense
BinaryConv2D = kq.layers.BinaryConv2D


def randomize(model, seed=0):
    """Sets random weights, also those of batch normalization.

    Biases and shifts are not integers, so that no sum is zero.
    """
    rng = np.random.default_rng(seed)
    for layer in model.layers:
        if hasattr(layer, "moving_variance"):
            size = layer.moving_variance.shape[0]
            gamma, beta, mean = rng.normal(size=(3, size))
            gamma[::5] = 0.0
            weights = [gamma] * layer.scale + [beta] * layer.center
            layer.set_weights([*weights, mean, rng.uniform(0.1, 2, size)])
        elif layer.weights:
            layer.set_weights([rng.normal(size=w.shape) for w in layer.weights])


def sequential(shape, *chain, seed=0):
    model = keras.Sequential([layers.InputLayer(shape), *chain])
    randomize(model, seed)
    return model


def integers(shape, seed=0):
    """Small integers, whose sums are exact."""
    rng = np.random.default_rng(seed)
    return rng.integers(-3, 4, shape).astype("float32")


def assert_equal(model, x, exact=False, **arguments):
    expected = model(x, training=False).numpy()  # without compiling
    for kernels in KERNELS:
        found = Predictor(model, kernels=kernels, **arguments).predict(x)
        assert found.dtype == np.float32
        assert found.shape == expected.shape
        if exact:
            np.testing.assert_array_equal(found, expected)
        else:
            atol = 1e-5 * max(1, np.abs(expected).max())
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**16),
    st.lists(st.integers(1, 150), min_size=2, max_size=4),
    st.sampled_from([None, "relu", "hard_tanh", "tanh", "sigmoid", "binary"]),
    st.integers(1, 4),
    st.sampled_from(["fan_in", "channel", None]),
    st.booleans(),
    st.integers(1, 9),
)
def test_random_networks(seed, sizes, name, num_bits, scale, norm, batch):
    # Sums of several bits are rounded, so the sign of zero is not exact.
    assume(num_bits == 1 or name != "binary")
    chain = []
    for size in sizes[1:]:
        chain.append(BinaryDense(size, bits=num_bits, output_scale=scale))
        if norm:
            chain.append(layers.BatchNormalization())
        if name is not None:
            chain.append(layers.Activation(name))
    model = sequential((sizes[0],), *chain, seed=seed)
    x = integers((batch, sizes[0]), seed)
    assert_equal(model, x)


@pytest.mark.parametrize("outer", ["binary", "real"])
@pytest.mark.parametrize("center", [0.0, 0.1])
def test_ties_in_thresholds(outer, center):
    """The sum is exactly zero for some inputs, on either side of the sign."""
    n = 8
    chain = [layers.Activation("binary")] if outer == "binary" else []
    model = sequential(
        (n,),
        *chain,
        BinaryDense(4, use_bias=True, output_scale=None),
        layers.BatchNormalization(),
        layers.Activation("binary"),
    )
    size = np.ones(4)
    dense, norm = model.layers[-3:-1]
    dense.set_weights([np.ones((n, 4)), np.array([0.0, 1.0, -1.0, 0.5])])
    gamma = np.array([1.0, -1.0, 0.0, -0.25])
    norm.set_weights([gamma, 0 * size, center * size, 3 * size])
    signs = np.array(np.meshgrid(*[[-1, 1]] * n)).reshape(n, -1).T
    assert_equal(model, signs.astype("float32"), exact=True)


def test_threshold_after_other_activations():
    for name in ("relu", "sigmoid"):
        model = sequential(
            (20,),
            layers.Activation("binary"),
            BinaryDense(30, activation=name),
            layers.BatchNormalization(),
            layers.Activation("binary"),
            BinaryDense(7, activation="binary"),
        )
        assert_equal(model, integers((40, 20)), exact=True)


@pytest.mark.parametrize(
    "padding, arguments",
    [
        ("valid", {"strides": 2}),
        ("valid", {"dilation_rate": 2}),
        ("same", {"strides": 2, "bits": 2}),
        ("same", {"dilation_rate": 2}),
    ],
    ids=str,
)
def test_convolutions(padding, arguments):
    """Outside of an image, inputs are 0 and not -1."""
    model = sequential(
        (9, 8, 3),
        BinaryConv2D(6, (3, 2), padding=padding, activation="binary"),
        BinaryConv2D(5, 3, padding=padding, **arguments),
        layers.Activation("relu"),
        BinaryConv2D(70, 1, activation="binary"),
        BinaryConv2D(3, 2, padding=padding, output_scale="channel"),
    )
    assert_equal(model, integers((3, 9, 8, 3)))


POOLS = {
    "max": lambda: layers.MaxPooling2D(3, strides=2, padding="same"),
    "mean": lambda: layers.AveragePooling2D(3, strides=2, padding="same"),
    "largest": lambda: layers.GlobalMaxPooling2D(),
    "mean of all": lambda: layers.GlobalAveragePooling2D(keepdims=True),
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", ["binary", "tanh"])
def test_pooling(pool, name):
    """Also a threshold that does not follow a product."""
    model = sequential(
        (7, 8, 2),
        BinaryConv2D(70, 2, activation=name),
        POOLS[pool](),
        layers.BatchNormalization(),
        layers.Activation("binary"),
        layers.Flatten(),
        BinaryDense(4, bits=2),
    )
    assert_equal(model, integers((2, 7, 8, 2)))


@pytest.mark.parametrize("before", ["nothing", "norm", "relu"])
@pytest.mark.parametrize(
    "pool",
    [
        {},
        pytest.param({"strides": 1, "padding": "same"}, marks=pytest.mark.slow),
        pytest.param(None, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_pooling_before_a_threshold(before, pool):
    """The signs are pooled, also where they fall with the products."""
    for sizes in ((65, 70), (3, 130)):
        middle = {
            "nothing": [],
            "norm": [layers.BatchNormalization()],
            "relu": [layers.ReLU(), layers.BatchNormalization()],
        }[before]
        model = sequential(
            (6, 7, sizes[0]),
            layers.Activation("binary"),
            BinaryConv2D(sizes[1], 3, padding="same"),
            *middle,
            layers.GlobalMaxPooling2D(keepdims=True)
            if pool is None
            else layers.MaxPooling2D(2, **pool),
            layers.BatchNormalization(),
            layers.Activation("binary"),
        )
        assert_equal(model, integers((3, 6, 7, sizes[0])), exact=True)
        kinds = [type(step).__name__ for step in Predictor(model)._steps]
        assert kinds[:3] == ["Threshold", "Product", "MaxPooling"]


def test_real_layers_and_layers_without_effect():
    model = sequential(
        (8, 8, 2),
        layers.Conv2D(6, 3, padding="same", activation="relu"),
        layers.SpatialDropout2D(0.5),
        layers.BatchNormalization(scale=False),
        layers.GaussianNoise(1.0),
        layers.Reshape((-1, 48)),
        BinaryDense(5),  # along the last axis
        layers.BatchNormalization(center=False),
        layers.ReLU(),
        layers.Dropout(0.5),
        layers.Flatten(),
        layers.Dense(9, activation="binary"),
        BinaryDense(6, output_scale="channel", name="real"),
        layers.Dense(4),
        layers.Softmax(),
    )
    model.get_layer("real").use_real_kernel()
    assert_equal(model, integers((3, 8, 8, 2)))


def test_functional_and_nested_models():
    inner = keras.Sequential(
        [layers.InputLayer((12,)), BinaryDense(9, activation="binary")]
    )
    shared = BinaryDense(9, activation="binary")
    x = keras.Input((4, 3))
    y = layers.Flatten()(x)
    y = shared(shared(inner(y)))
    model = keras.Model(x, BinaryDense(2)(y))
    assert_equal(model, integers((5, 4, 3)))


def test_mixed_precision_is_computed_in_float32():
    chain = [
        BinaryDense(16, activation="relu", dtype="mixed_bfloat16"),
        layers.BatchNormalization(dtype="mixed_bfloat16"),
        BinaryDense(3, dtype="mixed_bfloat16"),
    ]
    model = sequential((5,), *chain)
    x = integers((4, 5))
    expected = np.asarray(model(x, training=False)).astype("float32")
    np.testing.assert_allclose(
        Predictor(model)(x), expected, rtol=0.1, atol=0.1
    )


def test_empty_batch_and_dtypes():
    model = sequential(
        (70,), BinaryDense(9, activation="binary"), BinaryDense(3)
    )
    predictor = Predictor(model)
    assert predictor(np.zeros((0, 70))).shape == (0, 3)
    x = integers((3, 70))
    expected = predictor(x)
    # Later changes of the model have no effect.
    model.set_weights([-w for w in model.get_weights()])
    for dtype in ("float64", "float16", "int8", "int64"):
        np.testing.assert_array_equal(predictor(x.astype(dtype)), expected)
    np.testing.assert_array_equal(predictor(x.tolist()), expected)
    np.testing.assert_array_equal(predictor(x[:, ::-1][:, ::-1]), expected)
    np.testing.assert_array_equal(predictor(np.asfortranarray(x)), expected)
    mask = x > 0
    np.testing.assert_array_equal(predictor(mask), predictor(mask * 1.0))
    # The outputs of a model without products do not share memory with `x`.
    same = Predictor(sequential((70,), layers.Dropout(0.5)))(x)
    assert not np.shares_memory(same, x)


@pytest.mark.parametrize("batch", [1, 5, 33])
def test_threads_and_batches_give_the_same_bits(batch):
    rng = np.random.default_rng(0)
    model = sequential(
        (100,), BinaryDense(300, activation="tanh"), BinaryDense(20, bits=2)
    )
    x = rng.normal(size=(batch, 100))
    for kernels in KERNELS:
        expected = Predictor(model, kernels=kernels)(x)
        for threads in (2, 3):
            found = Predictor(model, threads, kernels=kernels)(x)
            if kernels == "c":
                np.testing.assert_array_equal(found, expected)
            else:  # the order of the sums of NumPy depends on the shape
                np.testing.assert_allclose(found, expected, atol=1e-5)
    if "c" in KERNELS:
        predictor = Predictor(model, kernels="c")
        alone = [predictor(row[None])[0] for row in x]
        np.testing.assert_array_equal(alone, predictor(x))


def test_large_batches_are_divided(monkeypatch):
    from keras_qpsbgd.inference import predictor as module

    model = sequential(
        (5, 5, 2), BinaryConv2D(4, 2, activation="binary"), layers.Flatten()
    )
    x = integers((11, 5, 5, 2))
    expected = Predictor(model)(x)
    monkeypatch.setattr(module, "MAX_SAMPLES", 4)
    monkeypatch.setattr(products, "MAX_PATCHES", 300)
    for kernels in KERNELS:
        found = Predictor(model, kernels=kernels)(x)
        np.testing.assert_array_equal(found, expected)


def test_memory_of_the_weights():
    model = sequential((784,), BinaryDense(1024), BinaryDense(10))
    floats = sum(w.nbytes for w in model.get_weights())
    predictor = Predictor(model)
    assert predictor.weight_bytes < floats / 16
    text = repr(predictor)
    assert "Dense 784 x 1024: sums of signed inputs" in text
    assert predictor.input_shape == (None, 784)
