"""Small problems and models that the tests share."""

import itertools

import numpy as np
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.layers import statistics

INPUTS = 5
BATCH = 6
STEPS = 4
# Seeds of data and initial weights for each rule. With these seeds no column of
# any step is nearly a tie. `clear_cut_fit` checks this.
CLEAR_CUT = {"averaged": 6, "paper": 6}


def rows_and_gradients(seed=0, batch=12, n=6, m=3, kind="normal"):
    """Draws random rows (B, n) and gradients (B, m)."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(batch, n))
    if kind == "pm1":
        rows = np.sign(rows)
    if kind == "sparse":
        rows = (rng.random((batch, n)) < 0.2).astype(float)
    return rows, rng.normal(size=(batch, m))


def all_states(n):
    return np.array(list(itertools.product((1.0, -1.0), repeat=n))).T


class GapBackend(kq.backends.Backend):
    """Enumerates on the host and stores the smallest gap to the second best.

    The gap is relative to the sum of the absolute couplings and fields.
    """

    name = "gap"

    def __init__(self):
        self.least = np.inf
        self.solved = 0

    def sample(self, qubo, seed):
        states = all_states(qubo.num_variables)
        couplings = np.array(qubo.couplings, dtype=np.float64)
        np.fill_diagonal(couplings, 0.0)
        # Variables for which both signs have the same energy do not move.
        idle = ~(couplings.any(axis=1) | qubo.fields.any(axis=1))
        states = states[:, (states[idle] == 1).all(axis=0)]
        quadratic = np.einsum("nk,nk->k", states, couplings @ states)
        energies = quadratic[:, None] + states.T @ np.float64(qubo.fields)
        best, second = np.sort(energies, axis=0)[:2]
        sizes = np.abs(qubo.fields)
        # A gradient that is zero or a rounding error counts as a tie.
        idle = sizes.max(axis=0) <= 1e-4 * sizes.max()
        gaps = (second - best) / (np.abs(couplings).sum() + sizes.sum(axis=0))
        self.least = min(self.least, np.where(idle, 0.0, gaps).min())
        self.solved += 1
        return states[:, energies.argmin(axis=0)][None], {}


class SignBackend(GapBackend):
    """Uses only the linear part and stores how close its fields are to zero."""

    name = "sign_gap"

    def sample(self, qubo, seed):
        sizes = np.abs(qubo.fields)
        largest = sizes.max(axis=0)
        # A gradient that is zero or a rounding error counts as a tie.
        idle = largest <= 1e-4 * sizes.max()
        shares = sizes.min(axis=0) / np.where(idle, 1.0, largest)
        self.least = min(self.least, np.where(idle, 0.0, shares).min())
        self.solved += 1
        return np.where(qubo.fields > 0, -1, 1)[None], {}


def data(seed=CLEAR_CUT["averaged"], inputs=INPUTS):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(BATCH * STEPS, inputs)).astype("float32")
    y = rng.integers(3, size=(BATCH * STEPS,)).astype("int32")
    return x, y


def small_model(seed=CLEAR_CUT["averaged"], inputs=INPUTS, **layer_arguments):
    """Creates a 5-3-3 network by default, with fixed initial weights."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.InputLayer((inputs,)),
            kq.layers.BinaryDense(3, activation="tanh", **layer_arguments),
            kq.layers.BinaryDense(3, **layer_arguments),
        ]
    )


def loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def optimizer(**arguments):
    arguments = {"real_optimizer": "sgd", "seed": 1, **arguments}
    return kq.QPSBGD(0.05, **arguments)


def fit(model, opt, x, y, batch_size=BATCH, epochs=1, **compile_arguments):
    """Trains on all batches in their order. Returns the kernels."""
    model.compile(opt, loss(), **compile_arguments)
    if model.built:  # otherwise, a first eager step has no couplings
        inner = getattr(opt, "inner_optimizer", opt)
        inner.build(model.trainable_variables)
    if compile_arguments.get("run_eagerly"):
        # A pipeline of `tf.data` takes longer to start and to free than these
        # steps.
        for start in [*range(0, len(x), batch_size)] * epochs:
            rows = slice(start, start + batch_size)
            model.train_on_batch(x[rows], y[rows])
    else:
        model.fit(
            x, y, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0
        )
    return kernels(model)


def kernels(model):
    return [
        layer.kernel.numpy()
        for layer in model.layers
        if isinstance(layer, kq.layers.BinaryLayer)
    ]


def assert_equal(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right):
        np.testing.assert_array_equal(a, b)


def clear_cut_fit(seed, **arguments):
    """Returns the kernels after an eager `fit` without near ties.

    If one tie is decided differently, an entry differs by twice the learning
    rate, so exact comparisons need such data.
    """
    backend = GapBackend()
    opt = optimizer(backend=backend, **arguments)
    model = small_model(seed)
    opt.build(model.trainable_variables)  # the rule of the paper needs it
    found = fit(model, opt, *data(seed), run_eagerly=True)
    assert backend.least > 1e-3, backend.least
    assert backend.solved == 2 * STEPS
    return found


class KeptRows(statistics.Observer):
    """Observes the rows of a binary kernel and keeps them."""

    def __init__(self):
        self.rows = []

    def add(self, rows):
        self.rows.append(rows.numpy())


def loss_scaled(opt, **arguments):
    """Wraps an optimizer in the `LossScaleOptimizer` of either Keras."""
    if hasattr(keras.optimizers, "LossScaleOptimizer"):
        return keras.optimizers.LossScaleOptimizer(opt, **arguments)
    return keras.mixed_precision.LossScaleOptimizer(opt, **arguments)


def count_ends(monkeypatch):
    """Returns a list that gets an entry for each end of a progress bar."""
    ends = []

    class Bar(keras.utils.Progbar):
        def update(self, current, values=None, finalize=None):
            if finalize or current >= self.target:
                ends.append(f"{current} of {self.target}")
            super().update(current, values, finalize)

    monkeypatch.setattr(keras.utils, "Progbar", Bar)
    return ends


def tf_variable(variable):
    """Returns the `tf.Variable` of a Keras variable."""
    value = getattr(variable, "value", variable)
    return variable if callable(value) else value


def gradients(model, x, y, training=True):
    with tf.GradientTape() as tape:
        value = loss()(y, model(x, training=training))
    return tape.gradient(value, model.trainable_variables)
