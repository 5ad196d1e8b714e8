"""Kernels with gradients of unknown origin are held, with a warning."""

import numpy as np
import pytest
import tensorflow as tf
import tools
from oracle import MODES
from oracle import apply
from oracle import as_function
from oracle import assert_step
from oracle import batch
from oracle import binary_layers
from oracle import clear_batches
from oracle import gradients
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras

keras3 = pytest.mark.skipif(not _keras.KERAS_3, reason="only in Keras 3")


def two_functions(model, opt, x, y):
    grads = tf.function(lambda x, y: gradients(model, x, y))(x, y)
    tf.function(lambda *grads: apply(opt, grads, model))(*grads)


def gradients_in_a_function(model, opt, x, y):
    apply(opt, tf.function(lambda x, y: gradients(model, x, y))(x, y), model)


def inner_function(model, opt, x, y):
    inner = tf.function(lambda x, y: gradients(model, x, y))
    tf.function(lambda x, y: apply(opt, inner(x, y), model))(x, y)


def sums_in_variables(model, opt, x, y):
    sums = [tf.Variable(tf.zeros(v.shape)) for v in model.trainable_variables]

    @tf.function
    def step(x, y):
        for total, grad in zip(sums, gradients(model, x, y)):
            total.assign_add(grad)
        apply(opt, [tf.convert_to_tensor(total) for total in sums], model)

    step(x, y)


def partly_from_a_variable(model, opt, x, y):
    sums = [tf.Variable(tf.ones(v.shape)) for v in model.trainable_variables]

    @tf.function
    def step(x, y):
        grads = gradients(model, x, y)
        apply(opt, [g + total for g, total in zip(grads, sums)], model)

    step(x, y)


def partly_from_a_variable_behind_a_mask(model, opt, x, y):
    sums = [tf.Variable(tf.ones(v.shape)) for v in model.trainable_variables]

    @tf.function
    def step(x, y):
        pairs = zip(gradients(model, x, y), sums)
        apply(opt, [(g + s) * tf.ones_like(g) for g, s in pairs], model)

    step(x, y)


def partly_from_a_masked_function(model, opt, x, y):
    inner = tf.function(lambda x, y: gradients(model, x, y))
    masks = [tf.ones(v.shape) for v in model.trainable_variables]

    @tf.function
    def step(x, y):
        found = zip(gradients(model, x, y), inner(x, y), masks)
        apply(opt, [g + h * mask for g, h, mask in found], model)

    step(x, y)


def in_a_branch(model, opt, x, y):
    @tf.function
    def step(x, y):
        grads = tf.cond(
            tf.reduce_sum(x) < 1e9,
            lambda: gradients(model, x, y),
            lambda: [tf.zeros(v.shape) for v in model.trainable_variables],
        )
        apply(opt, grads, model)

    step(x, y)


def partly_without_training(model, opt, x, y):
    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            value = tools.loss()(y, model(x, training=True))
            value += tools.loss()(y, model(2.0 * x, training=False))
        apply(opt, tape.gradient(value, model.trainable_variables), model)

    step(x, y)


def with_a_gradient_penalty(model, opt, x, y):
    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = tools.loss()(y, model(x, training=True))
            value += tf.reduce_sum(inner.gradient(value, x) ** 2)
        apply(opt, tape.gradient(value, model.trainable_variables), model)

    step(x, y)


def with_an_eager_gradient_penalty(model, opt, x, y):
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            inner.watch(x)
            value = tools.loss()(y, model(x, training=True))
        value += tf.reduce_sum(inner.gradient(value, x) ** 2)
    apply(opt, tape.gradient(value, model.trainable_variables), model)


def _combined(combine):
    def situation(model, opt, x, y):
        @tf.function
        def step(x, y):
            found = zip(gradients(model, x, y), gradients(model, -x, y))
            apply(opt, [combine(g, h) for g, h in found], model)

        step(x, y)

    return situation


