"""Tests that fail if non-public behavior that the library relies on changes."""

import runpy
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd.optimizers import memory


def test_functions_around_a_branch_are_found():
    found = []

    @tf.function
    def outer(x):
        graph = tf.compat.v1.get_default_graph()

        def branch():
            inner = tf.compat.v1.get_default_graph()
            found.append(memory.current_graphs() == [inner, graph])
            return x

        return tf.cond(x > 0, branch, lambda: -x)

    outer(tf.constant(1.0))
    assert found and all(found)
    assert memory.current_graphs() == [None]


def test_xla_is_detected():
    found = []

    @tf.function(jit_compile=True)
    def compiled(x):
        found.append(_keras.inside_xla())
        tf.cond(
            x > 0, lambda: found.append(_keras.inside_xla()) or x, lambda: x
        )
        return x

    @tf.function
    def plain(x):
        found.append(_keras.inside_xla())
        return x

    compiled(tf.constant(1.0))
    plain(tf.constant(1.0))
    found.append(_keras.inside_xla())
    assert found == [True, True, False, False]


def test_attributes_of_keras_optimizers():
    x, y = tools.data()
    model = tools.small_model()
    opt = tools.optimizer()
    tools.fit(model, opt, x, y)
    assert len(opt._trainable_variables) == 4
    assert int(opt._iterations) == tools.STEPS
    assert opt.variable_key(model.trainable_variables[0]) in opt._binary


def test_finalize_is_called_at_the_end_of_fit():
    called = []

    class Spy(kq.QPSBGD):
        def finalize_variable_values(self, var_list):
            called.append(len(list(var_list)))
            super().finalize_variable_values(var_list)

    tools.fit(tools.small_model(), Spy(backend="sign"), *tools.data())
    assert called == [4]


def test_ordinary_training_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        tools.fit(tools.small_model(), tools.optimizer(), *tools.data())


@pytest.mark.once
def test_other_keras_backends_are_rejected(monkeypatch):
    """Runs the module again, which checks the backend when it is imported."""
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(
        ImportError, match="KERAS_BACKEND=tensorflow.*Received: .*=jax"
    ):
        runpy.run_path(_keras.versions.__file__)


def test_keras_clips_and_decays_with_these_methods():
    """They are overridden to exclude binary kernels."""
    for name in ("_clip_gradients", "_apply_weight_decay"):
        assert callable(getattr(keras.optimizers.Optimizer, name))
        assert name in vars(_keras.Optimizer)
    x, y = tools.data()
    kernels = []
    for arguments in ({}, {"clipvalue": 1e-9, "weight_decay": 0.5}):
        model = tools.small_model()
        opt = kq.optimizers.SignSGD(0.05, **arguments)
        tools.fit(model, opt, x[:6], y[:6])
        kernels.append(tools.kernels(model))
    tools.assert_equal(*kernels)


def test_optimizer_settings_are_copied():
    adam = keras.optimizers.Adam(0.5, beta_1=0.25)
    adam.exclude_from_weight_decay(var_names=["bias"])
    excluded = [name for name in vars(adam) if "exclude" in name]
    assert excluded
    copied = _keras.copy_optimizer(adam)
    assert copied is not adam
    assert copied.get_config() == adam.get_config()
    for name in excluded:
        assert getattr(copied, name) == getattr(adam, name)


def test_variable_names_are_unique():
    """An HDF5 file cannot store two variables with the same name."""
    model = tools.small_model()
    opt = tools.optimizer(real_optimizer="adam", use_ema=True)
    opt.build(model.trainable_variables)
    names = [getattr(v, "path", v.name) for v in opt.variables]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "version, expected",
    [("2.15.0", False), ("3.0.0", True), ("4.0.0.dev1", True), ("10.1", True)],
)
def test_newer_versions_of_keras_are_not_legacy(version, expected):
    assert _keras.is_keras_3(version) is expected


