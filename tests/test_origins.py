"""An update uses exactly the backward passes that its gradients came from.

The expected kernels come from an oracle: rows and row gradients of plain
TensorFlow operations, one QUBO per column in numpy, all states enumerated. The
data are such that best and second-best energies differ by more than 1e-3.
"""

import pathlib
import re
import threading
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd import recording

RATE = 0.05
MODES = pytest.mark.parametrize("mode", ["eager", "graph"])
keras3 = pytest.mark.skipif(
    not _keras.KERAS_3, reason="an interface of Keras 3"
)


def as_function(step, mode):
    return step if mode == "eager" else tf.function(step)


def binary_layers(model):
    return [m for m in model.layers if isinstance(m, kq.layers.BinaryLayer)]


def passes(model, x, y, weight=1.0):
    """Rows and row gradients of the two layers, without recording."""
    first, second = binary_layers(model)
    with tf.GradientTape() as tape:
        r1 = x @ first.binary_kernel
        tape.watch(r1)
        hidden = tf.tanh(r1 / np.sqrt(first.kernel.shape[0]) + first.bias)
        r2 = hidden @ second.binary_kernel
        tape.watch(r2)
        logits = r2 / np.sqrt(second.kernel.shape[0]) + second.bias
        value = weight * tools.loss()(y, logits)
    v1, v2 = tape.gradient(value, [r1, r2])
    return [(np.array(x), np.array(v1)), (np.array(hidden), np.array(v2))]


def oracle(kernel, layer_passes, kappa=4.0):
    """The kernel after one step, and the least gap to a second solution."""
    rows = np.concatenate([x for x, _ in layer_passes]).astype(np.float64)
    v = np.concatenate([v for _, v in layer_passes]).astype(np.float64)
    kept = (v != 0).any(axis=1)
    z, v = rows[kept], v[kept]
    z = z / (z**2).sum(axis=1, keepdims=True)
    v = v * kappa / np.abs(v).max()
    candidates = tools.all_states(z.shape[1])
    states, gap = np.zeros(kernel.shape), np.inf
    for column in range(v.shape[1]):
        if np.abs(v[:, column]).max() < 1e-5 * kappa:
            continue  # rounding noise: a unit with equal outgoing weights
        energies = ((v[:, [column]] - z @ candidates) ** 2).sum(axis=0)
        best, second = np.sort(energies)[:2]
        random = (v[:, column] ** 2).sum() + (z**2).sum()
        gap = min(gap, (second - best) / random)
        states[:, column] = candidates[:, energies.argmin()]
    return kernel - np.float32(RATE) * states.astype(np.float32), gap


def expected_kernels(model, *all_passes):
    """The kernels after one step with these passes, if it is clear-cut."""
    kernels, gaps = zip(
        *(
            oracle(layer.kernel.numpy(), [one[i] for one in all_passes])
            for i, layer in enumerate(binary_layers(model))
        )
    )
    return (kernels, min(gaps))


def batch(seed, size=6):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, tools.INPUTS)).astype("float32")
    return tf.constant(x), tf.constant(rng.integers(3, size=(size,)))


def clear_batches(model, count, *weights):
    """Batches whose passes, taken together with the weights, are clear-cut."""
    for seed in range(100):
        batches = [batch(10 * seed + i) for i in range(count)]
        found = [passes(model, *one) for one in batches]
        scaled = [
            [(x, v * w) for x, v in one]
            for one, w in zip(found, weights or [1.0] * count)
        ]
        expected, gap = expected_kernels(model, *scaled)
        if gap > 1e-3:
            return batches, expected
    raise AssertionError("no clear-cut data")


def assert_step(model, expected, before=None):
    found = tools.kernels(model)
    for kernel, wanted in zip(found, expected):
        np.testing.assert_array_equal(kernel, wanted)
    if before is not None:
        for kernel, old in zip(found, before):
            assert np.abs(kernel - old).min() > 0.9 * RATE


def gradients(model, x, y, variables=None):
    with tf.GradientTape() as tape:
        value = tools.loss()(y, model(x, training=True))
    return tape.gradient(value, variables or model.trainable_variables)


