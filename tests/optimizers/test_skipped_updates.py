"""Tests of updates that are skipped in steps compiled with XLA."""

import numpy as np
import pytest
import tensorflow as tf
import tools

from keras_qpsbgd import ops

BATCH = slice(0, tools.BATCH)


def state(model):
    """Returns all variables except the number of skipped updates."""
    optimizer = model.optimizer
    return [
        tf.convert_to_tensor(variable).numpy()
        for variable in [*model.weights, *optimizer.variables]
        if variable is not optimizer._skipped
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


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("preset", ["fast", "balanced", "accurate"])
def test_searches_end_if_the_problem_is_not_finite(preset):
    backend = {"name": "native", "preset": preset, "search": "sequential"}
    states = train(backend, 20, jit_compile=True)
    tools.assert_equal(states[1], states[2])


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
