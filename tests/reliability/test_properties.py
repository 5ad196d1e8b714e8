"""A step of all small networks, data, precisions, options and backends.

Hypothesis draws the examples. The suite tries a few, the same ones each time.
For a release, try 2,000 new examples (40 minutes on one core):

    python -m pytest tests/reliability -k properties --examples 2000
"""

import gc
import math
import warnings

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
import tools
from hypothesis import strategies as st
from tensorflow import keras

import keras_qpsbgd as kq

RATE = 0.05
FEW = 6  # examples


@pytest.fixture
def wanted(request):
    """The number of examples of a release, or `None`."""
    return request.config.getoption("--examples")


# Networks

ACTIVATIONS = [None, "tanh", "hard_tanh", "relu", "sigmoid"]
LOSSES = {
    "mse": keras.losses.MeanSquaredError(),
    "mae": keras.losses.MeanAbsoluteError(),
    "hinge": keras.losses.SquaredHinge(),
    "cross-entropy": keras.losses.CategoricalCrossentropy(from_logits=True),
}
# Few shapes, because a search in the graph is compiled for each list of shapes.
WIDTHS = st.sampled_from([(1, 1), (5, 3), (4, 1, 3), (3, 4, 2, 1)])
ANY_WIDTHS = st.lists(st.integers(1, 6), min_size=2, max_size=4)


@st.composite
def networks(draw, backends, dtypes):
    """Draws a backend, a dense network, its data and its loss."""
    backend = draw(st.sampled_from(backends))
    name = backend["name"] if isinstance(backend, dict) else backend
    widths = draw(WIDTHS if name in ("native", "exact") else ANY_WIDTHS)
    return {
        "backend": backend,
        "widths": widths,
        "activations": draw(
            st.lists(
                st.sampled_from(ACTIVATIONS),
                min_size=len(widths) - 1,
                max_size=len(widths) - 1,
            )
        ),
        "use_bias": draw(st.booleans()),
        "output_scale": draw(st.sampled_from(["fan_in", None])),
        "dtype": draw(st.sampled_from(dtypes)),
        "loss": draw(st.sampled_from(list(LOSSES))),
        "batch": draw(st.integers(1, 7)),
        "rows": draw(st.sampled_from(["normal", "signs", "sparse", "equal"])),
        "seed": draw(st.integers(0, 10**6)),
    }


def build(network):
    keras.utils.set_random_seed(network["seed"])
    layers = [keras.layers.InputLayer((network["widths"][0],))]
    for units, activation in zip(network["widths"][1:], network["activations"]):
        layers.append(
            kq.layers.BinaryDense(
                units,
                activation=activation,
                use_bias=network["use_bias"],
                bias_initializer="random_normal",
                output_scale=network["output_scale"],
                dtype=network["dtype"],
            )
        )
    return keras.Sequential(layers)


def data_of(network):
    rng = np.random.default_rng(network["seed"])
    shape = (network["batch"], network["widths"][0])
    x = rng.normal(size=shape)
    if network["rows"] == "signs":
        x = np.sign(x)
    elif network["rows"] == "sparse":
        x *= rng.random(shape) < 0.3
    elif network["rows"] == "equal":
        x[:] = x[0]
    y = rng.random((network["batch"], network["widths"][-1]))
    return x.astype("float32"), y.astype("float32")


# One step


