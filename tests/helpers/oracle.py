"""One step of QP-SBGD, computed without the recording of the package.

Rows and row gradients come from plain TensorFlow operations. NumPy builds one
QUBO per column and enumerates all states. In the data the best and second-best
energies differ by more than 1e-3.
"""

import numpy as np
import pytest
import tensorflow as tf
import tools

import keras_qpsbgd as kq

RATE = 0.05
MODES = pytest.mark.parametrize("mode", ["eager", "graph"])


def as_function(step, mode):
    return step if mode == "eager" else tf.function(step)


def binary_layers(model):
    return [m for m in model.layers if isinstance(m, kq.layers.BinaryLayer)]


def passes(model, x, y, weight=1.0):
    """Returns rows and row gradients of the two layers, without recording."""
    first, second = binary_layers(model)
    with tf.GradientTape() as tape:
        r1 = x @ first.binary_kernel
        tape.watch(r1)
        hidden = tf.tanh(r1 / np.sqrt(first.kernel.shape[0]) + first.bias)
        r2 = hidden @ second.binary_kernel
        tape.watch(r2)
        logits = r2 / np.sqrt(second.kernel.shape[0]) + second.bias
        value = weight * tools.loss()(y, logits)
    v1, v2 = tape.gradient(value, [r1, r2])
    return [(np.array(x), np.array(v1)), (np.array(hidden), np.array(v2))]


def oracle(kernel, layer_passes, kappa=4.0):
    """Returns the kernel after one step and the smallest gap to second best."""
    rows = np.concatenate([x for x, _ in layer_passes]).astype(np.float64)
    v = np.concatenate([v for _, v in layer_passes]).astype(np.float64)
    kept = (v != 0).any(axis=1)
    z, v = rows[kept], v[kept]
    z = z / (z**2).sum(axis=1, keepdims=True)
    v = v * kappa / np.abs(v).max()
    candidates = tools.all_states(z.shape[1])
    states, gap = np.zeros(kernel.shape), np.inf
    for column in range(v.shape[1]):
        if np.abs(v[:, column]).max() < 1e-5 * kappa:
            continue  # rounding noise of a unit with equal outgoing weights
        energies = ((v[:, [column]] - z @ candidates) ** 2).sum(axis=0)
        best, second = np.sort(energies)[:2]
        random = (v[:, column] ** 2).sum() + (z**2).sum()
        gap = min(gap, (second - best) / random)
        states[:, column] = candidates[:, energies.argmin()]
    return kernel - np.float32(RATE) * states.astype(np.float32), gap


def expected_kernels(model, *all_passes):
    """Returns the kernels after one step with these passes, and the gap."""
    kernels, gaps = zip(
        *(
            oracle(layer.kernel.numpy(), [one[i] for one in all_passes])
            for i, layer in enumerate(binary_layers(model))
        )
    )
    return (kernels, min(gaps))


def batch(seed, size=6):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, tools.INPUTS)).astype("float32")
    return tf.constant(x), tf.constant(rng.integers(3, size=(size,)))


def clear_batches(model, count, *weights):
    """Finds batches whose weighted sum of passes has a clear-cut solution."""
    for seed in range(100):
        batches = [batch(10 * seed + i) for i in range(count)]
        found = [passes(model, *one) for one in batches]
        scaled = [
            [(x, v * w) for x, v in one]
            for one, w in zip(found, weights or [1.0] * count)
        ]
        expected, gap = expected_kernels(model, *scaled)
        if gap > 1e-3:
            return batches, expected
    raise AssertionError("no clear-cut data")


def assert_step(model, expected, before=None):
    found = tools.kernels(model)
    for kernel, wanted in zip(found, expected):
        np.testing.assert_array_equal(kernel, wanted)
    if before is not None:
        for kernel, old in zip(found, before):
            assert np.abs(kernel - old).min() > 0.9 * RATE


def gradients(model, x, y, variables=None):
    with tf.GradientTape() as tape:
        value = tools.loss()(y, model(x, training=True))
    return tape.gradient(value, variables or model.trainable_variables)


def apply(opt, grads, model):
    opt.apply_gradients(zip(grads, model.trainable_variables))
