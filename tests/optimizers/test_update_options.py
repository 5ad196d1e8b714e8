"""Tests the options of an update: momentum, hold, reads and routing.

Also tests that they and the binary Newton rule give the same result in all
training modes.
"""

import functools

import dimod
import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import ops
from keras_qpsbgd.backends import reads
from keras_qpsbgd.optimizers.rules import hold

# Every option is part of at least one of these. Compiling takes most of the
# time, so several options share a network.
OPTIONS = {
    "free": {"update": "newton", "latent": "none", "damping": 4.0},
    "average": {
        "update": "newton",
        "learning_rate": 0.25,
        "curvature": {"second": "mean_squared_error"},
        "momentum": 0.5,
        "hold": 0.4,
    },
    "gradient": {
        "learning_rate": 0.05,
        "momentum": 0.5,
        "hold": 0.4,
        "max_variables": 6,
    },
    "weighted": {
        "learning_rate": 0.05,
        "reads": "mean",
        "read_temperature": 0.5,
    },
    "mean": {
        "update": "newton",
        "reads": "mean",
        "mean_curvature": True,
        "real_layers": ["first"],
    },
}
ALL = pytest.mark.parametrize("option", sorted(OPTIONS))


def data(seed=0, batch=8, steps=4):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(batch * steps, 7)).astype("float32")
    y = (x[:, :2] > 0).astype("float32")
    return x, y


def make(option, seed=1, **arguments):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((7,)),
            kq.layers.BinaryDense(5, activation="tanh", name="first"),
            kq.layers.BinaryDense(2, name="second"),
        ]
    )
    optimizer = kq.QPSBGD(**{"seed": 3, **OPTIONS.get(option, {}), **arguments})
    return model, optimizer


def train(option, jit=False, eager=False, batch=8, **arguments):
    x, y = data()
    model, optimizer = make(option, **arguments)
    model.compile(optimizer, "mse", jit_compile=jit, run_eagerly=eager)
    model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
    return model


@pytest.fixture(scope="module")
def weights():
    """Returns a function of an option: the weights after `train(option)`."""
    return functools.cache(lambda option: train(option).get_weights())


def assert_close(model, weights, tolerance=0.0):
    for a, b in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


@ALL
def test_trains_and_eager_equals_graph(option, weights):
    before, _ = make(option)
    after = weights(option)
    assert any((a != b).any() for a, b in zip(before.get_weights(), after))
    assert_close(train(option, eager=True), after, 1e-6)


@ALL
def test_jit_equals_graph(option, weights):
    assert_close(train(option, jit=True), weights(option), 1e-5)


@ALL
def test_save_and_resume(tmp_path, option):
    x, y = data()
    model, optimizer = make(option)
    model.compile(optimizer, "mse", jit_compile=False)
    fit = {"batch_size": 8, "shuffle": False, "verbose": 0}
    model.fit(x, y, **fit)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == optimizer.get_config()
    for one in (model, loaded):
        one.fit(x, y, **fit)
    assert_close(model, loaded.get_weights())


@ALL
def test_two_replicas_equal_one(mirrored, option, weights):
    x, y = data()
    with mirrored.scope():
        model, optimizer = make(option)
        model.compile(optimizer, "mse", jit_compile=False)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert_close(model, weights(option), 1e-5)


@ALL
def test_accumulation_equals_large_batches(option, weights):
    steps = {"gradient_accumulation_steps": 2}
    try:
        kq.QPSBGD(**steps)
    except (TypeError, ValueError):
        pytest.skip("legacy Keras has no gradient accumulation")
    accumulated = train(option, batch=4, **steps)
    assert_close(accumulated, weights(option), 1e-5)


def test_defaults_are_saved_and_unchanged():
    config = kq.QPSBGD().get_config()
    assert config["update"] == "gradient"
    assert config["reads"] == "best"
    assert config["momentum"] == config["hold"] == 0.0


# Momentum


def test_momentum_by_hand():
    """The fields of two batches, averaged with mu = 1/2.

    With X = I and unit rows, the fields are -2V. The first batch has V = (1, 1)
    and the second V = (-0.4, -2). The averages, divided by 1 - mu^t, are (1, 1)
    and ((0.5 * 0.5 - 0.2) / 0.75, (0.25 - 1) / 0.75) = (0.067, -1).
    """
    model = keras.Sequential(
        [
            keras.Input((2,)),
            kq.layers.BinaryDense(
                1, use_bias=False, output_scale=None, kernel_initializer="zeros"
            ),
        ]
    )
    optimizer = kq.QPSBGD(0.125, "sign", momentum=0.5)
    kernel = model.layers[-1].kernel
    rows = tf.eye(2)
    for v, expected in (
        ([1.0, 1.0], [-0.125, -0.125]),
        ([-0.4, -2.0], [-0.25, 0.0]),
    ):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(rows, training=True)[:, 0] * v)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        found = tf.convert_to_tensor(kernel).numpy()[:, 0]
        np.testing.assert_allclose(found, expected)


# Hold


def test_hold_by_hand():
    # g'Qg + s'g with Q = [[1, .5], [.5, 1]], s = (-3, 1) and g = (1, -1): a
    # flip of the first costs -4 * (0.5 * -1) - 2 * -3 = 8, of the second
    # -4 * -1 * 0.5 - 2 * 1 * -1 = 4.
    problem = ops.Problem(
        couplings=tf.constant([[1.0, 0.5], [0.5, 1.0]]),
        fields=tf.constant([[-3.0], [1.0]]),
        offset=tf.zeros((1,)),
    )
    states = tf.constant([[1.0], [-1.0]])
    costs = hold.flip_costs(states, problem)
    np.testing.assert_allclose(costs, [[8.0], [4.0]])
    held = hold.hold_uncertain(states, problem, 0.5)
    np.testing.assert_array_equal(held, [[1.0], [0.0]])
    np.testing.assert_array_equal(
        hold.hold_uncertain(states, problem, 0.4), states
    )
    np.testing.assert_array_equal(
        hold.hold_uncertain(states, problem, 1.0), tf.zeros((2, 1))
    )


