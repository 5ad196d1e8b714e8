"""`kq.summary`: parameters, memory and QUBO sizes."""

import re
import warnings

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.layers import statistics
from keras_qpsbgd.model_summary import LayerSummary
from keras_qpsbgd.model_summary import ModelSummary

layers = kq.layers
INPUT = keras.layers.InputLayer


def quiet(model):
    return kq.summary(model, print_fn=None)


def by_name(found):
    assert len({layer.name for layer in found.layers}) == len(found.layers)
    return {layer.name: layer for layer in found.layers}


def digits():
    return keras.Sequential(
        [
            INPUT((784,)),
            layers.BinaryDense(128, use_bias=False, name="hidden"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Activation("hard_tanh"),
            layers.BinaryDense(10, name="top"),
        ],
        name="digits",
    )


def test_numbers_by_hand():
    found = quiet(digits())
    hidden, norm, top = found.layers  # an activation has no weights
    assert (hidden.type, norm.type) == ("BinaryDense", "BatchNormalization")
    assert (hidden.binary_params, hidden.real_params) == (100_352, 0)
    assert (hidden.num_variables, hidden.num_columns) == (784, 128)
    assert (hidden.packed_bytes, hidden.float32_bytes) == (12_544, 401_408)
    assert hidden.bits_per_weight == 1
    # Moving mean and variance count as weights, as in `model.summary()`.
    assert (norm.binary_params, norm.real_params) == (0, 512)
    assert (norm.num_variables, norm.num_qubos) == (None, None)
    assert norm.packed_bytes == norm.float32_bytes == 2048
    assert (top.binary_params, top.real_params) == (1280, 10)
    assert top.packed_bytes == 160 + 40
    assert top.bits_per_weight == pytest.approx((1280 + 320) / 1290)
    assert (found.binary_params, found.real_params) == (101_632, 522)
    assert found.packed_bytes == 12_544 + 2048 + 200
    assert found.float32_bytes == 4 * (101_632 + 522)
    assert found.compression == pytest.approx(408_616 / 14_792)
    assert found.bits_per_weight == pytest.approx(
        (101_632 + 32 * 522) / (101_632 + 522)
    )


def test_qubos_are_those_that_the_optimizer_solves():
    for inputs in (144, 145, 1200):
        model = keras.Sequential([INPUT((inputs,)), layers.BinaryDense(3)])
        (layer,) = quiet(model).layers
        mark = statistics.mark_of(model.layers[0].kernel)
        sizes = kq.QPSBGD().update_rule.problem_sizes(
            mark.num_variables, mark.num_columns
        )
        assert sizes == [(layer.qubo_variables, 3)] * layer.num_qubos


def test_nested_and_shared_layers():
    shared = layers.BinaryDense(6, name="shared")
    inner = keras.Sequential(
        [INPUT((6,)), shared, keras.layers.Dense(6, name="real")], name="inner"
    )
    x = keras.Input((6,))
    outer = keras.Model(x, shared(inner(inner(shared(x)))))
    found = quiet(outer)
    rows = by_name(found)
    assert set(rows) == {"shared", "real"}
    assert (rows["shared"].binary_params, rows["shared"].real_params) == (36, 6)
    assert rows["real"].real_params == 42
    assert found.binary_params + found.real_params == outer.count_params()


def test_layers_with_the_same_name():
    """Their rows have the names of the solver report."""

    def part():
        inputs = keras.Input((3,))
        layer = layers.BinaryDense(3, name="dense")
        return keras.Model(inputs, layer(inputs))

    inputs = keras.Input((3,))
    outputs = layers.BinaryDense(2, name="last")(part()(part()(inputs)))
    found = quiet(keras.Model(inputs, outputs))
    names = [layer.name for layer in found.layers]
    assert names == ["dense#1", "dense#2", "last"]


def test_two_layers_with_one_kernel():
    first = layers.BinaryDense(4, use_bias=False)

    class Tied(layers.BinaryLayer):
        def build(self, input_shape):
            self.kernel = first.kernel
            self.mark_binary(self.kernel)

        def binary_call(self, inputs, binary_kernel):
            return inputs @ binary_kernel

        def call(self, inputs, training=None):
            return self.binary_product(inputs, training)

    model = keras.Sequential([INPUT((4,)), first, Tied()])
    assert quiet(model).binary_params == 16
    assert quiet(model).packed_bytes == 2


class BinaryScale(layers.BinaryLayer):
    """A custom layer. Without `rows`, its kernel is one QUBO."""

    def build(self, input_shape):
        self.kernel = self.add_weight(name="kernel", shape=(2, input_shape[-1]))
        self.shift = self.add_weight(name="shift", shape=())
        self.mark_binary(self.kernel)

    def binary_call(self, inputs, binary_kernel):
        return inputs * binary_kernel[0] * binary_kernel[1]

    def call(self, inputs, training=None):
        return self.binary_product(inputs, training) + self.shift


def test_custom_layer():
    (row,) = quiet(keras.Sequential([INPUT((5,)), BinaryScale()])).layers
    assert (row.num_variables, row.num_columns) == (10, 1)
    assert (row.binary_params, row.real_params) == (10, 1)
    assert row.type == "BinaryScale"


class Block(keras.layers.Layer):
    """A layer with own weights that contains others."""

    def __init__(self):
        super().__init__(name="block")
        self.inner = layers.BinaryDense(4, name="inside")
        self.cells = keras.layers.LSTM(3, name="lstm")

    def build(self, input_shape):
        self.gain = self.add_weight(name="gain", shape=(1,))
        self.inner.build(input_shape)
        self.cells.build((None, None, 4))
        super().build(input_shape)

    def call(self, inputs):
        return self.gain * self.cells(self.inner(inputs))


def test_layers_inside_layers_and_custom_models():
    class Custom(keras.Model):
        def __init__(self):
            super().__init__()
            self.block = Block()
            self.scale = self.add_weight(name="scale", shape=(2,))

        def call(self, inputs):
            return self.block(inputs) * self.scale[0]

    model = Custom()
    model(tf.ones((1, 2, 5)))
    found = quiet(model)
    assert by_name(found)["inside"].binary_params == 20
    assert by_name(found)["block"].real_params == 1
    # A recurrent layer is one line, although it contains a cell.
    assert set(by_name(found)) >= {"inside", "block", "lstm"}
    assert found.binary_params + found.real_params == model.count_params()


def test_frozen_and_real_layers():
    model = digits()
    before = quiet(model)
    model.get_layer("hidden").trainable = False
    assert quiet(model) == before
    model.get_layer("hidden").use_real_kernel()
    row = by_name(quiet(model))["hidden"]
    assert (row.binary_params, row.real_params) == (0, 100_352)
    assert row.num_qubos is None


@pytest.mark.parametrize(("layer", "real"), [("Dense", 10), ("ReLU", 0)])
def test_model_without_binary_layers(capsys, layer, real):
    arguments = [2] * (layer == "Dense")
    part = getattr(keras.layers, layer)(*arguments)
    found = kq.summary(keras.Sequential([INPUT((4,)), part]))
    assert (found.binary_params, found.real_params) == (0, real)
    assert found.compression == 1
    assert "no binary layers" in capsys.readouterr().out


def test_table_fits_a_terminal():
    sizes = 300_000_000, 0, 37_500_000, 1_200_000_000
    wide = LayerSummary("long_" * 20, "T" * 30, *sizes, 10_000, 30_000)
    real = LayerSummary("dense", "Dense", 0, 90_003, 360_012, 360_012)
    found = ModelSummary("model_" * 20, [wide, real])
    assert "2 layers" in repr(found)
    out = str(found)
    assert max(map(len, out.splitlines())) <= 80
    for text in ("long_long", "300,000,000", "35.76 MB", "1.12 GB", "30,000"):
        assert text in out


def test_table_shows_the_numbers(capsys):
    model = digits()
    found = kq.summary(model)
    out = capsys.readouterr().out
    assert out == f"{found}\n"
    texts = []
    kq.summary(model, print_fn=texts.append)
    assert texts == [str(found)]
    total = re.search(r"^Total +([\d,]+) +([\d,]+) ", out, re.M)
    assert total.groups() == ("101,632", "522")
    assert f"Compression: {found.compression:.1f}x" in out
    assert re.search(r"^hidden +6 x 131 +128$", out, re.M)
    assert re.search(r"^top +128 +10$", out, re.M)


def test_sizes_of_inputs():
    model = keras.Sequential(
        [
            INPUT((4,)),
            layers.BinaryDense(3, name="hidden"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            layers.BinaryDense(2, output_scale=None, name="top"),
        ]
    )
    model.compile(kq.QPSBGD(backend="exact", seed=0), "mse", run_eagerly=True)
    x = np.random.default_rng(0).normal(size=(32, 4))
    model.fit(x, np.ones((32, 2)), verbose=0)
    variables = model.variables + list(model.optimizer.variables)
    before = [variable.numpy() for variable in variables]
    found = kq.summary(model, print_fn=None, x=x)
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert list(found.input_sizes) == ["hidden", "top"]
    expected = np.sqrt(np.mean(np.square(x)))
    assert found.input_sizes["hidden"] == pytest.approx(expected, rel=1e-5)
    assert f"inputs: hidden {expected:.3g}, top " in str(found)
    # Training goes on with the statistics of the optimizer.
    couplings = [v for v in model.optimizer.variables if "coupl" in v.name]
    before = [variable.numpy() for variable in couplings]
    model.fit(x, np.ones((32, 2)), verbose=0)
    for variable, value in zip(couplings, before, strict=True):
        assert couplings and not np.array_equal(variable.numpy(), value)


def test_inputs_that_are_far_too_large():
    """One warning, which names the first layer and the size."""
    model = keras.Sequential(
        [
            INPUT((4,)),
            layers.BinaryDense(3, name="hidden"),
            layers.BinaryDense(2, name="top"),
        ]
    )
    x = np.ones((8, 4), "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kq.summary(model, print_fn=None, x=20 * x)
    with pytest.warns(
        UserWarning, match="`hidden` have .* 1,000. Sc"
    ) as caught:
        found = kq.summary(model, print_fn=None, x=1000 * x)
    assert "inputs: hidden 1,000, top " in str(found)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_errors():
    with pytest.raises(ValueError, match="`model` must be a Keras model.*Rec"):
        kq.summary(layers.BinaryDense(2))
    unbuilt = keras.Sequential([layers.BinaryDense(2)], name="empty")
    with pytest.raises(ValueError, match="`model` must be built.*'empty'"):
        kq.summary(unbuilt)

    class Forgetful(keras.Model):
        def __init__(self):
            super().__init__()
            self.used = layers.BinaryDense(2)
            self.unused = layers.BinaryDense(2, name="unused")

        def call(self, inputs):
            return self.used(inputs)

    model = Forgetful()
    model(tf.ones((1, 3)))
    with pytest.raises(
        ValueError, match="All layers of `model` must be built.*'unused'"
    ):
        kq.summary(model)