def apply(opt, grads, model):
    opt.apply_gradients(zip(grads, model.trainable_variables))


# Situations: what happens around the gradients of one or two batches.


def side_gradient(model, opt, one, two):
    """Saliency: a gradient that never asks for the kernels."""

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
    """A gradient of the kernels that is looked at and thrown away."""
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


def balanced_by_another(model, opt, one, two):
    """The other gradient gives a number, not a direction."""
    grads, others = gradients(model, *one), gradients(model, *two)
    grads = [g * tf.norm(o) / tf.norm(g) for g, o in zip(grads, others)]
    apply(opt, grads, model)


def holes_filled(model, opt, one, two):
    grads = gradients(model, *one)
    grads = [tf.where(tf.math.is_finite(g), g, tf.zeros_like(g)) for g in grads]
    apply(opt, grads, model)


def chosen(model, opt, one, two):
    """One of two gradients, by a condition that is known at run time."""
    first, second = gradients(model, *one), gradients(model, *two)
    flag = tf.reduce_sum(one[0] ** 2) > 0
    grads = [tf.where(flag, g, h) for g, h in zip(first, second)]
    apply(opt, grads, model)


def clipped_by_hand(model, opt, one, two):
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
    balanced_by_another,
    holes_filled,
    chosen,
    clipped_by_hand,
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


def kept_with_rows(model, opt, one, two):
    """The explicit way, with arithmetic."""
    found = [
        kq.with_rows(gradients(model, x, y), model.trainable_variables)
        for x, y in (one, two)
    ]
    apply(opt, [(a + b) / 2.0 for a, b in zip(*found)], model)


TOGETHER = [
    two_losses,
    two_tapes,
    averaged,
    persistent_tape_twice,
    sum_clipped,
    kept_with_rows,
]


@MODES
@pytest.mark.parametrize("situation", TOGETHER, ids=lambda f: f.__name__)
def test_two_passes(situation, mode):
    model, opt = tools.small_model(), tools.optimizer()
    before = tools.kernels(model)
    (one, two), expected = clear_batches(model, 2)

    def step(x, y, other_x, other_y):
        situation(model, opt, (x, y), (other_x, other_y))

    as_function(step, mode)(*one, *two)
    assert_step(model, expected, before)


def test_shared_sums_are_walked_once():
    """Each sum is used twice: 2^24 paths lead to the gradient."""
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
def test_weights_of_gradients_are_those_of_their_rows(weights, mode):
    """Also negative ones, which ascend."""
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
def test_fit_then_a_custom_loop(mode):
    model, opt = tools.small_model(), tools.optimizer()
    tools.fit(model, opt, *tools.data())
    step = as_function(
        lambda x, y: apply(opt, gradients(model, x, y), model), mode
    )
    for _ in range(3):
        (one,), expected = clear_batches(model, 1)
        step(*one)
        assert_step(model, expected)


@pytest.mark.parametrize("other", ["sgd", "qpsbgd"])
@pytest.mark.parametrize("where", ["eager", "graph", "fit", "eager fit"])
def test_a_second_optimizer_alternates(where, other):
    model, opt = tools.small_model(), tools.optimizer()
    second = keras.optimizers.SGD(0.01) if other == "sgd" else tools.optimizer()

    def train(optimizer):
        if "fit" in where:
            model.compile(
                optimizer, tools.loss(), run_eagerly=where == "eager fit"
            )
            return lambda x, y: model.fit(x, y, verbose=0)
        return as_function(
            lambda x, y: apply(optimizer, gradients(model, x, y), model), where
        )

    for optimizer in (opt, second, opt, second, opt):
        (one,), expected = clear_batches(model, 1)
        train(optimizer)(*one)
        if optimizer is not second or other == "qpsbgd":
            assert_step(model, expected)


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_train_on_batch_and_custom_train_step(eager):
    class Custom(keras.Sequential):
        def train_step(self, data):
            x, y = data[:2]
            with tf.GradientTape() as tape:
                value = tools.loss()(y, self(x, training=True))
            with tf.GradientTape() as other:
                other.watch(x)
                side = tools.loss()(y, self(x, training=True))
            other.gradient(side, x)
            grads = tape.gradient(value, self.trainable_variables)
            self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
            return {"value": value}

    for kind in (keras.Sequential, Custom):
        model = kind(tools.small_model().layers)
        model.compile(tools.optimizer(), tools.loss(), run_eagerly=eager)
        for _ in range(2):
            (one,), expected = clear_batches(model, 1)
            model.train_on_batch(*one)
            assert_step(model, expected)