def test_costs_are_energy_differences_in_both_forms():
    rng = np.random.default_rng(0)
    z, v = rng.normal(size=(6, 5)), rng.normal(size=(6, 3))
    z, v = z.astype("float32"), v.astype("float32")
    states = np.where(rng.random((5, 3)) < 0.5, 1.0, -1.0).astype("float32")
    qubo = kq.Qubo(z.T @ z, -2 * z.T @ v)
    expected = np.empty((5, 3))
    for i in range(5):
        flipped = states.copy()
        flipped[i] *= -1
        expected[i] = qubo.energy(flipped) - qubo.energy(states)
    for build in (ops.gram_problem, ops.rows_problem):
        costs = hold.flip_costs(tf.constant(states), build(z, v))
        np.testing.assert_allclose(costs, expected, rtol=1e-4, atol=1e-4)


# Reads


def test_mean_of_reads_by_hand():
    samples = np.array([[[1.0]], [[-1.0]], [[-1.0]], [[1.0]]])
    energies = np.array([[0.0], [1.0], [2.0], [1.0]])
    assert reads.mean(samples, energies)[0, 0] == 0
    # The mean excess is 1, so with T = 1 the weights are 1, 1/e, 1/e^2, 1/e.
    weights = np.exp([0.0, -1.0, -2.0, -1.0])
    expected = weights @ [1, -1, -1, 1] / weights.sum()
    found = reads.mean(samples, energies, 1.0)
    np.testing.assert_allclose(found, [[expected]], rtol=1e-6)
    in_graph = reads.mean_in_graph(
        tf.constant(samples, tf.float32), tf.constant(energies, tf.float32), 1.0
    )
    np.testing.assert_allclose(in_graph, found, rtol=1e-6)
    equal = reads.mean(samples, np.zeros((4, 1)), 1.0)
    np.testing.assert_allclose(equal, 0, atol=1e-7)


class TwoReads(kq.backends.Backend):
    """Returns all ones, and all ones except for the first variable."""

    def sample(self, qubo, seed):
        samples = np.ones((2, qubo.num_variables, qubo.num_columns))
        samples[1, 0] = -1
        return samples, {}


def test_host_backends_return_the_mean():
    model, optimizer = make(
        None, reads="mean", backend=TwoReads(), learning_rate=0.5
    )
    before = model.layers[-1].get_weights()[0]
    model.compile(optimizer, "mse", jit_compile=False)
    x, y = data(steps=1)
    model.fit(x, y, batch_size=8, verbose=0)
    step = before - model.layers[-1].get_weights()[0]
    # A read that ascends is negated, so the mean of the first row may be +-1.
    assert set(np.round(np.abs(step) / 0.5, 5).ravel()) <= {0.0, 1.0}
    assert (np.abs(step[1:]) > 0).any()


@pytest.mark.parametrize(
    "backend", ["ridge", "sign", "exact", dimod.ExactSolver()]
)
def test_backends_without_reads_raise(backend):
    with pytest.raises(ValueError, match="has no reads to average"):
        kq.QPSBGD(backend=backend, reads="mean")


def test_read_arguments():
    with pytest.raises(ValueError, match="`reads` must be one of"):
        kq.QPSBGD(reads="all")
    with pytest.raises(ValueError, match='requires `reads="mean"`'):
        kq.QPSBGD(read_temperature=1.0)
    with pytest.raises(ValueError, match="`read_temperature` must be"):
        kq.QPSBGD(reads="mean", read_temperature=0)
    with pytest.raises(ValueError, match="`num_reads` must be"):
        kq.backends.get({"name": "native", "num_reads": 0})


# Routing


@pytest.mark.parametrize(
    "routing", [{"max_variables": 6}, {"real_layers": ["first"]}]
)
def test_routed_layers_train_with_the_real_optimizer(routing):
    rate = 0.125
    model, optimizer = make(
        None,
        real_optimizer=keras.optimizers.SGD(rate),
        learning_rate=0.5,
        **routing,
    )
    before = [layer.get_weights()[0] for layer in model.layers[-2:]]
    x, y = data(steps=1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    expected = before[0] - rate * np.array(gradients[0])
    model.compile(optimizer, "mse", jit_compile=False)
    model.train_on_batch(x, y)
    first, second = (layer.get_weights()[0] for layer in model.layers[-2:])
    np.testing.assert_allclose(first, expected, atol=1e-6)
    np.testing.assert_allclose(np.abs(second - before[1]), 0.5, atol=1e-6)
    assert optimizer.estimate(model, 1).steps == 1


def test_routing_errors():
    x, y = data(steps=1)
    for arguments, message in (
        ({"max_variables": 1}, "No binary layer is left"),
        ({"real_layers": ["third"]}, "do not exist: .'third'."),
    ):
        model, optimizer = make(None, **arguments)
        model.compile(optimizer, "mse")
        with pytest.raises(ValueError, match=message):
            model.train_on_batch(x, y)
    with pytest.raises(ValueError, match="`real_layers` must be a list"):
        kq.QPSBGD(real_layers="first")
    with pytest.raises(ValueError, match="`max_variables` must be"):
        kq.QPSBGD(max_variables=0)
