"""Tests `FlipRatio` against signs that a callback compares after each step."""

import contextlib
import math

import numpy as np
import pytest
import tools
from tensorflow import keras

import keras_qpsbgd as kq


class CompareByHand(keras.callbacks.Callback):
    """Compares the signs of a layer before and after each step."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.before = self.layer.binary_kernel.numpy()
        self.shares = []

    def on_train_batch_end(self, batch, logs=None):
        after = self.layer.binary_kernel.numpy()
        self.shares.append((self.before != after).mean())
        self.before = after

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(np.mean(self.shares))


def compiled(**arguments):
    model = tools.small_model()
    chosen = model.layers[-2]
    metric = kq.metrics.FlipRatio(chosen, name="flips")
    opt = kq.QPSBGD(0.3, "sign", real_optimizer="sgd", seed=1)
    model.compile(opt, tools.loss(), metrics=["accuracy", metric], **arguments)
    return model, chosen, metric


def fit(model, layer, **arguments):
    x, y = tools.data()
    hand = CompareByHand(layer)
    arguments = {"batch_size": 7, "epochs": 3, **arguments}
    history = model.fit(
        x, y, shuffle=False, verbose=0, callbacks=[hand], **arguments
    )
    return history.history, hand.epochs


def test_fit():
    model, layer, _ = compiled()
    # Weights that change between `compile` and `fit` are not flips.
    layer.kernel.assign(-layer.kernel)
    history, expected = fit(model, layer, validation_data=tools.data())
    np.testing.assert_allclose(history["flips"], expected, rtol=1e-6)
    assert max(expected) > 0 and len(set(expected)) > 1
    assert history["val_flips"] == [0.0] * 3


@pytest.mark.slow
def test_two_replicas(mirrored):
    with mirrored.scope():
        model, layer, _ = compiled()
    history, expected = fit(model, layer, batch_size=8)
    np.testing.assert_allclose(history["flips"], expected, rtol=1e-6)
    assert max(expected) > 0


def test_eager_fit_without_a_reset():
    """Keras creates metrics after the first step, which is not counted."""
    model, layer, _ = compiled(run_eagerly=True)
    hand = CompareByHand(layer)
    model.fit(*tools.data(), 7, 1, 0, [hand], shuffle=False)
    flips = model.get_metrics_result()["flips"]
    assert float(flips) == pytest.approx(np.mean(hand.shares[1:]))


@pytest.mark.slow
def test_steps_per_execution():
    """Keras calls callbacks only after several steps."""
    reference, layer, metric = compiled(run_eagerly=True)
    metric.reset_state()
    _, expected = fit(reference, layer, batch_size=6)
    model, layer, _ = compiled(steps_per_execution=4)
    history, _ = fit(model, layer, batch_size=6)
    np.testing.assert_allclose(history["flips"], expected, rtol=1e-6)
    assert max(expected) > 0


def test_custom_loop():
    layer = tools.small_model().layers[-1]
    metric = kq.metrics.FlipRatio(layer)
    assert metric.name == f"{layer.name}_flip_ratio"
    metric.reset_state()
    assert math.isnan(metric.result())
    signs = np.sign(layer.binary_kernel)
    for flipped in (1, 3):
        changed = signs.copy()
        changed.flat[:flipped] *= -1
        layer.kernel.assign(changed)
        metric.update_state()
    # One weight changes in the first step, two more in the second.
    assert float(metric.result()) == pytest.approx(1.5 / signs.size)
    metric.reset_state()
    metric.update_state()
    assert float(metric.result()) == 0.0


@pytest.mark.slow
def test_saved_model(tmp_path):
    """The layer of a loaded metric is unknown until it is compiled again."""
    model, layer, _ = compiled()
    model.optimizer.build(model.trainable_variables)
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    tools.assert_equal(loaded.get_weights(), model.get_weights())
    tools.assert_equal(
        keras.models.load_model(path, compile=False).get_weights(),
        model.get_weights(),
    )
    with pytest.warns(UserWarning, match="`flips` is nan"):
        history, _ = fit(loaded, loaded.layers[-2], epochs=1)
    assert np.isnan(history["flips"]).all()
    before = _values(loaded.optimizer)
    layer = loaded.layers[-2]
    loaded.compile(
        loaded.optimizer, loaded.loss, metrics=[kq.metrics.FlipRatio(layer)]
    )
    after = _values(loaded.optimizer)
    tools.assert_equal(before, after)
    history, expected = fit(loaded, layer)
    found = history[f"{layer.name}_flip_ratio"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def _values(optimizer):
    variables = optimizer.variables
    variables = variables() if callable(variables) else variables
    return [keras.backend.get_value(variable) for variable in variables]


def test_layer_that_is_not_binary():
    with pytest.raises(ValueError, match="`layer` .*Received: "):
        kq.metrics.FlipRatio(keras.layers.Dense(1))


def test_metric_does_not_keep_the_weights():
    """A file stores the weights of the layer once, and not in the metric."""
    _, layer, metric = compiled()
    metric.reset_state()
    assert all(variable is not layer.kernel for variable in metric.variables)
    with contextlib.suppress(AttributeError):
        assert not metric.trainable_variables