def bare_network(outputs):
    return keras.Sequential(
        [
            keras.layers.InputLayer((tools.INPUTS,)),
            kq.layers.BinaryDense(4, activation="tanh", use_bias=False),
            kq.layers.BinaryDense(outputs, use_bias=False),
        ]
    )


def bare_call(model, x, tape, log):
    """The network in plain operations; logs layer, rows and product."""
    for layer, activation in zip(binary_layers(model), (tf.tanh, tf.identity)):
        product = x @ layer.binary_kernel
        tape.watch(product)
        log.append((layer, x, product))
        x = activation(product / np.sqrt(layer.kernel.shape[0]))
    return x


def bare_step(value_of, model):
    """The kernels of `model` after a step, and the gap, by the oracle."""
    log = []
    with tf.GradientTape(persistent=True) as tape:
        value = value_of(lambda net, x: bare_call(net, x, tape, log))
    v = tape.gradient(value, [product for _, _, product in log])
    found = []
    for layer in binary_layers(model):
        layer_passes = [
            (np.array(x), np.array(g))
            for (other, x, _), g in zip(log, v)
            if other is layer
        ]
        found.append(oracle(layer.kernel.numpy(), layer_passes))
    return [kernel for kernel, _ in found], min(gap for _, gap in found)


@MODES
def test_a_gan(mode):
    """Binary generator and discriminator, each with its own optimizer."""
    keras.utils.set_random_seed(3)
    maker, judge = bare_network(tools.INPUTS), bare_network(1)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)

    def judge_loss(call, noise, real):
        fake, true = call(judge, call(maker, noise)), call(judge, real)
        return loss(tf.zeros_like(fake), fake) + loss(tf.ones_like(true), true)

    def maker_loss(call, noise, real):
        fake = call(judge, call(maker, noise))
        return loss(tf.ones_like(fake), fake)

    def train(opt, model, value_of):
        def step(noise, real):
            with tf.GradientTape() as tape:
                value = value_of(
                    lambda net, x: net(x, training=True), noise, real
                )
            grads = tape.gradient(value, model.trainable_variables)
            apply(opt, grads, model)

        return as_function(step, mode)

    halves = [
        (maker, judge, maker_loss),
        (judge, maker, judge_loss),
    ]
    halves = [
        (model, other, value_of, train(tools.optimizer(), model, value_of))
        for model, other, value_of in halves
    ]
    for _ in range(2):
        for model, other, value_of, step in halves:
            for seed in range(100):
                rng = np.random.default_rng(seed)
                noise, real = tf.constant(
                    rng.normal(size=(2, 8, tools.INPUTS)), "float32"
                )
                expected, gap = bare_step(
                    lambda call, x=noise, y=real, f=value_of: f(call, x, y),
                    model,
                )
                if gap > 1e-3:
                    break
            assert gap > 1e-3
            untouched = other.get_weights()
            step(noise, real)
            assert_step(model, expected)
            tools.assert_equal(other.get_weights(), untouched)


