"""Tests the loss as a function of one column."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.columns.tail import NarrowTail
from keras_qpsbgd.columns.tail import Tail
from keras_qpsbgd.columns.tail import tail_of
from keras_qpsbgd.columns.wiring import Wiring


def compiled(layers):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((6,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    for variable in model.variables:
        # Not the initial values, with which batch normalization does nothing.
        value = np.random.default_rng(5).uniform(0.3, 1.5, variable.shape)
        if len(variable.shape) == 1 and "seed" not in variable.name:
            variable.assign(value)
    return model


def samples(count=20):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 6)).astype("float32")
    return x, rng.integers(0, 3, count), rng.uniform(size=count).astype("f")


NETWORKS = {
    "binary": lambda: [
        kq.layers.BinaryDense(5, activation="tanh"),
        kq.layers.BinaryDense(3),
    ],
    "channel": lambda: [
        kq.layers.BinaryDense(5, output_scale="channel", activation="tanh"),
        kq.layers.BinaryDense(4, output_scale="channel", use_bias=False),
        keras.layers.Softmax(),
    ],
    "dense": lambda: [
        kq.layers.BinaryDense(5, use_bias=False, activation="hard_tanh"),
        keras.layers.Dense(4, activation="softplus"),
        keras.layers.BatchNormalization(),
        kq.layers.BinaryDense(3),
    ],
}


@pytest.mark.parametrize(
    "name, weighted",
    [
        ("binary", True),
        pytest.param("channel", False, marks=pytest.mark.exhaustive),
        pytest.param("dense", True, marks=pytest.mark.exhaustive),
    ],
)
def test_both_tails_agree(name, weighted):
    model = compiled(NETWORKS[name]())
    layer = model.layers[0]
    batch = samples() if weighted else (*samples()[:2], None)
    fast, plain = (
        tail_of(model, layer, Wiring(model)),
        Tail(model, layer, Wiring(model)),
    )
    assert type(fast) is NarrowTail
    begun = [tail.begin(batch) for tail in (fast, plain)]
    expected = model.evaluate(*batch[:2], sample_weight=batch[2], verbose=0)
    for rows, weights, loss in begun:
        np.testing.assert_array_equal(weights, layer.binary_kernel)
        np.testing.assert_allclose(rows, batch[0])
        assert loss == pytest.approx(expected, rel=1e-5)
    rng = np.random.default_rng(1)
    for column in (0, 3):
        for a, b in zip(fast.derivatives(column), plain.derivatives(column)):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)
        candidates = rng.choice([-1.0, 1.0], (6, 3)).astype("float32")
        products = batch[0] @ candidates
        found = [t.losses(column, products) for t in (fast, plain)]
        np.testing.assert_allclose(*found, rtol=1e-5)
        for tail in (fast, plain):
            tail.change(column, products[:, 1])
        kernel = layer.kernel.numpy()
        kernel[:, column] = candidates[:, 1]
        layer.kernel.assign(kernel)
        expected = model.evaluate(*batch[:2], sample_weight=batch[2], verbose=0)
        assert found[0][1] == pytest.approx(expected, rel=1e-5)


def test_derivatives_are_those_of_the_loss():
    model = compiled(NETWORKS["dense"]())
    batch = (*samples()[:2], None)
    tail = tail_of(model, model.layers[0], Wiring(model))
    rows, weights, _ = tail.begin(batch)
    slopes, curvature = tail.derivatives(2)
    product = (rows @ weights)[:, 2].astype("float64")
    step = 0.02
    moved = product[:, None] + step * np.eye(len(product))
    back = product[:, None] - step * np.eye(len(product))
    up = tail.losses(2, moved.astype("float32"))
    down = tail.losses(2, back.astype("float32"))
    middle = tail.losses(2, product[:, None].astype("float32"))
    np.testing.assert_allclose(slopes, (up - down) / (2 * step), atol=2e-4)
    second = (up - 2 * middle + down) / step**2
    assert curvature == pytest.approx(second.mean(), abs=2e-3)


def softmax_between():
    return [
        kq.layers.BinaryDense(5, activation="softmax"),
        kq.layers.BinaryDense(3),
    ]


def wider_next():
    return [kq.layers.BinaryDense(2), kq.layers.BinaryDense(3)]


def several_bits_next():
    return [kq.layers.BinaryDense(5), kq.layers.BinaryDense(3, bits=2)]


@pytest.mark.parametrize(
    "layers",
    [
        softmax_between,
        wider_next,
        several_bits_next,
    ],
)
def test_networks_that_need_the_plain_tail(layers):
    model = compiled(layers())
    assert type(tail_of(model, model.layers[0], Wiring(model))) is Tail


def test_two_consumers_need_the_plain_tail():
    inputs = keras.Input((6,))
    hidden = kq.layers.BinaryDense(5, activation="tanh", name="first")(inputs)
    branches = [keras.layers.Dense(3)(hidden) for _ in range(2)]
    model = keras.Model(inputs, keras.layers.Add()(branches))
    model.compile("sgd", "mse")
    assert type(tail_of(model, model.get_layer("first"), Wiring(model))) is Tail


def test_column_of_outputs():
    layer = kq.layers.BinaryDense(4, activation="tanh", output_scale="channel")
    layer.build((None, 6))
    layer.bias.assign([0.1, 0.2, 0.3, 0.4])
    layer.scale.assign([0.5, 1.0, 1.5, 2.0])
    product = tf.random.stateless_normal((3, 4), seed=(1, 2))
    for column in range(4):
        np.testing.assert_allclose(
            layer.outputs_of(product[:, column], tf.constant(column)),
            layer.outputs_of(product)[:, column],
            rtol=1e-6,
        )
