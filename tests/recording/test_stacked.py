"""Tests of problems that are built for several layers together."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import ops
from keras_qpsbgd import products
from keras_qpsbgd import recording
from keras_qpsbgd.layers import patches
from keras_qpsbgd.recording import stacked

pytestmark = pytest.mark.once


class Mark:
    def __init__(self, n, m):
        self.num_variables, self.num_columns = n, m


def layer(n, m, rows=9, seed=0):
    """Returns a call with an inactive input, a zero column and a zero row."""
    rng = np.random.default_rng(seed)
    x = (rng.random((rows, n)) < 0.4) * rng.normal(size=(rows, n))
    v = rng.normal(size=(rows, m))
    x[:, -1], v[:, -1], v[2] = 0.0, 0.0, 0.0
    x, v = tf.constant(x, tf.float32), tf.constant(v, tf.float32)
    return [ops.LayerCall(x, v, None, tf.constant(rows))], Mark(n, m)


def rows_of(kind, rng):
    if kind == "alone":  # each input in its own rows
        return np.kron(np.eye(5), [[1.0], [-2.0]])
    if kind == "orthogonal":  # the couplings cancel
        return np.array([[1, 1, 0, 2], [1, -1, 0, 0], [0, 0, 3, 0]], float)
    if kind == "signs":
        return rng.choice([-1.0, 1.0], (6, 7))
    return (rng.random((6, 7)) < 0.25) * rng.normal(size=(6, 7))


@pytest.mark.parametrize("kind", ["alone", "orthogonal", "signs", "sparse"])
def test_information_without_couplings(kind):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rows_of(kind, rng)
        v = rng.integers(-1, 2, (len(x), 4)).astype(float)
        call = ops.normalize(x, v, batch=len(x))
        z, v = call.normalized_rows, call.row_gradients
        expected = ops.has_information(ops.gram_problem(z, v))
        for coupled in (
            ops.has_couplings(z),
            ops.has_couplings(tf.constant(x, tf.float32), call.weights),
        ):
            found = ops.has_information(ops.rows_problem(z, v), coupled)
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("couplings", [True, False])
def test_stack_equals_single_layers(couplings, monkeypatch):
    shapes = [(20, 6), (24, 1), (3, 4), (recording.WIDE + 4, 2), (1, 2)]
    layers = [layer(*shape, seed=i) for i, shape in enumerate(shapes)]
    layers.append(layer(20, 6, rows=7))
    expected = recording.gather_all(layers, couplings)
    monkeypatch.setattr(products, "on_gpu", lambda: True)
    monkeypatch.setattr(products, "rounds_factors", lambda: False)
    groups = sorted(map(sorted, stacked.groups(layers)))
    assert groups == [[0, 1, 2, 3, 4], [5]]
    found = recording.gather_all(layers, couplings)
    for (problem, statistics), (single, figures) in zip(found, expected):
        for name in ("couplings", "fields", "offset", "normalized_rows"):
            a, b = getattr(problem, name), getattr(single, name)
            if b is None:
                assert a is None
            else:
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(
            ops.has_information(problem), ops.has_information(single)
        )
        np.testing.assert_allclose(statistics, figures, rtol=1e-5)


def test_large_layers_of_different_shapes_are_not_stacked():
    calls = [ops.LayerCall(tf.ones((4, 1)), None, None, 4)]
    layers = [(calls, Mark(4096, 16)), (calls, Mark(16, 4096))]
    assert stacked.groups(layers) == [[0], [1]]


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize(
    ("kernel", "strides", "dilations"),
    [
        ((3, 2), (1, 1), (1, 1)),
        ((2, 3), (2, 3), (1, 1)),
        ((3, 3), (1, 1), (2, 1)),
    ],
)
def test_patches_by_slices(kernel, strides, dilations, padding, monkeypatch):
    images = tf.reshape(tf.range(2.0 * 9 * 8 * 3), (2, 9, 8, 3))
    arguments = images, kernel, strides, dilations, padding
    expected = patches.extract(*arguments)
    monkeypatch.setattr(products, "on_gpu", lambda: True)
    np.testing.assert_array_equal(patches.extract(*arguments), expected)


# Whole steps


def kernels_of(hlo):
    """Counts the operations of a compiled program outside of fusions."""
    bodies = set(re.findall(r" fusion\(.*calls=%?([\w.\-]+)", hlo))
    count, inside = 0, False
    for line in hlo.splitlines():
        if line and not line.startswith(" "):
            name = re.match(r"(?:ENTRY )?%?([\w.\-]+)", line)
            inside = name is not None and name.group(1) not in bodies
        elif inside and re.search(r" (fusion|dot|copy|conditional)\(", line):
            count += 1
    return count


def step_hlo(layers):
    sizes = (20, *[16] * layers, 1)
    model = keras.Sequential(
        [keras.layers.InputLayer((sizes[0],))]
        + [kq.layers.BinaryDense(size, "hard_tanh") for size in sizes[1:]]
    )
    model.compile(
        kq.QPSBGD(backend="sign", seed=0, real_optimizer="sgd"),
        "mse",
        jit_compile=True,
    )
    model.optimizer.build(model.trainable_variables)
    step = tf.function(
        lambda x, y: model.train_step((x, y)), jit_compile=True, autograph=False
    )
    data = tf.ones((8, sizes[0])), tf.ones((8, 1))
    return step.experimental_get_compiler_ir(*data)(stage="optimized_hlo")


def test_kernels_of_a_step_without_a_search(monkeypatch):
    monkeypatch.setattr(products, "on_gpu", lambda: True)
    counts = []
    for layers in (1, 3):
        hlo = step_hlo(layers)
        assert " conditional(" not in hlo
        counts.append(kernels_of(hlo))
    # Forward and backward pass, and the updates of kernel and bias.
    assert counts[1] - counts[0] <= 2 * 17, counts


@pytest.mark.parametrize(
    "backend", ["sign", pytest.param("native", marks=pytest.mark.slow)]
)
def test_compiled_step_equals_plain_step(backend, monkeypatch):
    x, y = tools.data()
    found = []
    for mode in ({"run_eagerly": True}, {"jit_compile": True}):
        opt = tools.optimizer(backend=backend)
        model = tools.small_model()
        found.append(tools.fit(model, opt, x, y, **mode))
        monkeypatch.setattr(products, "on_gpu", lambda: True)
    tools.assert_equal(*found)
