"""Training on replicas gives bitwise the same kernels as on one device."""

import numpy as np
import pytest
import tensorflow as tf
import tools

from keras_qpsbgd import recording


@pytest.mark.parametrize(
    "where", [pytest.param("graph", marks=pytest.mark.once), "host"]
)
def test_two_replicas(reference, mirrored, where):
    x, y, expected = reference.x, reference.y, reference.expected
    on_host = reference.on_host()
    solver = on_host if where == "host" else reference.backend
    with mirrored.scope():
        model, opt = reference.model(), reference.optimizer(backend=solver)
        model.compile(opt, tools.loss())
    model.fit(x, y, batch_size=tools.BATCH, shuffle=False, verbose=0)
    tools.assert_equal(tools.kernels(model), expected)
    for layer in model.layers[-2:]:
        kernel = tools.tf_variable(layer.kernel)
        copies = mirrored.experimental_local_results(kernel)
        assert len(copies) == 2
        np.testing.assert_array_equal(copies[0].numpy(), copies[1].numpy())
    if where == "host":  # solved once, not once per replica
        assert on_host.solved == 2 * tools.STEPS


@pytest.mark.parametrize(
    ("reference", "make"),
    [
        ("narrow", lambda: tf.distribute.MirroredStrategy(["cpu:0"])),
        ("wide", lambda: tf.distribute.OneDeviceStrategy("cpu:0")),
    ],
    indirect=["reference"],
    ids=["mirrored", "one device"],
)
def test_one_replica(reference, make):
    """A machine with at most one GPU has one replica."""
    strategy = make()
    for arguments in ({}, {"run_eagerly": True}):
        with strategy.scope():
            model, opt = reference.model(), reference.optimizer()
            model.compile(opt, tools.loss(), **arguments)
        model.fit(
            reference.x,
            reference.y,
            batch_size=tools.BATCH,
            shuffle=False,
            verbose=0,
        )
        tools.assert_equal(tools.kernels(model), reference.expected)


ANNEALING = {"name": "simulated_annealing", "num_reads": 1, "num_sweeps": 10}


@pytest.mark.once
@pytest.mark.parametrize(
    "backend",
    [pytest.param("native", marks=pytest.mark.slow), "ridge", ANNEALING],
    ids=["native", "ridge", "host"],
)
def test_wide_layers_on_two_replicas(mirrored, backend):
    """Every backend can solve the problem of the gathered rows."""
    seed, inputs = 92, 300
    assert inputs > recording.WIDE
    x, y = tools.data(seed, inputs)
    found = []
    for strategy in (tf.distribute.get_strategy(), mirrored):
        with strategy.scope():
            model = tools.small_model(seed, inputs)
            model.compile(tools.optimizer(backend=backend), tools.loss())
        model.fit(x[:6], y[:6], batch_size=6, shuffle=False, verbose=0)
        found.append(tools.kernels(model))
    tools.assert_equal(*found)