class Shared(keras.Model):
    """One network, nested, called twice, its logits added."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def call(self, x, training=None):
        left, right = tf.split(x, 2, axis=1)
        return self.net(left, training=training) + self.net(
            right, training=training
        )


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_nested_and_shared_models(eager):
    """The rows of both calls, with the gradients of their common loss."""
    net = tools.small_model()
    first, second = binary_layers(net)
    model = Shared(net)
    model.compile(tools.optimizer(), tools.loss(), run_eagerly=eager)
    for seed in range(100):
        x1, y = batch(seed)
        x2, _ = batch(seed + 500)
        with tf.GradientTape() as tape:
            rs, hs = [], []
            logits = 0.0
            for x in (x1, x2):
                r1 = x @ first.binary_kernel
                tape.watch(r1)
                h = tf.tanh(r1 / np.sqrt(tools.INPUTS) + first.bias)
                r2 = h @ second.binary_kernel
                tape.watch(r2)
                logits += r2 / np.sqrt(3) + second.bias
                rs += [r1, r2]
                hs.append(h)
            value = tools.loss()(y, logits)
        v = [np.array(g) for g in tape.gradient(value, rs)]
        found = [
            [(np.array(x), v[2 * i]), (np.array(hs[i]), v[2 * i + 1])]
            for i, x in enumerate((x1, x2))
        ]
        expected, gap = expected_kernels(net, *found)
        if gap > 1e-3:
            break
    model.train_on_batch(tf.concat([x1, x2], axis=1), y)
    assert_step(net, expected)


def test_two_fits_in_two_threads():
    x, y = tools.data()
    expected = tools.clear_cut_fit(tools.CLEAR_CUT["max"])
    models = [tools.small_model() for _ in range(2)]
    for model, eager in zip(models, (True, False)):
        model.compile(tools.optimizer(), tools.loss(), run_eagerly=eager)
    threads = [
        threading.Thread(
            target=model.fit,
            args=(x, y),
            kwargs={
                "batch_size": tools.BATCH,
                "shuffle": False,
                "verbose": 0,
            },
        )
        for model in models
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for model in models:
        tools.assert_equal(tools.kernels(model), expected)


# Exceptions


class Interrupted(kq.QPSBGD):
    """Ctrl-C between loss and update, once."""

    interrupt = True

    def apply(self, grads, trainable_variables=None):
        if self.interrupt:
            self.interrupt = False
            raise KeyboardInterrupt
        super().apply(grads, trainable_variables)


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_interrupt_between_loss_and_update(eager):
    model = tools.small_model()
    opt = Interrupted(RATE, real_optimizer="sgd", seed=1)
    model.compile(opt, tools.loss(), run_eagerly=eager)
    x, y = tools.data()
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, verbose=0)
    # The same optimizer goes on. Keras must compile again after an exception
    # in the first trace, whatever the optimizer.
    model.compile(opt, tools.loss(), run_eagerly=eager)
    (one,), expected = clear_batches(model, 1)
    model.train_on_batch(*one)
    assert_step(model, expected)
    # Another optimizer piles nothing up.
    adam = keras.optimizers.Adam()
    adam.build(model.trainable_variables)
    for _ in range(5):
        apply(adam, gradients(model, x, y), model)
        for layer in binary_layers(model):
            assert len(recording.mark_of(layer.kernel).latest) <= 1
    # Another QPSBGD in a custom loop.
    other = tools.optimizer()
    (one,), expected = clear_batches(model, 1)
    apply(other, gradients(model, *one), model)
    assert_step(model, expected)


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("where", ["callback", "loss", "solver"])
def test_training_goes_on_after_an_exception(where, eager):
    armed = [True]

    def fail_once():
        if armed and armed.pop():
            raise RuntimeError("not this time")

    class Failing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            fail_once()

    class Solver(tools.GapBackend):
        def sample(self, qubo, seed):
            fail_once()
            return super().sample(qubo, seed)

    def loss(y_true, y_pred):
        if where == "loss":
            fail_once()
        return keras.losses.sparse_categorical_crossentropy(
            y_true, y_pred, from_logits=True
        )

    backend = Solver() if where == "solver" else "native"
    opt = tools.optimizer(backend=backend)
    model = tools.small_model()
    model.compile(opt, loss, run_eagerly=eager)
    x, y = tools.data()
    before = tools.kernels(model)
    callbacks = [Failing()] if where == "callback" else []
    with pytest.raises(
        (RuntimeError, tf.errors.OpError, kq.backends.SolverError)
    ):
        model.fit(x, y, batch_size=6, verbose=0, callbacks=callbacks)
    if where != "callback":
        tools.assert_equal(tools.kernels(model), before)
    if where == "loss" and not eager:
        # Keras asks for it after an exception in the first trace.
        model.compile(opt, loss)
    (one,), expected = clear_batches(model, 1)
    model.fit(*one, verbose=0)
    assert_step(model, expected)


# Loss scaling


class Overflowing(keras.layers.Layer):
    """Adds to the loss a term whose gradient overflows for one batch."""

    def build(self, input_shape):
        self.weight = self.add_weight(name="weight", shape=())

    def call(self, x, training=None):
        # The first feature is 100 in a batch that is to overflow.
        large = tf.where(tf.reduce_any(x == 100.0), 1e36, 0.0)
        self.add_loss(tf.convert_to_tensor(self.weight) * large)
        return tf.where(x == 100.0, tf.ones_like(x), x)


def overflowing_model():
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.layers.InputLayer((tools.INPUTS,)),
            Overflowing(),
            kq.layers.BinaryDense(3, activation="tanh"),
            kq.layers.BinaryDense(3),
        ]
    )


@pytest.mark.parametrize("where", ["graph", "eager", "replicas"])
def test_a_step_that_loss_scaling_skips_leaves_nothing(where, mirrored):
    scope = mirrored if where == "replicas" else tf.distribute.get_strategy()
    with scope.scope():
        model = overflowing_model()
        opt = tools.optimizer()
        model.compile(
            tools.loss_scaled(opt, initial_scale=2.0**15),
            tools.loss(),
            run_eagerly=where == "eager",
        )
    (one,), expected = clear_batches(model, 1)
    start = tools.kernels(model)
    x, y = batch(3000)
    bad = np.array(x)
    bad[:, 0] = 100.0
    arguments = {"batch_size": 6, "shuffle": False, "verbose": 0}
    model.fit(bad, np.array(y), **arguments)
    assert_step(model, start)
    model.fit(*map(np.array, one), **arguments)
    assert_step(model, expected, start)
    assert opt.skipped_updates == 0


# What cannot be known is held, with a warning


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


def _stacked(combine):
    def situation(model, opt, x, y):
        @tf.function
        def step(x, y):
            found = zip(gradients(model, x, y), gradients(model, -x, y))
            apply(opt, [combine(g, h) for g, h in found], model)

        step(x, y)

    return situation


stacked_and_weighted = _stacked(
    lambda g, h: tf.tensordot([0.9, -0.1], tf.stack([g, h]), 1)
)
stacked_and_picked = _stacked(lambda g, h: tf.stack([g, h])[0])
masked_difference = _stacked(lambda g, h: tf.ones_like(g) * (g - h))
larger_of_two = _stacked(tf.maximum)
stacked_and_weighted.__name__ = "stacked_and_weighted"
stacked_and_picked.__name__ = "stacked_and_picked"
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
    """After a pass that has no part in it."""
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


def something_else(model, opt, x, y):
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
    partly_from_a_masked_function,
    in_a_branch,
    in_a_loop,
    partly_without_training,
    with_a_gradient_penalty,
    with_an_eager_gradient_penalty,
    stacked_and_weighted,
    stacked_and_picked,
    masked_difference,
    larger_of_two,
    of_a_regularizer,
    all_ones,
    without_training,
    something_else,
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
    # The next step that is known moves them.
    (one,), expected = clear_batches(model, 1)
    apply(opt, gradients(model, *one), model)
    assert_step(model, expected)


def test_a_stale_pass_at_other_weights_is_no_origin():
    """A gradient of an earlier step, scaled, after the kernel has moved."""
    model, opt = tools.small_model(), tools.optimizer()
    old = [2.0 * g for g in gradients(model, *batch(0))]
    apply(opt, gradients(model, *batch(1)), model)
    before = tools.kernels(model)
    with pytest.warns(UserWarning, match="not updated"):
        apply(opt, old, model)
    tools.assert_equal(tools.kernels(model), before)


def test_eager_passes_of_one_kernel_entry_are_not_guessed():
    """One number explains everything: two passes cannot be told apart."""
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

    apply(opt, grads(tf.constant([[2.0]])), model)  # by identity
    start = model.get_weights()
    grads(tf.constant([[1.0]]))
    with pytest.warns(UserWarning, match="more than one"):
        apply(opt, [0.3 * g for g in grads(tf.constant([[3.0]]))], model)
    tools.assert_equal(model.get_weights(), start)


def test_dead_entries_are_no_evidence():
    """As many passes as entries that are not zero explain any noise."""
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


@MODES
@pytest.mark.parametrize("count", [2, 9])
def test_many_passes_into_a_small_kernel(count, mode):
    """Sum and mean of all passes are recognised, however many they are."""
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
    # The other optimizers of the package take the gradient out of it.
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


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("how", ["plain", "scaled", "reduced"])
def test_replicas_in_a_custom_loop(mirrored, mode, how):
    """Two replicas with half of the batch each, gradients changed by hand."""
    with mirrored.scope():
        model, opt = tools.small_model(), tools.optimizer()
        opt.build(model.trainable_variables)
    (one,), expected = clear_batches(model, 1)
    x, y = one

    def step():
        context = tf.distribute.get_replica_context()
        index = context.replica_id_in_sync_group
        part = slice(3 * int(index), 3 * int(index) + 3)
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                y[part], model(x[part], training=True), from_logits=True
            )
            value = 0.5 * tf.reduce_mean(losses)
        grads = tape.gradient(value, model.trainable_variables)
        if how == "scaled":
            grads = [0.5 * g for g in grads]
        if how == "reduced":
            grads = context.all_reduce(tf.distribute.ReduceOp.MEAN, grads)
        apply(opt, grads, model)

    run = as_function(lambda: mirrored.run(step), mode)
    if mode == "eager" and how == "reduced":
        # The sum over replicas is not a sum of passes of one replica.
        with pytest.warns(UserWarning, match="not updated"):
            run()
        return
    run()
    assert_step(model, expected)


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


def test_threads_that_share_a_model():
    """They may be held, but nothing breaks."""
    model, opt = tools.small_model(), tools.optimizer()
    opt.build(model.trainable_variables)
    errors = []

    def train(seed):
        try:
            for step in range(5):
                grads = gradients(model, *batch(10 * seed + step))
                apply(opt, [0.5 * g for g in grads], model)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=(i,)) for i in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors


def test_one_kernel_of_two_layers():
    """Both layers' rows belong to it."""
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
def test_a_regularizer_is_no_part_of_the_rows(mode):
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


