"""All ways to run a step give bitwise equal kernels.

In the data the best and second-best energies differ by more than 1e-3 in every
column of every step. `Case` asserts this.
"""

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras

keras3 = pytest.mark.skipif(
    not _keras.KERAS_3, reason="legacy Keras has no gradient accumulation"
)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"jit_compile": True},
        {"run_eagerly": True},
        {"steps_per_execution": 3},
    ],
    ids=str,
)
def test_fit(reference, arguments):
    found = reference.fit(reference.optimizer(), **arguments)
    tools.assert_equal(found, reference.expected)


@pytest.mark.once
def test_exact_backend(narrow):
    found = narrow.fit(tools.optimizer(backend="exact"))
    tools.assert_equal(found, narrow.expected)


def test_train_on_batch(reference):
    x, y, expected = reference.x, reference.y, reference.expected
    model = reference.model()
    model.compile(reference.optimizer(), tools.loss())
    for begin in range(0, len(x), tools.BATCH):
        batch = slice(begin, begin + tools.BATCH)
        model.train_on_batch(x[batch], y[batch])
    tools.assert_equal(tools.kernels(model), expected)


def _loop(model, opt, x, y, kind, jit=None):
    """Runs a training loop with `tf.GradientTape`."""
    variables = model.trainable_variables
    loss = tools.loss()

    def gradients(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        return tape.gradient(value, variables)

    def apply(grads):
        opt.apply_gradients(zip(grads, variables))

    def step(x, y):
        apply(first(x, y))

    def gradients_with_rows(x, y):
        return kq.with_rows(gradients(x, y), variables)

    first = gradients
    if kind == "one function":
        step = tf.function(step, jit_compile=jit)
    elif kind == "two functions":
        first = tf.function(gradients_with_rows, jit_compile=jit)
        apply = tf.function(apply, jit_compile=jit)
    elif kind == "gradients in a function":
        first = tf.function(gradients_with_rows)
    for begin in range(0, len(x), tools.BATCH):
        batch = slice(begin, begin + tools.BATCH)
        step(tf.constant(x[batch]), tf.constant(y[batch]))
    return tools.kernels(model)


KINDS = ["eager", "one function", "two functions", "gradients in a function"]


@pytest.mark.parametrize("kind", KINDS)
def test_custom_loop(reference, kind):
    x, y, expected = reference.x, reference.y, reference.expected
    model, opt = reference.model(), reference.optimizer()
    # Half of the runs skip `build`, so that each kind and each width has both.
    if KINDS.index(kind) % 2 == reference.is_wide:
        opt.build(model.trainable_variables)
    tools.assert_equal(_loop(model, opt, x, y, kind), expected)


@pytest.mark.once
@pytest.mark.parametrize("kind", ["one function", "two functions"])
def test_compiled_custom_loop(reference, kind):
    x, y, expected = reference.x, reference.y, reference.expected
    model, opt = reference.model(), reference.optimizer()
    tools.assert_equal(_loop(model, opt, x, y, kind, jit=True), expected)


# Each kind runs after `fit` with one width and before it with the other.


@pytest.mark.parametrize(
    ("reference", "kind"),
    [*zip(["narrow", "narrow", "wide", "wide"], KINDS)],
    indirect=["reference"],
)
def test_custom_loop_after_fit(reference, kind):
    x, y, expected = reference.x, reference.y, reference.expected
    half = len(x) // 2
    model, opt = reference.model(), reference.optimizer()
    tools.fit(model, opt, x[:half], y[:half])
    tools.assert_equal(_loop(model, opt, x[half:], y[half:], kind), expected)


@pytest.mark.parametrize(
    ("reference", "kind"),
    [*zip(["wide", "wide", "narrow", "narrow"], KINDS)],
    indirect=["reference"],
)
def test_fit_after_custom_loop(reference, kind):
    x, y, expected = reference.x, reference.y, reference.expected
    half = len(x) // 2
    model, opt = reference.model(), reference.optimizer()
    _loop(model, opt, x[:half], y[:half], kind)
    found = tools.fit(model, opt, x[half:], y[half:])
    tools.assert_equal(found, expected)


@keras3
@pytest.mark.parametrize("scale", ["max", "batch", "raw"])
@pytest.mark.filterwarnings("ignore:gradient_scale")
def test_gradient_accumulation(scale):
    seed = tools.CLEAR_CUT[scale]
    x, y = tools.data(seed)
    expected = tools.clear_cut_fit(seed, gradient_scale=scale)
    modes = [{"run_eagerly": True}]
    if scale == "max":
        modes += [{}, {"jit_compile": True}]
    for arguments in modes:
        opt = tools.optimizer(
            gradient_accumulation_steps=2, gradient_scale=scale
        )
        found = tools.fit(
            tools.small_model(seed), opt, x, y, tools.BATCH // 2, **arguments
        )
        tools.assert_equal(found, expected)


class Twice(keras.Model):
    """Calls one layer on both halves of its input, or once on all of it."""

    def __init__(self, layer, split):
        super().__init__()
        self.layer = layer
        self.split = split

    def call(self, x, training=None):
        if not self.split:
            return self.layer(x, training=training)
        halves = tf.split(x, 2)
        return tf.concat(
            [self.layer(half, training=training) for half in halves], 0
        )


@pytest.mark.parametrize("scale", ["max", "reach", "rms", "batch"])
def test_shared_layer(scale):
    x, y = tools.data()
    found = []
    for split in (False, True):
        keras.utils.set_random_seed(0)
        model = Twice(kq.layers.BinaryDense(3), split)
        backend = tools.GapBackend()
        opt = tools.optimizer(backend=backend, gradient_scale=scale)
        model.compile(opt, tools.loss(), run_eagerly=True)
        model.fit(x, y, batch_size=tools.BATCH, shuffle=False, verbose=0)
        assert backend.least > 1e-3
        found.append(model.layer.kernel.numpy())
    np.testing.assert_array_equal(*found)


class NoTrainingArgument(keras.Model):
    """A subclassed model whose `call` has no `training` argument."""

    def __init__(self):
        super().__init__()
        self.first = kq.layers.BinaryDense(3, activation="tanh")
        self.second = kq.layers.BinaryDense(3)

    def call(self, x):
        return self.second(self.first(x))


def test_model_without_training_argument(reference):
    x, y, expected = reference.x, reference.y, reference.expected
    keras.utils.set_random_seed(0)
    model = NoTrainingArgument()
    model.compile(reference.optimizer(), tools.loss())
    model(x[:1])
    start = reference.model()
    model.first.set_weights(start.layers[-2].get_weights())
    model.second.set_weights(start.layers[-1].get_weights())
    model.fit(x, y, batch_size=tools.BATCH, shuffle=False, verbose=0)
    found = [model.first.kernel.numpy(), model.second.kernel.numpy()]
    tools.assert_equal(found, expected)


@pytest.mark.once
def test_layer_inside_a_function():
    """The rows of a pass in an inner function are not available outside."""

    class Inner(keras.Model):
        def __init__(self):
            super().__init__()
            self.net = tools.small_model()

        @tf.function
        def forward(self, x):
            return self.net(x)

        def call(self, x, training=None):
            return self.forward(x)

    model = Inner()
    before = tools.kernels(model.net)
    with pytest.warns(UserWarning, match="not updated.*another `tf.function`"):
        tools.fit(model, tools.optimizer(), *tools.data())
    tools.assert_equal(tools.kernels(model.net), before)


def test_layer_inside_a_while_loop_is_held():
    class Loop(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = kq.layers.BinaryDense(3, activation="tanh")
            self.layer.build((None, 3))

        def call(self, x, training=None):
            return tf.while_loop(
                lambda i, x: i < 2, lambda i, x: (i + 1, self.layer(x)), (0, x)
            )[1]

    model = Loop()
    model.compile(tools.optimizer(), "mse")
    x = np.ones((8, 3), "float32")
    before = model.layer.get_weights()[0]
    with pytest.warns(UserWarning, match="not updated.*tf.while_loop.*unroll"):
        model.fit(x, x, verbose=0)
    np.testing.assert_array_equal(model.layer.get_weights()[0], before)


def test_loss_scaling_does_not_change_the_kernels(reference):
    x, y, expected = reference.x, reference.y, reference.expected
    if _keras.KERAS_3:
        factor = reference.optimizer(loss_scale_factor=1024.0)
        found = tools.fit(reference.model(), factor, x, y)
        tools.assert_equal(found, expected)
    for arguments in ({}, {"run_eagerly": True}):
        wrapped = tools.loss_scaled(reference.optimizer())
        found = tools.fit(reference.model(), wrapped, x, y, **arguments)
        tools.assert_equal(found, expected)


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"),
    reason="this Keras has no MultiOptimizer",
)
def test_multi_optimizer(narrow):
    x, y, expected = narrow.x, narrow.y, narrow.expected
    opt = narrow.optimizer()
    routes = keras.optimizers.OptimizerMap(
        keras.optimizers.SGD(), {".*kernel": opt}
    )
    multi = keras.optimizers.MultiOptimizer(routes)
    tools.assert_equal(tools.fit(narrow.model(), multi, x, y), expected)


def test_recompiling_to_adam_and_back(narrow):
    x, y, expected = narrow.x, narrow.y, narrow.expected
    half = len(x) // 2
    model = narrow.model()
    kept = narrow.optimizer()  # is kept while Adam trains
    tools.fit(model, kept, x[:half], y[:half])
    middle = model.get_weights()
    tools.fit(model, "adam", x, y)
    model.set_weights(middle)
    found = tools.fit(model, kept, x[half:], y[half:])
    tools.assert_equal(found, expected)


def test_evaluate_and_predict_change_nothing(reference):
    x, y, expected = reference.x, reference.y, reference.expected
    half = len(x) // 2
    model, opt = reference.model(), reference.optimizer()
    _loop(model, opt, x[:half], y[:half], "eager")
    model.compile(opt, tools.loss())
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    tools.gradients(model, x, y, training=False)
    found = _loop(model, opt, x[half:], y[half:], "eager")
    tools.assert_equal(found, expected)


@pytest.mark.once
def test_ragged_last_batch():
    x, y = tools.data(0)
    runs = [
        tools.fit(tools.small_model(), tools.optimizer(), x[:-3], y[:-3])
        for _ in range(2)
    ]
    tools.assert_equal(*runs)


@pytest.mark.once
def test_search_with_the_same_seed_is_reproducible():
    """The layer is too wide for enumeration, so the search is random."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 40)).astype("float32")
    y = rng.integers(2, size=(64,))
    found = []
    for seed in (3, 3):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([kq.layers.BinaryDense(3)])
        opt = kq.QPSBGD(
            0.05, {"name": "native", "preset": "accurate"}, seed=seed
        )
        model.compile(opt, tools.loss())
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        found.append(model.get_weights())
    tools.assert_equal(*found)


@pytest.mark.once
def test_two_host_layers_of_equal_shape():
    """Their problems and solutions are not mixed up."""
    x, y = tools.data(20)
    seen = []

    class Watching(tools.GapBackend):
        def sample(self, qubo, seed):
            seen.append(qubo.fields.copy())
            return super().sample(qubo, seed)

    def model():
        keras.utils.set_random_seed(20)
        return keras.Sequential(
            [
                keras.layers.InputLayer((tools.INPUTS,)),
                kq.layers.BinaryDense(5, activation="tanh"),
                kq.layers.BinaryDense(5, activation="tanh"),
                kq.layers.BinaryDense(3),
            ]
        )

    watching = Watching()
    host = tools.fit(model(), tools.optimizer(backend=watching), x, y)
    assert watching.least > 1e-3
    exact = tools.fit(model(), tools.optimizer(backend="exact"), x, y)
    assert not np.array_equal(seen[0], seen[1])
    assert len(seen) == 3 * tools.STEPS
    tools.assert_equal(host, exact)