def test_layers_and_random_states_are_found():
    """They are found at any depth, and each state is a variable."""
    inner = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(2)])
    with _keras.random_states_as_variables():
        model = keras.Sequential(
            [
                keras.layers.InputLayer((2,)),
                inner,
                keras.layers.Dropout(0.5),
            ]
        )
    found = _keras.all_layers(model)
    assert all(layer in found for layer in (*inner.layers, *model.layers))
    *weights, state = _keras.variables_with_random_states(model)
    assert len(weights) == len(model.weights) == 4
    x = tf.ones((1, 50, 2))[0]
    start = state.numpy()
    first = model(x, training=True)
    assert (state.numpy() != start).any()
    state.assign(start)
    again = model(x, training=True)
    assert (first.numpy() == again.numpy()).all()


def test_projections_of_attention_layers():
    """`kq.quantize` finds them, and they are `EinsumDense` layers."""
    layer = keras.layers.MultiHeadAttention(2, 3)
    x = tf.ones((1, 4, 5))
    layer(x, x)
    parts = _keras.attention_parts(layer)
    names = ["query", "key", "value", "attention_output"]
    assert [part.name for part in parts.values()] == names
    for name, part in parts.items():
        assert type(part) is keras.layers.EinsumDense
        assert getattr(layer, name) is part


def test_functional_models_are_recognized():
    class Subclassed(keras.Model):
        pass

    x = keras.Input((2,))
    assert _keras.is_graph_of_layers(keras.Model(x, keras.layers.ReLU()(x)))
    assert _keras.is_graph_of_layers(keras.Sequential())
    assert not _keras.is_graph_of_layers(Subclassed())
    assert not _keras.is_graph_of_layers(keras.layers.Dense(2))


def test_copies_of_functional_models_are_not_compiled():
    x = keras.Input((2,), sparse=True, name="x")
    model = keras.Model(x, keras.layers.Dense(2)(x), name="model")
    model.compile("sgd", lambda y, predicted: tf.reduce_sum(predicted))
    copied = _keras.copy_functional(
        model, lambda layer: type(layer).from_config(layer.get_config())
    )
    assert getattr(copied, "optimizer", None) is None and copied.name == "model"
    assert [v.name for v in copied.layers] == [v.name for v in model.layers]
    assert model.optimizer is not None
    spec = copied.inputs[0]
    assert getattr(spec, "sparse", None) or "Sparse" in str(spec)


def test_compiled_models_are_recognized():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert not _keras.is_compiled(model)
    model.compile("sgd", "mse")
    assert _keras.is_compiled(model)


def test_activations_can_be_added():
    """A new name is found, and a name that Keras has is kept."""
    assert keras.activations.get("binary") is kq.activations.binary

    def tanh(x):
        return x

    before = keras.activations.get("tanh")
    _keras.register_activation(tanh)
    assert keras.activations.get("tanh") is before


def test_inner_layers_masks_and_inputs_of_layers():
    inner = keras.Sequential(
        [keras.layers.InputLayer((4, 3)), keras.layers.Dense(3)]
    )
    inputs = keras.Input((4, 3))
    masked = keras.layers.Masking()(inputs)
    dense = keras.layers.Dense(2)
    model = keras.Model(inputs, dense(inner(masked)))
    found = _keras.inner_layers(model)
    assert inner in found and dense in found
    assert inner.layers[-1] not in found
    assert not _keras.has_mask(inputs)
    assert _keras.has_mask(masked)
    assert tuple(_keras.input_tensors(dense).shape) == (None, 4, 3)


def test_layers_can_be_replaced_by_models_in_copies():
    """Legacy Keras would not return, see `_keras.hide_inputs`."""
    inputs = keras.Input((3,))
    layer = keras.layers.Dense(3)
    model = keras.Model(inputs, keras.layers.Dense(2)(layer(inputs)))
    restore = []

    def replace(found):
        if found is not layer:
            return type(found).from_config(found.get_config())
        start = keras.Input((3,))
        new = keras.Model(start, keras.layers.Dense(3)(start), name=layer.name)
        order = list(new.layers)
        restore.append((_keras.hide_inputs(new), new, order))
        return new

    copied = _keras.copy_functional(model, replace)
    for function, new, order in restore:
        function()
        assert new.layers == order
    assert copied(np.ones((5, 3), "float32")).shape == (5, 2)
    assert isinstance(copied.layers[1], keras.Model)