def passes(model, network, x, y):
    """Returns rows and row gradients of all layers, by plain operations."""
    products = []
    with tf.GradientTape(persistent=True) as tape:
        value, rows = tf.constant(x, network["dtype"]), []
        for layer, activation in zip(model.layers, network["activations"]):
            rows.append(value)
            product = value @ layer.binary_kernel
            tape.watch(product)
            products.append(product)
            if layer.output_scale == "fan_in":
                product = product / math.sqrt(layer.kernel.shape[0])
            if layer.use_bias:
                product = product + layer.bias
            # At a kink, rounding determines the derivative.
            kink = {"hard_tanh": 1.0, "relu": 0.0}.get(activation, np.inf)
            near = np.abs(np.abs(product.numpy()) - kink).min()
            hypothesis.assume(near > 1e-4)
            value = keras.activations.get(activation)(product)
        loss = LOSSES[network["loss"]](y, value)
    gradients = tape.gradient(
        loss, products, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return [
        (np.array(row, np.float64), np.array(gradient, np.float64))
        for row, gradient in zip(rows, gradients)
    ]


# The QUBOs of `QPSBGD`, from their definition and in NumPy. The rows and the
# gradient of the loss come from plain TensorFlow operations, without the
# statistics of the package.

RULES = ["averaged", "paper"]


def first_problem(rule, rows, v, kappa):
    """Returns the couplings and fields of the first update of a layer.

    Args:
        rule: Argument of `QPSBGD`.
        rows: Array of shape `(B, n)`.
        v: Array of shape `(B, m)`. The gradient of the loss.
        kappa: Float.
    """
    rows, v = np.asarray(rows, np.float64), np.asarray(v, np.float64)
    if rule == "paper":
        rows = rows[(v != 0).any(axis=1)]
        v = v[(v != 0).any(axis=1)]
        squares = (rows**2).sum(axis=1, keepdims=True)
        z = np.divide(rows, squares, out=np.zeros_like(rows), where=squares > 0)
        return z.T @ z, -2 * z.T @ v
    gradient, moments = rows.T @ v, rows.T @ rows
    couplings = moments / max(np.trace(moments), 1e-300)
    others = couplings - np.diag(np.diag(couplings))
    # The mean square of the force on a variable of a random state.
    force = np.sqrt((others**2).sum() / len(couplings)) or 1.0
    size = np.sqrt((gradient**2).mean()) or 1.0
    return couplings, -2 * kappa * force * gradient / size


def energies_of(couplings, fields, states):
    """Returns the energies of states (n, k) in one column, less a constant."""
    others = couplings - np.diag(np.diag(couplings))
    return np.einsum("nk,nk->k", states, others @ states) + fields @ states


def lowest_energy(couplings, fields):
    """Returns the lowest energy of one column, by enumeration."""
    states = tools.all_states(len(couplings))
    return energies_of(couplings, fields, states).min()


def check_layer(before, after, couplings, fields):
    """Checks that the kernel moved along the optimum of every column."""
    found = (before - after) / RATE
    np.testing.assert_allclose(found, np.round(found), atol=1e-3)
    found = np.round(found)
    sizes = np.abs(fields)
    others = np.abs(couplings).sum(axis=1) - np.abs(np.diag(couplings))
    is_coupled = others > 0
    for column in range(fields.shape[1]):
        states = found[:, column]
        # Columns whose fields are zero or rounding errors are held.
        if not sizes[:, column].max() > 1e-4 * sizes.max():
            continue
        # An entry is held if both signs have the same energy.
        assert (states[sizes[:, column] > 1e-4 * sizes.max()] != 0).all()
        assert (states[is_coupled] != 0).all()
        assert (states[~is_coupled & (sizes[:, column] == 0)] == 0).all()
        states = np.where(states == 0, 1.0, states)[:, None]
        energy = energies_of(couplings, fields[:, column], states)
        best = lowest_energy(couplings, fields[:, column])
        unit = np.abs(couplings).sum() + sizes[:, column].sum()
        assert energy <= best + 1e-4 * unit
    if not fields.any():
        assert not found.any()


def check_step(network, rule, kappa, eager):
    x, y = data_of(network)
    model = build(network)
    expected = passes(model, network, x, y)
    for rows, v in expected:
        # Rounding errors dominate very small gradients.
        gradient = np.abs(rows.T @ v)
        terms = np.abs(rows).T @ np.abs(v)
        hypothesis.assume(gradient.max() > 1e-3 * terms.max() > 1e-8)
    for _, v in expected:
        # Rows without a gradient are left out, so it matters whether a hidden
        # gradient is zero or 1e-10, which also depends on rounding.
        sizes = np.abs(v).max(axis=1)
        hypothesis.assume((sizes > 1e-5 * sizes.max()).all())
    on_host = network["backend"] == "host"
    opt = kq.QPSBGD(
        RATE,
        tools.GapBackend() if on_host else network["backend"],
        kappa=kappa,
        real_optimizer="sgd",
        seed=1,
        rule=rule,
    )
    model.compile(opt, LOSSES[network["loss"]], run_eagerly=eager)
    opt.build(model.trainable_variables)
    before = [layer.kernel.numpy().astype(np.float64) for layer in model.layers]
    model.train_on_batch(x, y)
    for layer, old, (rows, v) in zip(model.layers, before, expected):
        new = layer.kernel.numpy().astype(np.float64)
        problem = first_problem(rule, rows, v, kappa)
        check_layer(old, new, *problem)


def test_a_step_moves_along_the_optimum(wanted):
    """The update equals that of a NumPy oracle that enumerates all states."""
    count = 0
    # A graph takes fifty times as long, nearly all of it for tracing.
    eagerly = st.just(True)
    if wanted:
        eagerly = st.integers(0, 19).map(lambda number: number != 0)

    @hypothesis.settings(
        max_examples=wanted or FEW,
        deadline=None,
        database=None,
        derandomize=not wanted,
        # Failing examples are small enough, and shrinking is slow.
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(
        networks(["native", "exact", "host"], ["float32", "float64"]),
        st.sampled_from(RULES),
        st.floats(0.1, 8.0),
        eagerly,
    )
    def run(network, rule, kappa, eager):
        nonlocal count
        count += 1
        if count % 50 == 0:  # free the networks of the examples
            keras.backend.clear_session()
            gc.collect()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check_step(network, rule, kappa, eager)

    run()
