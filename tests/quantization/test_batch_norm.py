"""Batch normalizations are folded, or their statistics are corrected."""

import numpy as np
import pytest
import quantizing
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.quantization import batch_norm
from keras_qpsbgd.quantization import targets

L = keras.layers
Norm = L.BatchNormalization


def with_random_weights(model):
    """Gives all vectors random values, and variances positive ones."""
    rng = np.random.default_rng(0)
    model.set_weights(
        [
            rng.uniform(0.2, 2.0, w.shape) if w.ndim == 1 else w
            for w in model.get_weights()
        ]
    )
    return model


def fold(model, x, layers=None):
    chosen, _ = targets.choose_layers(model, layers)
    return batch_norm.fold(model, tf.constant(x), chosen)


def quantize(model, x, **options):
    defaults = {"method": "gptq", "bits": 2, "validation_split": 0.0}
    return kq.quantize(model, x, verbose=0, **{**defaults, **options})


@pytest.mark.parametrize(
    "layer, options, shape",
    [
        (L.Dense(5), {"epsilon": 0.1}, (4,)),
        (L.Dense(5, use_bias=False), {"axis": 2}, (3, 4)),
        (L.Conv2D(6, 3, 2, use_bias=False), {"scale": False}, (7, 7, 4)),
        (L.Conv2D(6, 3, groups=2), {"center": False}, (7, 7, 4)),
        (L.DepthwiseConv2D(3, depth_multiplier=2), {}, (7, 7, 3)),
        (L.SeparableConv2D(5, 3), {}, (7, 7, 3)),
        (L.Conv2DTranspose(5, 3, 2, use_bias=False), {}, (4, 4, 3)),
    ],
)
def test_a_folded_network_computes_the_same(layer, options, shape):
    norm = Norm(name="norm", **options)
    x = keras.Input(shape)
    model = with_random_weights(keras.Model(x, L.ReLU()(norm(layer(x)))))
    x = quantizing.data(6, *shape)
    weights = [w.copy() for w in model.get_weights()]
    folded = fold(model, x)
    assert folded.norms == {id(norm)}
    np.testing.assert_allclose(
        quantizing.outputs(folded.model, x)[0],
        quantizing.outputs(model, x)[0],
        rtol=1e-4,
        atol=1e-5,
    )
    names = [layer.name for layer in model.layers]
    assert [layer.name for layer in folded.model.layers] == names
    copied = folded.model.get_layer("norm")
    assert type(copied) is L.Activation and not copied.weights
    target = folded.targets[-1]
    assert target.layer is folded.model.get_layer(layer.name)
    assert target.layer is not layer and target.layer.use_bias
    for before, after in zip(weights, model.get_weights()):
        np.testing.assert_array_equal(before, after)


def shared(x):
    layer = L.Dense(8, name="dense")
    return Norm()(layer(layer(x)))


def shared_norm(x):
    norm = Norm()
    return norm(L.Dense(8, name="dense")(norm(x)))


def used_twice(x):
    h = L.Dense(8, name="dense")(x)
    return L.Add()([h, Norm()(h)])


def is_output(x):
    h = L.Dense(8, name="dense")(x)
    return [h, Norm()(h)]


def in_a_wrapper(x):
    layer = L.Dense(8, name="dense")
    h = L.TimeDistributed(layer)(L.Reshape((1, 8))(x))
    return Norm()(layer(L.Flatten()(h)))


@pytest.mark.parametrize(
    "call",
    [
        shared,
        shared_norm,
        used_twice,
        is_output,
        in_a_wrapper,
        lambda x: Norm()(L.Dense(8, activation="relu", name="dense")(x)),
        lambda x: Norm(axis=1)(L.Dense(8, name="dense")(L.Reshape((1, 8))(x))),
        lambda x: L.LayerNormalization()(L.Dense(8, name="dense")(x)),
    ],
)
def test_what_is_not_folded(call):
    x = keras.Input((8,))
    model = keras.Model(x, call(x))
    folded = fold(model, quantizing.data(5, 8), ["dense"])
    assert folded.model is model and not folded.norms


