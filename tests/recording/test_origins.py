"""An update uses exactly the backward passes of its gradients.

The tests modify gradients before they apply them, and compare with `oracle`.
"""

import warnings

import numpy as np
import pytest
import tensorflow as tf
import tools
from oracle import MODES
from oracle import RATE
from oracle import apply
from oracle import as_function
from oracle import assert_step
from oracle import batch
from oracle import binary_layers
from oracle import clear_batches
from oracle import expected_kernels
from oracle import gradients
from oracle import passes
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import recording


def side_gradient(model, opt, one, two):
    """Computes saliency, a gradient without the kernels."""

    def saliency(x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = tools.loss()(y, model(x, training=True))
        return tape.gradient(value, x)

    saliency(*two)
    grads = gradients(model, *one)
    saliency(*two)
    apply(opt, grads, model)


def unused_gradient(model, opt, one, two):
    """Computes gradients of the kernels that are not applied."""
    gradients(model, *two)
    grads = gradients(model, *one)
    gradients(model, *two)
    apply(opt, grads, model)


def persistent_tape_once(model, opt, one, two):
    with tf.GradientTape(persistent=True) as tape:
        values = [
            tools.loss()(y, model(x, training=True)) for x, y in (one, two)
        ]
    first = tape.gradient(values[0], model.trainable_variables)
    tape.gradient(values[1], model.trainable_variables)
    apply(opt, first, model)


def clipped_by_norm(model, opt, one, two):
    grads = gradients(model, *one)
    apply(opt, [tf.clip_by_norm(g, 1e-3) for g in grads], model)


def clipped_by_global_norm(model, opt, one, two):
    grads, _ = tf.clip_by_global_norm(gradients(model, *one), 1e-3)
    apply(opt, grads, model)


def clipped_by_value(model, opt, one, two):
    grads = gradients(model, *one)
    limit = 0.05
    assert max(np.max(np.abs(g)) for g in map(_value, grads)) > limit
    apply(opt, [tf.clip_by_value(g, -limit, limit) for g in grads], model)


def _value(tensor):
    return tensor.numpy() if hasattr(tensor, "numpy") else np.float32(np.inf)


def scaled_by_norm_of_another(model, opt, one, two):
    """The other gradient provides a number, not a direction."""
    grads, others = gradients(model, *one), gradients(model, *two)
    grads = [g * tf.norm(o) / tf.norm(g) for g, o in zip(grads, others)]
    apply(opt, grads, model)


def nonfinite_entries_replaced(model, opt, one, two):
    grads = gradients(model, *one)
    grads = [tf.where(tf.math.is_finite(g), g, tf.zeros_like(g)) for g in grads]
    apply(opt, grads, model)


def selected(model, opt, one, two):
    """Selects one of two gradients by a condition at run time."""
    first, second = gradients(model, *one), gradients(model, *two)
    flag = tf.reduce_sum(one[0] ** 2) > 0
    grads = [tf.where(flag, g, h) for g, h in zip(first, second)]
    apply(opt, grads, model)


def clipped_manually(model, opt, one, two):
    grads = gradients(model, *one)
    norms = [tf.norm(g) for g in grads]
    pairs = zip(grads, norms)
    apply(opt, [tf.where(n > 0.01, g * 0.01 / n, g) for g, n in pairs], model)


def negated_twice_by_a_mask(model, opt, one, two):
    grads = gradients(model, *one)
    grads = [-(g * tf.fill(g.shape, -1.0)) for g in grads]
    apply(opt, grads, model)


SINGLE = [
    side_gradient,
    unused_gradient,
    persistent_tape_once,
    clipped_by_norm,
    clipped_by_global_norm,
    clipped_by_value,
    scaled_by_norm_of_another,
    nonfinite_entries_replaced,
    selected,
    clipped_manually,
    negated_twice_by_a_mask,
]


@MODES
@pytest.mark.parametrize("situation", SINGLE, ids=lambda f: f.__name__)
def test_one_pass(situation, mode):
    model, opt = tools.small_model(), tools.optimizer()
    before = tools.kernels(model)
    (one,), expected = clear_batches(model, 1)
    two = batch(1000)

    def step(x, y, other_x, other_y):
        situation(model, opt, (x, y), (other_x, other_y))

    as_function(step, mode)(*one, *two)
    assert_step(model, expected, before)


def two_losses(model, opt, one, two):
    with tf.GradientTape() as tape:
        value = sum(
            tools.loss()(y, model(x, training=True)) for x, y in (one, two)
        )
    apply(opt, tape.gradient(value, model.trainable_variables), model)


def two_tapes(model, opt, one, two):
    found = zip(gradients(model, *one), gradients(model, *two))
    apply(opt, [a + b for a, b in found], model)


def averaged(model, opt, one, two):
    found = zip(gradients(model, *one), gradients(model, *two))
    apply(opt, [tf.add_n(pair) / 2.0 for pair in found], model)


def persistent_tape_twice(model, opt, one, two):
    with tf.GradientTape(persistent=True) as tape:
        values = [
            tools.loss()(y, model(x, training=True)) for x, y in (one, two)
        ]
    found = [tape.gradient(v, model.trainable_variables) for v in values]
    gradients(model, *batch(2000))
    apply(opt, [a + b for a, b in zip(*found)], model)


def sum_clipped(model, opt, one, two):
    found = zip(gradients(model, *one), gradients(model, *two))
    grads, _ = tf.clip_by_global_norm([a + b for a, b in found], 1e-3)
    apply(opt, grads, model)


def added_with_rows(model, opt, one, two):
    """Uses `with_rows`, then arithmetic."""
    found = [
        kq.with_rows(gradients(model, x, y), model.trainable_variables)
        for x, y in (one, two)
    ]
    apply(opt, [(a + b) / 2.0 for a, b in zip(*found)], model)


COMBINED = [
    two_losses,
    two_tapes,
    averaged,
    persistent_tape_twice,
    sum_clipped,
    added_with_rows,
]


@MODES
@pytest.mark.parametrize("situation", COMBINED, ids=lambda f: f.__name__)
def test_two_passes(situation, mode):
    model, opt = tools.small_model(), tools.optimizer()
    before = tools.kernels(model)
    (one, two), expected = clear_batches(model, 2)

    def step(x, y, other_x, other_y):
        situation(model, opt, (x, y), (other_x, other_y))

    as_function(step, mode)(*one, *two)
    assert_step(model, expected, before)


def test_shared_sums_are_visited_once():
    """Each sum is used twice, so 2^24 paths lead to the gradient."""
    model, opt = tools.small_model(), tools.optimizer()
    (one,), expected = clear_batches(model, 1)

    @tf.function
    def step(x, y):
        grads = gradients(model, x, y)
        for _ in range(24):
            grads = [0.5 * (g + g) for g in grads]
        apply(opt, grads, model)

    step(*one)
    assert_step(model, expected)


@MODES
@pytest.mark.parametrize("weights", [(0.9, 0.1), (1.0, -0.5)], ids=str)
def test_weights_of_gradients_apply_to_their_rows(weights, mode):
    """This includes negative weights, which ascend."""
    model, opt = tools.small_model(), tools.optimizer()
    (one, two), expected = clear_batches(model, 2, *weights)

    def step(x, y, other_x, other_y):
        found = zip(gradients(model, x, y), gradients(model, other_x, other_y))
        a, b = weights
        apply(opt, [a * g - (-b) * h for g, h in found], model)

    as_function(step, mode)(*one, *two)
    assert_step(model, expected)


@MODES
def test_some_of_the_kernels(mode):
    model, opt = tools.small_model(), tools.optimizer()
    opt.build(model.trainable_variables)
    (one,), expected = clear_batches(model, 1)
    start = tools.kernels(model)
    first, second = [layer.kernel for layer in binary_layers(model)]

    def step(x, y, which):
        (grad,) = gradients(model, x, y, [which])
        opt.apply_gradients([(grad, which)])

    as_function(lambda x, y: step(x, y, second), mode)(*one)
    assert_step(model, [start[0], expected[1]])
    (one,), expected = clear_batches(model, 1)
    as_function(lambda x, y: step(x, y, first), mode)(*one)
    np.testing.assert_array_equal(first.numpy(), expected[0])


@MODES
@pytest.mark.filterwarnings("ignore:No gradient exists")
def test_no_gradient(mode):
    model, opt = tools.small_model(), tools.optimizer()
    (one,), expected = clear_batches(model, 1)
    start = tools.kernels(model)
    of_first = [
        v is binary_layers(model)[0].kernel for v in model.trainable_variables
    ]

    def step(x, y):
        grads = gradients(model, x, y)
        grads = [None if skip else g for skip, g in zip(of_first, grads)]
        apply(opt, grads, model)

    as_function(step, mode)(*one)
    assert_step(model, [start[0], expected[1]])


@MODES
@pytest.mark.parametrize("count", [2, 9])
def test_many_passes_into_a_small_kernel(count, mode):
    """The mean of all passes is recognized, for any number of passes."""
    model, opt = tools.small_model(), tools.optimizer()
    batches, expected = clear_batches(model, count)

    def step(*flat):
        total = None
        for x, y in zip(flat[::2], flat[1::2]):
            grads = gradients(model, x, y)
            total = grads if total is None else list(map(tf.add, total, grads))
        apply(opt, [g / count for g in total], model)

    as_function(step, mode)(*[part for one in batches for part in one])
    assert_step(model, expected)


def test_recorded_gradients():
    model = tools.small_model()
    variables = model.trainable_variables
    packed = kq.with_rows(gradients(model, *batch(0)), variables)
    recorded = [g for g in packed if isinstance(g, recording.RecordedGradient)]
    assert len(recorded) == 2
    assert repr(recorded[0]) == "RecordedGradient(shape=(5, 3), calls=1)"
    difference = recorded[0] - 2.0 * recorded[0]
    np.testing.assert_allclose(difference.gradient, -recorded[0].gradient)
    assert len(difference.calls) == 2
    with pytest.raises(ValueError, match="by a number.*Received: .*5, 1"):
        recorded[0] * tf.ones((5, 1))
    np.testing.assert_allclose(
        difference.calls[1].row_gradients,
        -2.0 * recorded[0].calls[0].row_gradients,
    )
    # The other optimizers of the package use the gradient in it.
    before = tools.kernels(model)
    opt = kq.optimizers.SignSGD(RATE, real_optimizer="sgd")
    apply(opt, packed, model)
    for old, new in zip(before, tools.kernels(model)):
        assert np.abs(old - new).max() > 0.9 * RATE


def test_small_weights_of_large_gradients_count():
    model, opt = tools.small_model(), tools.optimizer()
    weights = (1.0, 5e-4)
    for seed in range(100):
        one, two = batch(seed), batch(seed + 500)
        found = [passes(model, *one), passes(model, *two, weight=1e5)]
        found = [
            [(x, v * np.float32(w)) for x, v in part]
            for part, w in zip(found, weights)
        ]
        expected, gap = expected_kernels(model, *found)
        if gap > 1e-3:
            break

    def large(x, y):
        with tf.GradientTape() as tape:
            value = 1e5 * tools.loss()(y, model(x, training=True))
        return tape.gradient(value, model.trainable_variables)

    pairs = zip(gradients(model, *one), large(*two))
    apply(opt, [g + 5e-4 * h for g, h in pairs], model)
    assert_step(model, expected)


def test_kernel_shared_by_two_layers():
    """The rows of both layers are found."""
    first = kq.layers.BinaryDense(3, use_bias=False)
    first.build((None, tools.INPUTS))

    class Borrowing(kq.layers.BinaryDense):
        def build(self, input_shape):
            self.borrowed = first.kernel
            self.mark_binary(first.kernel)
            self.built = True

    second = Borrowing(3, use_bias=False)
    x1, x2 = batch(0)[0], batch(1)[0]
    second.build((None, tools.INPUTS))
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(first(x1) ** 2) + tf.reduce_sum(second(x2) ** 2)
    gradient = tape.gradient(value, first.kernel)
    calls = recording.calls_of(gradient, recording.mark_of(first.kernel))
    assert len(calls) == 2


@MODES
def test_a_regularizer_does_not_change_the_update(mode):
    model = tools.small_model(
        kernel_regularizer=keras.regularizers.L1L2(0.1, 0.2)
    )
    opt = tools.optimizer()
    (one,), expected = clear_batches(model, 1)
    model.compile(opt, tools.loss(), run_eagerly=mode == "eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.train_on_batch(*one)
    assert_step(model, expected)


@pytest.mark.parametrize(
    "change",
    [
        tf.sign,
        lambda g: 2.0 * tf.cast(g > 0, tf.float32) - 1.0,
        lambda g: g * tf.cast(tf.abs(g) > 1e-9, tf.float32),
        lambda g: tf.where(tf.math.is_finite(g), g, tf.zeros_like(g)),
    ],
    ids=["sign", "comparison", "mask", "nonfinite"],
)
def test_changed_entries(change):
    """Changes of entries have no effect as long as the direction is similar."""
    model, opt = tools.small_model(), tools.optimizer()
    (one,), expected = clear_batches(model, 1)

    @tf.function
    def step(x, y):
        apply(opt, [change(g) for g in gradients(model, x, y)], model)

    step(*one)
    assert_step(model, expected)


def test_a_mask_in_a_variable():
    """A mask does not change the rows."""
    model, opt = tools.small_model(), tools.optimizer()
    masks = [tf.Variable(tf.ones(v.shape)) for v in model.trainable_variables]
    (one,), expected = clear_batches(model, 1)

    @tf.function
    def step(x, y):
        pairs = zip(gradients(model, x, y), masks)
        apply(opt, [g * mask for g, mask in pairs], model)

    step(*one)
    assert_step(model, expected)


def test_all_gradients_in_one_vector():
    """Distributed training packs gradients like this."""
    model, opt = tools.small_model(), tools.optimizer()
    (one,), expected = clear_batches(model, 1)

    @tf.function
    def step(x, y):
        grads = gradients(model, x, y)
        flat = tf.concat([tf.reshape(g, (-1,)) for g in grads], 0) * 0.5
        sizes = [int(np.prod(g.shape)) for g in grads]
        parts = tf.split(flat, sizes)
        grads = [tf.reshape(p, g.shape) for p, g in zip(parts, grads)]
        apply(opt, grads, model)

    step(*one)
    assert_step(model, expected)


@MODES
def test_gradient_penalty(mode):
    """Second derivatives equal those of plain layers."""
    model = tools.small_model()
    x, y = batch(0)

    def plain(x):
        first, second = binary_layers(model)
        kernels = [
            layer.kernel + tf.stop_gradient(layer.binary_kernel - layer.kernel)
            for layer in (first, second)
        ]
        hidden = tf.tanh(x @ kernels[0] / np.sqrt(tools.INPUTS) + first.bias)
        return hidden @ kernels[1] / np.sqrt(3) + second.bias

    def penalty(call, x):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = tf.reduce_sum(call(x) ** 2)
            slope = tf.reduce_sum(inner.gradient(value, x) ** 2)
        return outer.gradient(slope, model.trainable_variables)

    step = as_function(
        lambda x: (
            penalty(lambda x: model(x, training=True), x),
            penalty(plain, x),
        ),
        mode,
    )
    for ours, theirs in zip(*step(x)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_eager_passes_are_bounded():
    model = tools.small_model()
    mark = recording.mark_of(binary_layers(model)[0].kernel)
    for seed in range(recording.passes.MAX_LATEST + 5):
        gradients(model, *batch(seed))
    assert len(mark.latest) == recording.passes.MAX_LATEST
    apply(tools.optimizer(), gradients(model, *batch(0)), model)
    assert not mark.latest