def test_a_mask_in_a_variable():
    """Entries that are not to move; the rows are the same."""
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
    """As distributed training packs them."""
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
    """Second derivatives are those of plain layers; without the product's own
    gradient there are no rows."""
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
    with pytest.raises(ValueError, match="Received: for layer.*that is no sum"):
        kq.with_rows(noise, variables)
    packed = kq.with_rows([None, *grads[1:]], variables)
    assert packed[0] is None and packed[1] is grads[1]


def test_eager_passes_are_bounded():
    model = tools.small_model()
    mark = recording.mark_of(binary_layers(model)[0].kernel)
    for seed in range(recording.passes.LATEST + 5):
        gradients(model, *batch(seed))
    assert len(mark.latest) == recording.passes.LATEST
    apply(tools.optimizer(), gradients(model, *batch(0)), model)
    assert not mark.latest


def test_loops_of_the_readme():
    """The code in README.md moves the kernels, and warns of nothing."""
    readme = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
    section = readme.split("### Custom training loops")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.S)
    assert len(blocks) == 2
    model = tools.small_model()
    (one, two), expected = clear_batches(model, 2)
    (x1, y1), (x2, y2) = one, two
    names = {
        "tf": tf,
        "kq": kq,
        "model": model,
        "optimizer": tools.optimizer(),
        "loss_function": tools.loss(),
        "x1": x1,
        "y1": y1,
        "x2": x2,
        "y2": y2,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        exec(blocks[1], names)
        assert_step(model, expected)
        exec(blocks[0], names)
        (one,), expected = clear_batches(model, 1)
        names["step"](*one)
    assert_step(model, expected)