@pytest.fixture(scope="module")
def network():
    """A nested model, a normalization in a Sequential, and one that stays."""
    inner = keras.Sequential(
        [
            keras.Input((6, 6, 4)),
            L.Conv2D(4, 3, padding="same", use_bias=False, name="conv"),
            Norm(name="inner_norm"),
            L.ReLU(),
        ],
        name="inner",
    )
    x = keras.Input((6, 6, 4))
    h = L.Add()([Norm(name="first")(x), inner(x)])
    h = L.Conv2D(5, 3, name="last_conv")(Norm(name="stays")(h))
    h = L.GlobalAveragePooling2D()(L.ReLU()(Norm(name="second")(h)))
    h = Norm(name="final")(L.Dense(3, activation="tanh", name="head")(h))
    return with_random_weights(keras.Model(x, h, name="network"))


def test_a_quantized_network(network, tmp_path):
    x = quantizing.data(60, 6, 6, 4)
    seen = []
    quantized, report = quantize(
        network, x, layers=lambda layer: seen.append(layer) or True
    )
    assert network.get_layer("head") in seen
    unchanged = {layer.name for layer in report.unchanged}
    assert unchanged == {"first", "stays", "final"}
    conv = quantized.get_layer("inner").get_layer("conv")
    assert type(conv) is kq.layers.BinaryConv2D and conv.use_bias
    for layer in ("second", "first"):
        is_folded = not quantized.get_layer(layer).weights
        assert is_folded == (layer == "second")
    quantized.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        *(quantizing.outputs(model, x)[0] for model in (quantized, loaded))
    )
    # A layer with float weights keeps its normalization.
    kept, report = quantize(network, x, layers=["head"])
    assert "second" in {layer.name for layer in report.unchanged}
    assert len(kept.weights) == len(network.weights) + 1


def at(model, name, x):
    """Returns the outputs of a layer of a functional model."""
    output = model.get_layer(name).output
    return quantizing.outputs(keras.Model(model.inputs, output), x)[0]


def test_statistics_are_corrected(network, tmp_path):
    x = quantizing.data(300, 6, 6, 4)
    settings = {"validation_split": 0.5, "out": tmp_path}
    quantized, _ = quantize(network, x, **settings)
    for name in ("stays", "final"):
        before, after = (
            at(model, name, x[:150]).astype(np.float64)
            for model in (network, quantized)
        )
        axes = tuple(range(before.ndim - 1))
        np.testing.assert_allclose(
            before.mean(axis=axes), after.mean(axis=axes), atol=1e-4
        )
        # No other factor of a channel gives a smaller squared difference.
        centered = after - after.mean(axis=axes)
        product = ((before - after) * centered).mean(axis=axes)
        np.testing.assert_allclose(product, 0.0, atol=1e-4)
        assert np.abs(before - after).max() > 0.01
    # No layer before this one is quantized.
    for before, after in zip(
        *(m.get_layer("first").get_weights() for m in (network, quantized))
    ):
        np.testing.assert_array_equal(before, after)
    # All layers are read from files, and the statistics are the same.
    again, _ = quantize(network, x, **settings)
    for before, after in zip(quantized.get_weights(), again.get_weights()):
        np.testing.assert_array_equal(before, after)


def test_statistics_that_cannot_be_corrected():
    """A shared normalization, and channels that are constant."""
    norm = Norm(name="norm")
    x = keras.Input((4,))
    h = L.Dense(6, activation="relu", name="dense")(x)
    h = norm(L.ReLU()(norm(h)))
    h = Norm(name="last")(L.ReLU()(L.Dense(6, name="second")(h)))
    model = with_random_weights(keras.Model(x, h))
    kernel, bias = model.get_layer("second").get_weights()
    bias[0] = -100.0
    model.get_layer("second").set_weights([kernel, bias])
    x = quantizing.data(50, 4)
    quantized, _ = quantize(model, x)
    for before, after in zip(
        norm.get_weights(), quantized.get_layer("norm").get_weights()
    ):
        np.testing.assert_array_equal(before, after)
    found, given = (
        quantizing.outputs(quantized, x),
        quantizing.outputs(model, x),
    )
    np.testing.assert_allclose(found[0][:, 0], given[0][:, 0], rtol=1e-5)