stacked_and_weighted = _combined(
    lambda g, h: tf.tensordot([0.9, -0.1], tf.stack([g, h]), 1)
)
stacked_and_selected = _combined(lambda g, h: tf.stack([g, h])[0])
masked_difference = _combined(lambda g, h: tf.ones_like(g) * (g - h))
larger_of_two = _combined(tf.maximum)

stacked_and_weighted.__name__ = "stacked_and_weighted"
stacked_and_selected.__name__ = "stacked_and_selected"
masked_difference.__name__ = "masked_difference"
larger_of_two.__name__ = "larger_of_two"


def in_a_loop(model, opt, x, y):
    @tf.function
    def step(x, y):
        total = [tf.zeros(v.shape) for v in model.trainable_variables]
        for _ in tf.range(2):
            total = list(map(tf.add, total, gradients(model, x, y)))
        apply(opt, total, model)

    step(x, y)


def of_a_regularizer(model, opt, x, y):
    """The latest pass is not part of the gradient."""
    gradients(model, x, y)
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        tape.watch([tools.tf_variable(v) for v in variables])
        value = sum(tf.reduce_sum((v + 1.0) ** 3) for v in variables)
    apply(opt, tape.gradient(value, variables), model)


def all_ones(model, opt, x, y):
    gradients(model, x, y)
    grads = [tf.ones(v.shape) for v in model.trainable_variables]
    apply(opt, grads, model)


def without_training(model, opt, x, y):
    with tf.GradientTape() as tape:
        value = tools.loss()(y, model(x, training=False))
    grads = tape.gradient(value, model.trainable_variables)
    apply(opt, grads, model)


def random_noise(model, opt, x, y):
    gradients(model, x, y)
    rng = np.random.default_rng(0)
    grads = [
        tf.constant(rng.normal(size=v.shape), "float32")
        for v in model.trainable_variables
    ]
    apply(opt, grads, model)


HELD = [
    two_functions,
    gradients_in_a_function,
    inner_function,
    sums_in_variables,
    partly_from_a_variable,
    partly_from_a_variable_behind_a_mask,
    partly_from_a_masked_function,
    in_a_branch,
    in_a_loop,
    partly_without_training,
    with_a_gradient_penalty,
    with_an_eager_gradient_penalty,
    stacked_and_weighted,
    stacked_and_selected,
    masked_difference,
    larger_of_two,
    of_a_regularizer,
    all_ones,
    without_training,
    random_noise,
]


@pytest.mark.parametrize("situation", HELD, ids=lambda f: f.__name__)
def test_unknown_origins_are_held(situation):
    model = tools.small_model()
    opt = tools.optimizer(real_optimizer=keras.optimizers.SGD(0.5))
    before = tools.kernels(model)
    biases = [layer.bias.numpy() for layer in binary_layers(model)]
    with pytest.warns(UserWarning, match="not updated.*unknown, because"):
        situation(model, opt, *batch(0))
    tools.assert_equal(tools.kernels(model), before)
    for layer, old in zip(binary_layers(model), biases):
        assert not np.array_equal(layer.bias.numpy(), old)
    # The next step with a known origin updates them.
    (one,), expected = clear_batches(model, 1)
    apply(opt, gradients(model, *one), model)
    assert_step(model, expected)


def test_passes_at_other_weights_are_not_used():
    """A scaled gradient of a previous step is applied after an update."""
    model, opt = tools.small_model(), tools.optimizer()
    old = [2.0 * g for g in gradients(model, *batch(0))]
    apply(opt, gradients(model, *batch(1)), model)
    before = tools.kernels(model)
    with pytest.warns(UserWarning, match="not updated"):
        apply(opt, old, model)
    tools.assert_equal(tools.kernels(model), before)


