"""Tests loss scaling and other precisions."""

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras


@pytest.mark.parametrize(
    ("rule", "eager"),
    [
        pytest.param("averaged", False, marks=pytest.mark.exhaustive),
        ("averaged", True),
        pytest.param("paper", False, marks=pytest.mark.exhaustive),
    ],
)
def test_loss_scale_optimizer(rule, eager):
    """The rule of the paper, which depends on the loss, is not scaled."""
    seed = tools.CLEAR_CUT[rule]
    x, y = tools.data(seed)
    expected = tools.clear_cut_fit(seed, rule=rule)
    model = tools.small_model(seed)
    opt = tools.loss_scaled(tools.optimizer(rule=rule))
    opt.build(model.trainable_variables)
    found = tools.fit(model, opt, x, y, run_eagerly=eager)
    tools.assert_equal(found, expected)


def test_overflow_under_loss_scaling_costs_one_step():
    """The rows of an overflowing step are not used in the next step."""
    x, y = tools.data()
    model = tools.small_model(dtype="mixed_float16")
    opt = tools.optimizer()
    # float16 overflows at 2^16
    wrapped = tools.loss_scaled(opt, initial_scale=2.0**26)
    model.compile(wrapped, tools.loss(), run_eagerly=True)
    assert model.layers[0].kernel.dtype in ("float32", tf.float32)
    moved = []
    for _ in range(16):
        before = tools.kernels(model)[1]
        model.train_on_batch(x[:6], y[:6])
        moved.append(not np.array_equal(tools.kernels(model)[1], before))
    # The first steps overflow, and the wrapper skips them. The following steps
    # contain only finite numbers.
    assert not moved[0]
    assert sum(moved) >= 2
    assert opt.skipped_updates == 0


def test_overflow_under_loss_scaling_leaves_no_rows_behind():
    """The wrapper skips the update, so the optimizer does not see it."""
    x, y = tools.data()
    model = tools.small_model(dtype="mixed_float16")
    opt = tools.optimizer(rule="paper")
    wrapped = tools.loss_scaled(opt, initial_scale=2.0**26)
    wrapped.build(model.trainable_variables)
    model.compile(wrapped, tools.loss(), run_eagerly=True)
    before = model.get_weights()
    model.train_on_batch(x[:6], y[:6])
    tools.assert_equal(model.get_weights(), before)
    assert len(opt.update_rule.couplings) == 2
    for couplings in opt.update_rule.couplings.values():
        assert not tf.convert_to_tensor(couplings).numpy().any()


@pytest.mark.slow
def test_mixed_precision_on_two_replicas(mirrored):
    """The wrapper for loss scaling applies the updates. All kernels move."""
    x, y = tools.data()
    policy = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with mirrored.scope():
            model, opt = tools.small_model(), tools.optimizer()
            model.compile(opt, tools.loss())
        before = tools.kernels(model)
        model.fit(x, y, batch_size=6, verbose=0)
    finally:
        keras.mixed_precision.set_global_policy(policy)
    assert int(tf.convert_to_tensor(opt.iterations)) == tools.STEPS
    assert model.optimizer is not opt
    for old, new in zip(before, tools.kernels(model)):
        assert np.abs(new - old).max() > 0.04


@pytest.mark.skipif(
    not _keras.KERAS_3, reason="legacy Keras does not accumulate"
)
@pytest.mark.parametrize(
    ("dtype", "eager"),
    [
        ("float64", True),
        ("bfloat16", True),
        pytest.param("float16", False, marks=pytest.mark.exhaustive),
    ],
)
def test_accumulation_in_any_precision(dtype, eager):
    """Kernels have the dtype of the layer, and states are float32.

    The rule of the paper adds up the couplings of the batches. The moving
    average of the other rule depends on how the batches are divided.
    """
    x, y = tools.data()
    found = []
    for steps in (None, 2):
        model = tools.small_model(dtype=dtype)
        assert model.layers[0].kernel.dtype == dtype
        before = model.layers[1].kernel.numpy().astype("float64")
        opt = tools.optimizer(
            rule="paper",
            gradient_accumulation_steps=steps,
            real_optimizer=keras.optimizers.SGD(0.0),
        )
        opt.build(model.trainable_variables)
        model.compile(opt, tools.loss(), run_eagerly=eager)
        model.fit(x[:6], y[:6], batch_size=6 // (steps or 1), verbose=0)
        found.append(model.layers[1].kernel.numpy().astype("float64") - before)
    assert np.abs(found[0]).max() > 0.04
    np.testing.assert_array_equal(*found)


@pytest.mark.slow
@pytest.mark.skipif(
    not _keras.KERAS_3, reason="legacy Keras does not accumulate"
)
def test_accumulation_on_two_replicas(mirrored):
    """The rule of the paper adds up the couplings of batches and replicas."""
    x, y = tools.data()
    found = []
    for strategy in (tf.distribute.get_strategy(), mirrored):
        with strategy.scope():
            model = tools.small_model()
            opt = tools.optimizer(rule="paper", gradient_accumulation_steps=2)
            opt.build(model.trainable_variables)
            model.compile(opt, tools.loss(), run_eagerly=True)
        recorder = kq.callbacks.QuboRecorder(every=1)
        model.fit(
            *(x[:12], y[:12]), batch_size=6, verbose=0, callbacks=[recorder]
        )
        found.append([u.qubo.couplings for u in recorder.run.updates])
    assert len(found[0]) == 2
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(
    not _keras.KERAS_3, reason="legacy Keras does not accumulate"
)
@pytest.mark.parametrize("rule", ["averaged", "paper"])
def test_accumulation_on_two_replicas_in_a_graph(rule, mirrored):
    """Keras's own optimizers cannot do it either."""
    with mirrored.scope():
        model = tools.small_model()
        opt = tools.optimizer(rule=rule, gradient_accumulation_steps=2)
        opt.build(model.trainable_variables)
        model.compile(opt, tools.loss())
    before = model.get_weights()
    with pytest.raises(ValueError, match="only in eager.*=2 and 2 replicas"):
        model.fit(*tools.data(), verbose=0)
    tools.assert_equal(model.get_weights(), before)
