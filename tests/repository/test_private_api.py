"""Tests that fail if non-public behavior that the library relies on changes."""

import os
import runpy
import subprocess
import sys
import warnings

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


@pytest.mark.slow
def test_keras_backend_that_is_not_installed():
    found = subprocess.run(
        [sys.executable, "-c", "import keras_qpsbgd as kq; kq.QPSBGD"],
        env={**os.environ, "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
    )
    assert "Received: KERAS_BACKEND=torch" in found.stderr


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


def test_activations_can_be_added():
    """A new name is found, and a name that Keras has is kept."""
    assert keras.activations.get("binary") is kq.activations.binary

    def tanh(x):
        return x

    before = keras.activations.get("tanh")
    _keras.register_activation(tanh)
    assert keras.activations.get("tanh") is before