def test_eager_passes_of_one_kernel_entry_are_not_guessed():
    """A single number cannot distinguish two passes."""
    model = keras.Sequential(
        [
            keras.layers.InputLayer((1,)),
            kq.layers.BinaryDense(1, use_bias=False),
        ]
    )
    opt = tools.optimizer()

    def grads(x):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(model(x, training=True))
        return tape.gradient(value, model.trainable_variables)

    apply(opt, grads(tf.constant([[2.0]])), model)  # found by the tensor itself
    start = model.get_weights()
    grads(tf.constant([[1.0]]))
    with pytest.warns(UserWarning, match="more than one"):
        apply(opt, [0.3 * g for g in grads(tf.constant([[3.0]]))], model)
    tools.assert_equal(model.get_weights(), start)


def test_zero_entries_are_not_counted():
    """With as many passes as nonzero entries, any noise would fit."""
    layer = kq.layers.BinaryDense(2, use_bias=False)
    layer.build((None, 4))
    start = layer.kernel.numpy()
    x = tf.random.stateless_normal((4, 3, 4), (1, 2))
    for rows in x:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean((layer(rows)[:, 0] - 1.0) ** 2)
        tape.gradient(value, [layer.kernel])
    noise = np.zeros((4, 2), "float32")
    noise[:, 0] = [5, -3, 2, 1]
    with pytest.warns(UserWarning, match="not updated"):
        tools.optimizer().apply_gradients([(tf.constant(noise), layer.kernel)])
    np.testing.assert_array_equal(layer.kernel.numpy(), start)


def test_one_warning_for_all_layers_and_updates_are_counted():
    model = tools.small_model()
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
        [0], [0.5, 0.25]
    )
    opt = kq.QPSBGD(schedule, real_optimizer="sgd")
    with pytest.warns(UserWarning) as caught:
        for seed in range(3):
            gradients_in_a_function(model, opt, *batch(seed))
    (message,) = [
        str(w.message)
        for w in caught
        if "held" in str(w.message) or "not updated" in str(w.message)
    ]
    for layer in binary_layers(model):
        assert f"`{layer.name}`" in message
    assert int(opt.iterations) == 3


@keras3
def test_accumulation_with_a_batch_of_unknown_origin_holds_the_kernel():
    model = tools.small_model()
    opt = tools.optimizer(gradient_accumulation_steps=2)
    before = tools.kernels(model)
    apply(opt, gradients(model, *batch(0)), model)
    with pytest.warns(UserWarning, match="not updated"):
        gradients_in_a_function(model, opt, *batch(1))
    tools.assert_equal(tools.kernels(model), before)
    with pytest.warns(UserWarning, match="not updated"):
        two_functions(model, opt, *batch(1))
    apply(opt, gradients(model, *batch(0)), model)
    tools.assert_equal(tools.kernels(model), before)
    for seed in (2, 3):
        apply(opt, gradients(model, *batch(seed)), model)
    assert not np.array_equal(tools.kernels(model)[0], before[0])


@MODES
def test_a_linear_gradient_penalty_has_no_rows(mode):
    layer = kq.layers.BinaryDense(2, use_bias=False)
    layer.build((None, 3))
    opt = tools.optimizer()
    start = layer.kernel.numpy()

    def step(x):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = tf.reduce_sum(layer(x))
            slope = tf.reduce_sum(inner.gradient(value, x) ** 3)
        grads = outer.gradient(slope, [layer.kernel])
        opt.apply_gradients(zip(grads, [layer.kernel]))

    with pytest.warns(UserWarning, match="not updated"):
        as_function(step, mode)(tf.ones((4, 3)))
    np.testing.assert_array_equal(layer.kernel.numpy(), start)


def test_with_rows_errors():
    model = tools.small_model()
    grads = gradients(model, *batch(0))
    variables = model.trainable_variables
    with pytest.raises(ValueError, match="same length.*Received: 3"):
        kq.with_rows(grads[:3], variables)
    noise = [tf.random.normal(v.shape) for v in variables]
    with pytest.raises(
        ValueError, match="Received: for layer.*that is not a sum"
    ):
        kq.with_rows(noise, variables)
    packed = kq.with_rows([None, *grads[1:]], variables)
    assert packed[0] is None and packed[1] is grads[1]
