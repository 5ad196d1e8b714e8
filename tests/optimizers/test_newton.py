"""Tests the binary Newton rule, `update="newton"`."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras
from tools import all_states

import keras_qpsbgd as kq
from keras_qpsbgd.recording import newton

LOSSES = {
    "categorical_crossentropy": lambda: (
        keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    ),
    "binary_crossentropy": lambda: keras.losses.BinaryCrossentropy(
        from_logits=True
    ),
    "mean_squared_error": lambda: keras.losses.MeanSquaredError(),
}


def layer_model(kernel, scale=None, **arguments):
    kernel = np.asarray(kernel, "float32")
    layer = kq.layers.BinaryDense(
        kernel.shape[1], use_bias=False, output_scale=scale
    )
    model = keras.Sequential([keras.Input((kernel.shape[0],)), layer])
    layer.kernel.assign(kernel)
    optimizer = kq.QPSBGD(update="newton", **arguments)
    return model, optimizer


# One step by hand: X = diag(2, 1), w = (1, 1) and y = (-2, 1) give R = (2, 1).
# The mean of (R - y)^2 has the gradient V = (4, 0) and the second derivatives
# c = (1, 1), so g = X'V = (8, 0) and Q = diag(4, 1). With w1' = -1 the model
# is 8 * (-2) + damping / 2 * 4 * 4 = -16 + 8 * damping. w2' = -1 costs
# damping * 2.
X = np.array([[2.0, 0.0], [0.0, 1.0]], "float32")
Y = np.array([[-2.0], [1.0]], "float32")


@pytest.mark.parametrize(
    "damping, latent, expected",
    [
        (1.0, "none", [-1.0, 1.0]),
        (1.9, "none", [-1.0, 1.0]),
        (2.1, "none", [1.0, 1.0]),
        (1.0, "average", [0.75 * 0.5 - 0.25, 0.75 * 0.3 + 0.25]),
        (2.1, "average", [0.75 * 0.5 + 0.25, 0.75 * 0.3 + 0.25]),
    ],
)
@pytest.mark.parametrize("backend", ["native", "exact", "greedy_host"])
def test_step_by_hand(damping, latent, expected, backend):
    if backend == "greedy_host":
        backend = Enumerated()
    model, optimizer = layer_model(
        [[0.5], [0.3]],
        learning_rate=0.25,
        backend=backend,
        latent=latent,
        damping=damping,
        curvature="mean_squared_error",
    )
    model.compile(optimizer, "mse")
    model.train_on_batch(X, Y)
    kernel = model.layers[-1].get_weights()[0][:, 0]
    np.testing.assert_allclose(kernel, expected, atol=1e-6)


class Enumerated(kq.backends.Backend):
    """Enumerates all states on the host."""

    def sample(self, qubo, seed):
        states = all_states(qubo.num_variables)
        quadratic = np.einsum("is,ij,js->s", states, qubo.couplings, states)
        energies = quadratic[:, None] + states.T @ qubo.fields
        return states[:, energies.argmin(0)][None], {}


@pytest.mark.parametrize("kind", sorted(LOSSES))
@pytest.mark.parametrize("scale", ["fan_in", "channel", None])
def test_curvature_is_exact(kind, scale):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 4)).astype("float32")
    y = rng.integers(2, size=(7, 3)).astype("float32")
    if kind == "categorical_crossentropy":
        y = rng.integers(3, size=7)
    layer = kq.layers.BinaryDense(3, output_scale=scale)
    layer.build((7, 4))
    if scale == "channel":
        layer.scale.assign([0.3, 0.5, 0.9])
    factor = tf.convert_to_tensor(layer._output_factor())
    loss = LOSSES[kind]()
    weights = tf.convert_to_tensor(layer.binary_kernel)
    product = tf.constant(x @ weights.numpy())

    def of_product(product):
        return loss(y, product * factor + tf.cast(layer.bias, tf.float32))

    with tf.GradientTape(persistent=True) as outer:
        outer.watch(product)
        with tf.GradientTape() as inner:
            inner.watch(product)
            value = of_product(product)
        v = inner.gradient(value, product)
    hessian = outer.jacobian(v, product).numpy()
    exact = np.einsum("bjbj->bj", hessian)
    found = newton.Curvature(kind).weights(v, factor, tf.constant(7.0))
    np.testing.assert_allclose(found, exact, rtol=2e-4, atol=1e-7)


def model_energy(x, v, c, weights, damping, column):
    """Returns the energy of all states of one column."""
    shared = c.mean(axis=1)
    share = c[:, column].sum() / shared.sum()
    change = all_states(x.shape[1]).T - weights[:, column]
    slope = x.T @ v[:, column]
    curvature = x.T @ (shared[:, None] * x) * share
    quadratic = np.einsum("si,ij,sj->s", change, curvature, change)
    return change @ slope + damping / 2 * quadratic


@pytest.mark.parametrize("is_mean", [False, True])
@pytest.mark.parametrize("damping", [0.3, 2.0])
def test_solution_minimizes_the_model(damping, is_mean):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(9, 5)).astype("float32")
    y = rng.normal(size=(9, 3)).astype("float32")
    kernel = rng.normal(size=(5, 3))
    weights = np.where(kernel >= 0, 1.0, -1.0)
    model, optimizer = layer_model(
        kernel, latent="none", damping=damping, mean_curvature=is_mean
    )
    model.compile(optimizer, "mse")
    model.train_on_batch(x, y)
    v = 2 * (x @ weights - y) / y.size
    c = len(x) * v**2
    if is_mean:
        c = np.ones((9, 1)) * c.mean(axis=0)
    found = model.layers[-1].get_weights()[0]
    for column in range(3):
        energies = model_energy(x, v, c, weights, damping, column)
        best = all_states(5)[:, energies.argmin()]
        np.testing.assert_array_equal(found[:, column], best)


class Uphill(kq.backends.GraphBackend):
    """Returns states with a high energy."""

    can_ascend = False  # so that the states are not negated

    def search(self, problem, seed):
        return tf.where(problem.fields > 0, 1.0, -1.0)


def test_never_worse_than_the_current_weights():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(8, 4)).astype("float32")
    y = rng.normal(size=(8, 2)).astype("float32")
    kernel = rng.normal(size=(4, 2))
    weights = np.where(kernel >= 0, 1.0, -1.0)
    model, optimizer = layer_model(kernel, latent="none", backend=Uphill())
    model.compile(optimizer, "mse")
    model.train_on_batch(x, y)
    np.testing.assert_array_equal(model.layers[-1].get_weights()[0], weights)


def test_columns_without_gradient_stay():
    x = np.array([[1.0, 2.0], [0.5, -1.0]], "float32")
    kernel = np.array([[0.4, -0.2], [0.1, 0.7]])
    model, optimizer = layer_model(kernel, latent="none")
    model.compile(optimizer, "mse")
    y = x @ np.sign(kernel)
    y[:, 0] += 5.0  # only the first column has a gradient
    model.train_on_batch(x, y)
    found = model.layers[-1].get_weights()[0]
    np.testing.assert_allclose(found[:, 1], kernel[:, 1], rtol=1e-6)


def test_unused_inputs_stay():
    x = np.array([[1.0, 0.0], [0.5, 0.0]], "float32")
    model, optimizer = layer_model(
        [[0.4], [0.3]], latent="none", curvature="mean_squared_error"
    )
    model.compile(optimizer, "mse")
    model.train_on_batch(x, np.array([[-1.0], [-2.0]]))
    found = model.layers[-1].get_weights()[0][:, 0]
    np.testing.assert_allclose(found, [-1.0, 0.3], rtol=1e-6)


def test_arguments():
    with pytest.raises(ValueError, match="`update` must be one of"):
        kq.QPSBGD(update="flip")
    with pytest.raises(ValueError, match="`damping` must be a positive"):
        kq.QPSBGD(update="newton", damping=0)
    with pytest.raises(ValueError, match="`mean_curvature` must be a boolean"):
        kq.QPSBGD(update="newton", mean_curvature="yes")
    with pytest.raises(ValueError, match="`latent` must be one of"):
        kq.QPSBGD(update="newton", latent="ema")
    with pytest.raises(ValueError, match="`curvature` must be one of"):
        kq.QPSBGD(update="newton", curvature="hinge")
    with pytest.raises(ValueError, match='`damping` requires update="newton"'):
        kq.QPSBGD(damping=2.0)
    with pytest.raises(ValueError, match='requires update="gradient"'):
        kq.QPSBGD(update="newton", gradient_scale="raw")
    with pytest.raises(ValueError, match="`momentum` must be"):
        kq.QPSBGD(momentum=1.0)
    with pytest.raises(ValueError, match="`hold` must be"):
        kq.QPSBGD(hold=-0.1)


def network(**arguments):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            kq.layers.BinaryDense(3, activation="tanh", name="hidden"),
            kq.layers.BinaryDense(2, name="output"),
        ]
    )
    model.compile(kq.QPSBGD(update="newton", **arguments), "mse")
    return model


def test_exact_curvature_needs_the_name_of_the_layer():
    x, y = np.ones((3, 4)), np.ones((3, 2))
    with pytest.raises(ValueError, match='{"output": "mean_squared_error"}'):
        network(curvature="mean_squared_error").train_on_batch(x, y)
    with pytest.raises(ValueError, match="do not exist: .'none'."):
        network(curvature={"none": "fisher"}).train_on_batch(x, y)
    network(curvature={"output": "mean_squared_error"}).train_on_batch(x, y)


def test_several_bits_raise():
    model = keras.Sequential([kq.layers.BinaryDense(1, bits=2)])
    model.compile(kq.QPSBGD(update="newton"), "mse")
    with pytest.raises(ValueError, match="requires layers with `bits=1`"):
        model.train_on_batch(np.ones((2, 3)), np.ones((2, 1)))


def test_finds_the_best_layer_in_few_solves():
    # The best of all 2^8 layers is known by enumeration.
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 8)).astype("float32")
    y = (x @ rng.normal(size=(8, 1)) > 0).astype("float32")
    logits = x @ all_states(8) / np.sqrt(8)
    losses = np.logaddexp(0, logits) - y * logits
    best = all_states(8)[:, losses.mean(axis=0).argmin()]
    model, optimizer = layer_model(
        rng.normal(size=(8, 1)),
        scale="fan_in",
        latent="none",
        curvature="binary_crossentropy",
    )
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    for _ in range(3):
        model.train_on_batch(x, y)
    np.testing.assert_array_equal(model.layers[-1].get_weights()[0][:, 0], best)
