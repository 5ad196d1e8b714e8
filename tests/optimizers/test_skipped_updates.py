"""Tests of updates that are skipped because a number is not finite."""

import numpy as np
import pytest
import tensorflow as tf
import tools

from keras_qpsbgd import _keras
from keras_qpsbgd.qubo import ops

BATCH = slice(0, tools.BATCH)


def state(model):
    """Returns all variables except the number of skipped updates."""
    optimizer = model.optimizer
    return [
        tf.convert_to_tensor(variable).numpy()
        for variable in [*model.weights, *optimizer.variables]
        if variable is not optimizer._skipping.variable
    ]


def train(backend, inputs, jit_compile):
    """Takes a step, a step with a NaN, and another step."""
    x, y = tools.data(inputs=inputs)
    bad = x[BATCH].copy()
    bad[1, 2] = np.nan
    model = tools.small_model(inputs=inputs)
    opt = tools.optimizer(
        backend=backend, real_optimizer="adam", use_ema=True, ema_momentum=0.9
    )
    model.compile(opt, tools.loss(), jit_compile=jit_compile)
    opt.build(model.trainable_variables)
    states = [state(model)]
    for rows in (x[BATCH], bad, x[BATCH]):
        model.train_on_batch(rows, y[BATCH])
        states.append(state(model))
    assert opt.skipped_updates == 1
    return states


@pytest.mark.slow
def test_compiled_step_changes_nothing():
    states = train("sign", tools.INPUTS, jit_compile=True)
    tools.assert_equal(states[1], states[2])
    for before, after in (states[:2], states[2:]):
        # The kernel, a bias and their averages, among others.
        changed = [not np.array_equal(a, b) for a, b in zip(before, after)]
        assert np.sum(changed) > 10
    plain = train("sign", tools.INPUTS, jit_compile=False)
    for found, expected in zip(states[1:], plain[1:]):
        for a, b in zip(found, expected):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.once
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_finite_check(bad):
    large = np.ones(2 * ops.SMALL_CHECK, np.float32)
    small = np.ones((2, 3), np.float16)
    assert ops.is_finite([large, small, 1.0])
    assert ops.is_finite([])
    assert not ops.is_finite([large, small, bad])
    for array in (large, small):
        array.flat[-1] = bad
        assert not ops.is_finite([tf.constant(array), 1.0])
        array.flat[-1] = 1.0


# Steps that are not compiled


@pytest.mark.parametrize("mode", [{"run_eagerly": True}, {}], ids=str)
def test_non_finite_batch_is_skipped(mode):
    x, y = tools.data()
    x = x.copy()
    x[tools.BATCH + 1, 2] = np.nan  # in the second batch
    model = tools.small_model()
    opt = tools.optimizer(real_optimizer="adam")
    model.compile(opt, tools.loss(), **mode)
    model.train_on_batch(x[: tools.BATCH], y[: tools.BATCH])
    weights = model.get_weights()
    state = [np.array(v) for v in opt.real_optimizer.variables]
    with pytest.warns(UserWarning, match="1 update.*skipped.*not finite"):
        model.fit(
            x[tools.BATCH : 2 * tools.BATCH],
            y[tools.BATCH : 2 * tools.BATCH],
            verbose=0,
        )
    tools.assert_equal(model.get_weights(), weights)
    tools.assert_equal(
        [np.array(v) for v in opt.real_optimizer.variables], state
    )
    assert opt.skipped_updates == 1
    rest = slice(2 * tools.BATCH, None)
    model.fit(x[rest], y[rest], batch_size=tools.BATCH, verbose=0)
    assert not np.array_equal(tools.kernels(model)[0], weights[0])
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert opt.skipped_updates == 1


@pytest.mark.slow
def test_non_finite_batch_on_two_replicas(mirrored):
    x, y = tools.data()
    x = x.copy()
    x[1, 2] = np.nan  # on the first replica only
    with mirrored.scope():
        model = tools.small_model()
        model.compile(tools.optimizer(), tools.loss())
    weights = model.get_weights()
    with pytest.warns(UserWarning, match="skipped"):
        model.fit(
            x[: tools.BATCH],
            y[: tools.BATCH],
            batch_size=tools.BATCH,
            verbose=0,
        )
    tools.assert_equal(model.get_weights(), weights)


@pytest.mark.skipif(
    not _keras.KERAS_3, reason="legacy Keras does not accumulate"
)
@pytest.mark.parametrize(
    "eager", [True, pytest.param(False, marks=pytest.mark.exhaustive)]
)
def test_non_finite_micro_batch_is_not_counted(eager):
    x, y = tools.data()
    bad = x[:3].copy()
    bad[:, 0] = np.nan
    model, clean = tools.small_model(), tools.small_model()
    for net in (model, clean):
        opt = tools.optimizer(gradient_accumulation_steps=2)
        net.compile(opt, tools.loss(), run_eagerly=eager)
    before = clean.get_weights()
    for net in (model, clean):
        net.train_on_batch(x[3:6], y[3:6])
    model.train_on_batch(bad, y[:3])
    for net in (model, clean):
        tools.assert_equal(net.get_weights(), before)
        net.train_on_batch(x[:3], y[:3])
        assert not np.array_equal(net.get_weights()[0], before[0])
    tools.assert_equal(model.get_weights(), clean.get_weights())
    assert model.optimizer.skipped_updates == 1


class Couplings(tools.GapBackend):
    """Keeps the couplings that it receives."""

    def __init__(self):
        super().__init__()
        self.received = []

    def sample(self, qubo, seed):
        self.received.append(qubo.couplings.copy())
        return super().sample(qubo, seed)


@pytest.mark.parametrize(
    "mode",
    [
        "eager",
        pytest.param("graph", marks=pytest.mark.slow),
        pytest.param("jit", marks=[pytest.mark.once, pytest.mark.exhaustive]),
    ],
)
def test_skipped_updates_leave_no_rows_behind(mode):
    """The next update of the rule of the paper has only its own rows."""
    x, y = tools.data()
    arguments = {
        "run_eagerly": mode == "eager",
        "jit_compile": mode == "jit",
    }
    found = []
    for bad in (None, "input", "norm", "weight", "rate"):
        model = tools.small_model()
        backend = "exact" if mode == "jit" else Couplings()
        opt = tools.optimizer(rule="paper", backend=backend)
        opt.build(model.trainable_variables)
        model.compile(opt, tools.loss(), **arguments)
        if bad == "input":
            model.train_on_batch(np.full_like(x[:6], np.nan), y[:6])
        if bad == "norm":  # the norm of a row overflows
            model.train_on_batch(1e20 * x[6:12], y[6:12])
        if bad == "weight":  # the rows are finite
            weight = np.full(6, np.inf)
            model.train_on_batch(x[6:12], y[6:12], sample_weight=weight)
        if bad == "rate":  # the gradients are finite, too
            opt.learning_rate = np.nan
            model.train_on_batch(x[6:12], y[6:12])
            opt.learning_rate = 0.05
        assert opt.skipped_updates == (bad is not None)
        model.train_on_batch(x[:6], y[:6])
        couplings = [] if mode == "jit" else backend.received
        found.append([*couplings, *model.get_weights()])
    for other in found[1:]:
        tools.assert_equal(other, found[0])
