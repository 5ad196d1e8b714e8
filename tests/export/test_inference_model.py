"""`export.inference_model`: the same outputs without this package."""

import json
import pathlib

import exporting
import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras

ROOT = pathlib.Path(__file__).parents[2]


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def own_names(config):
    """Returns the names in a configuration that belong to this package."""
    return "keras_qpsbgd" in json.dumps(config)


@pytest.mark.parametrize("name, bits", exporting.CASES)
def test_same_outputs(name, bits):
    scale = exporting.SCALES[(bits + 1) % len(exporting.SCALES)]
    model = exporting.MODELS[name](bits=bits, output_scale=scale)
    exporting.randomize(model)
    stock = kq.export.inference_model(model)
    inputs = exporting.batch(model)
    expected = exporting.predict(model, inputs)
    assert_close(exporting.predict(stock, inputs), expected)
    assert not own_names(keras.utils.serialize_keras_object(stock))
    for layer in _keras.all_layers(stock):
        assert not isinstance(layer, kq.layers.BinaryLayer)


def test_constraints_activations_and_real_kernels():
    clip = kq.constraints.WeightClip(1.0)
    model = keras.Sequential(
        [
            keras.layers.InputLayer((6,)),
            keras.layers.Dense(5, "hard_tanh", kernel_constraint=clip),
            kq.layers.BinaryDense(5, output_scale="channel", name="real"),
            kq.layers.BinaryDense(5, kernel_regularizer="l2"),
            keras.layers.Activation("hard_tanh"),
        ]
    )
    model.get_layer("real").use_real_kernel()
    exporting.randomize(model)
    before = model.get_weights()
    stock = kq.export.inference_model(model)
    inputs = exporting.batch(model)
    expected = exporting.predict(model, inputs)
    assert_close(exporting.predict(stock, inputs), expected)
    assert not own_names(keras.utils.serialize_keras_object(stock))
    for left, right in zip(before, model.get_weights()):
        np.testing.assert_array_equal(left, right)


def test_layers_of_quantize():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4, 6)).astype("float32")
    inputs = keras.Input((4, 6))
    hidden = keras.layers.MultiHeadAttention(2, 3)(inputs, inputs)
    hidden = keras.layers.EinsumDense("abc,bd->adc", (2, 6))(hidden)
    model = keras.Model(inputs, keras.layers.Dense(3)(hidden))
    attention = model.layers[1].name
    # If only one projection is quantized, the attention layer is frozen.
    for chosen in (None, [f"{attention}/query"]):
        quantized, _ = kq.quantize(
            model, x, bits=2, method="nearest", verbose=0, layers=chosen
        )
        stock = kq.export.inference_model(quantized)
        assert_close(
            exporting.predict(stock, x), exporting.predict(quantized, x)
        )
        assert not own_names(keras.utils.serialize_keras_object(stock))


class Doubled(kq.layers.BinaryDense):
    pass


class Subclassed(keras.Model):
    def call(self, inputs):
        return inputs


def unsupported_models():
    x, a = keras.Input((6, 4)), keras.Input((6, 6), sparse=True)
    yield (
        keras.Model([x, a], kq.layers.BinaryGraphConv(3, name="mixed")([x, a])),
        "mixed .*sparse adjacency",
    )
    x, a = keras.Input((6, 4)), keras.Input((6, 6))
    masked = keras.layers.Masking()(x)
    yield (
        keras.Model(
            [x, a], kq.layers.BinaryGraphConv(3, name="conv")([masked, a])
        ),
        "conv .*node mask",
    )
    first = keras.layers.TimeDistributed(kq.layers.BinaryDense(3), name="time")
    yield (
        keras.Sequential(
            [
                keras.layers.InputLayer((4, 6)),
                first,
                Doubled(2, name="doubled"),
            ]
        ),
        "time .*inside another.*doubled .*custom",
    )
    yield (
        keras.Sequential([kq.layers.BinaryDense(3)]),
        "has been built. Call it on a batch first",
    )
    yield Subclassed(), "Build a functional model from its layers"
    yield "model.keras", r"`keras.models.load_model`.*model='model.keras'"
    yield None, "must be a Keras model. Received: model=None"


def test_unsupported_layers_are_named():
    for model, message in unsupported_models():
        with pytest.raises(ValueError, match=message):
            kq.export.inference_model(model)


def test_spektral_layers_stay(tmp_path):
    spektral = pytest.importorskip("spektral")

    with kq.spektral.enable_keras3():
        x = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
        a = tf.sparse.from_dense(np.eye(6, dtype="float32")[::-1])
        nodes, matrix = keras.Input((4,)), keras.Input((None,), sparse=True)
        hidden = spektral.layers.GCNConv(5, "relu")([nodes, matrix])
        outputs = kq.layers.BinaryGraphConv(3)([hidden, matrix])
        model = keras.Model([nodes, matrix], outputs)
        inputs = [tf.constant(x), a]
        stock = kq.export.inference_model(model)
        assert_close(stock(inputs), model(inputs))
        stock.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(
            tmp_path / "model.keras",
            custom_objects={"GCNConv": spektral.layers.GCNConv},
        )
        assert_close(loaded(inputs), model(inputs))
