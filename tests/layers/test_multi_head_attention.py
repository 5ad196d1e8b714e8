"""Tests `BinaryMultiHeadAttention` against Keras with the binary kernels."""

import numpy as np
import pytest
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.layers import BinaryEinsumDense
from keras_qpsbgd.layers import BinaryMultiHeadAttention

UNIFORM = keras.initializers.RandomUniform(-1, 1, seed=1)


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, 5, 4)).astype("float32")
    return x, rng.integers(3, size=16)


def network(**arguments):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5, 4))
    layer = BinaryMultiHeadAttention(
        2, 3, bits=2, kernel_initializer=UNIFORM, name="attention", **arguments
    )
    hidden = keras.layers.Flatten()(layer(inputs, inputs))
    return keras.Model(inputs, kq.layers.BinaryDense(3)(hidden))


def test_projections_are_replaced():
    """Fails if a version of Keras creates or names them in another way."""
    layer = BinaryMultiHeadAttention(2, 3, bits=2, output_scale="channel")
    x, _ = data()
    layer(x, x)
    assert len(layer.projections) == 4
    for projection in layer.projections:
        assert type(projection) is BinaryEinsumDense
        assert (projection.bits, projection.output_scale) == (2, "channel")
    kernels = [p.kernel.shape for p in layer.projections]
    assert [tuple(shape) for shape in kernels] == [(4, 2, 3)] * 3 + [(2, 3, 4)]
    # Kernel, bias and scale of each, and no weights of the layers of Keras.
    assert len(layer.weights) == 12


def test_equals_keras_with_the_binary_weights():
    layer = BinaryMultiHeadAttention(
        2, 3, bits=2, output_scale=None, kernel_initializer=UNIFORM
    )
    plain = keras.layers.MultiHeadAttention(2, 3)
    x, _ = data()
    layer(x, x, x[:, :, :2])
    plain(x, x, x[:, :, :2])
    values = []
    for projection in layer.projections:
        values += [projection.binary_kernel / 3, projection.bias]
    by_shape = [tuple(w.shape) for w in plain.get_weights()]
    assert by_shape == [tuple(value.shape) for value in values]
    plain.set_weights([np.array(value) for value in values])
    found = layer(x, x, x[:, :, :2], use_causal_mask=True)
    expected = plain(x, x, x[:, :, :2], use_causal_mask=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    (
        "qpsbgd",
        pytest.param("proxquant", marks=pytest.mark.exhaustive),
        pytest.param("adam", marks=pytest.mark.exhaustive),
    ),
)
def test_train_save_load_and_continue(tmp_path, name):
    opt = {
        "qpsbgd": lambda: tools.optimizer(backend="sign"),
        "proxquant": lambda: kq.optimizers.ProxQuant(0.5, 1e-3),
        "adam": lambda: keras.optimizers.Adam(0.05),
    }[name]()
    weights = "latent" if name == "proxquant" else "binary"
    model = network(training_weights=weights, output_scale="channel")
    model.layers[-1].training_weights = weights
    x, y = data()
    model.compile(opt, tools.loss(), run_eagerly=True)
    before = model.get_weights()
    history = model.fit(x, y, epochs=6, batch_size=8, verbose=0).history["loss"]
    assert history[-1] < history[0]
    changed = [(a != b).any() for a, b in zip(before, model.get_weights())]
    kernels = [len(a.shape) > 1 and a.size > 8 for a in before]
    assert all(c for c, kernel in zip(changed, kernels) if kernel)
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    assert loaded.get_layer("attention").projections[0].bits == 2
    for _ in range(2):
        tools.assert_equal(loaded.get_weights(), model.get_weights())
        for each in (model, loaded):
            each.fit(x, y, shuffle=False, verbose=0)
