"""Training loops and interruptions, compared with `oracle`."""

import pathlib
import re
import threading
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
from oracle import oracle
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import recording

GUIDES = pathlib.Path(__file__).parents[2] / "docs" / "guides"


@MODES
def test_custom_loop_after_fit(mode):
    model, opt = tools.small_model(), tools.optimizer()
    tools.fit(model, opt, *tools.data())
    step = as_function(
        lambda x, y: apply(opt, gradients(model, x, y), model), mode
    )
    for _ in range(3):
        (one,), expected = clear_batches(model, 1)
        step(*one)
        assert_step(model, expected)


@pytest.mark.parametrize(
    ("where", "other"),
    [
        ("eager", "sgd"),
        ("eager", "qpsbgd"),
        ("graph", "sgd"),
        ("graph", "qpsbgd"),
        ("fit", "qpsbgd"),
        ("eager fit", "sgd"),
    ],
)
def test_two_alternating_optimizers(where, other):
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

    steps = {} if "fit" in where else {o: train(o) for o in (opt, second)}
    for optimizer in (opt, second, opt, second):
        (one,), expected = clear_batches(model, 1)
        (steps.get(optimizer) or train(optimizer))(*one)
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
    """Calls the network in plain operations and logs its products."""
    for layer, activation in zip(binary_layers(model), (tf.tanh, tf.identity)):
        product = x @ layer.binary_kernel
        tape.watch(product)
        log.append((layer, x, product))
        x = activation(product / np.sqrt(layer.kernel.shape[0]))
    return x


def bare_step(value_of, model):
    """Returns the kernels after a step of the oracle, and the gap."""
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
    generator, discriminator = bare_network(tools.INPUTS), bare_network(1)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)

    def discriminator_loss(call, noise, real):
        fake, true = (
            call(discriminator, call(generator, noise)),
            call(discriminator, real),
        )
        return loss(tf.zeros_like(fake), fake) + loss(tf.ones_like(true), true)

    def generator_loss(call, noise, real):
        fake = call(discriminator, call(generator, noise))
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
        (generator, discriminator, generator_loss),
        (discriminator, generator, discriminator_loss),
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
    """Calls a nested network twice and adds the logits."""

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
    """The update uses the rows of both calls."""
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


class Interrupted(kq.QPSBGD):
    """Raises a `KeyboardInterrupt` before the first update."""

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
    # The same optimizer continues. After an exception in the first trace, Keras
    # requires another `compile`, also with its own optimizers.
    model.compile(opt, tools.loss(), run_eagerly=eager)
    (one,), expected = clear_batches(model, 1)
    model.train_on_batch(*one)
    assert_step(model, expected)
    # Passes do not accumulate with another optimizer.
    adam = keras.optimizers.Adam()
    adam.build(model.trainable_variables)
    for _ in range(5):
        apply(adam, gradients(model, x, y), model)
        for layer in binary_layers(model):
            assert len(recording.mark_of(layer.kernel).latest) <= 1
    # Another `QPSBGD` works in a custom loop.
    other = tools.optimizer()
    (one,), expected = clear_batches(model, 1)
    apply(other, gradients(model, *one), model)
    assert_step(model, expected)


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("where", ["callback", "loss", "solver"])
def test_training_continues_after_an_exception(where, eager):
    armed = [True]

    def fail_once():
        if armed and armed.pop():
            raise RuntimeError("fails once")

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
        # Keras requires this after an exception in the first trace.
        model.compile(opt, loss)
    (one,), expected = clear_batches(model, 1)
    model.fit(*one, verbose=0)
    assert_step(model, expected)


class Overflowing(keras.layers.Layer):
    """Adds a term to the loss whose gradient overflows for one batch."""

    def build(self, input_shape):
        self.weight = self.add_weight(name="weight", shape=())

    def call(self, x, training=None):
        # The first feature is 100 in the batch that overflows.
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
def test_a_step_that_loss_scaling_skips_changes_nothing(where, mirrored):
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


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("how", ["plain", "scaled", "reduced"])
def test_replicas_in_a_custom_loop(mirrored, mode, how):
    """Two replicas get half of the batch each and modify their gradients."""
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


def test_threads_that_share_a_model():
    """Kernels may be held, but no thread fails."""
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


def test_documented_loops():
    """The code in the guide updates the kernels without warnings."""
    guide = GUIDES / "custom-loops.md"
    blocks = re.findall(r"```python\n(.*?)```", guide.read_text(), re.S)
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
