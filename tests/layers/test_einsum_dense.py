"""Tests `BinaryEinsumDense` against `BinaryDense` on reshaped inputs."""

import numpy as np
import pytest
import tools
from tensorflow import keras

import keras_qpsbgd as kq

# Equation, shape of the inputs and of the outputs, axes of inputs and outputs
# of the kernel.
CASES = {
    "abc,cd->abd": ((3, 4), (3, 6), 1, 1),
    "...c,cd->...d": ((3, 4), (3, 6), 1, 1),
    "abc,cde->abde": ((3, 4), (3, 2, 3), 1, 2),
    "abcd,cde->abe": ((3, 2, 2), (3, 6), 2, 1),
    "abcd,cdef->abef": ((3, 2, 2), (3, 3, 2), 2, 2),
}


def pair(equation, **arguments):
    """Returns a model with each of the two layers, with equal weights."""
    shape, output, _, free = CASES[equation]
    axes = equation[-free:]
    rng = np.random.default_rng(0)
    output = (None, *output[1:]) if "..." not in equation else output[-1]
    layer = kq.layers.BinaryEinsumDense(
        equation, output, bias_axes=axes, **arguments
    )
    ours = keras.Sequential([keras.layers.InputLayer(shape), layer])
    plain = kq.layers.BinaryDense(6, **arguments)
    theirs = keras.Sequential(
        [
            keras.layers.InputLayer(shape),
            keras.layers.Reshape((3, 4)),
            plain,
        ]
    )
    values = [rng.uniform(-1, 1, (4, 6)), rng.normal(size=6)]
    if arguments.get("output_scale") == "channel":
        assert layer.scale.shape == (6,)
        values.append(rng.uniform(0.2, 1, 6))
    theirs.set_weights(values)
    shapes = [weight.shape for weight in layer.get_weights()]
    ours.set_weights([np.reshape(v, s) for v, s in zip(values, shapes)])
    return ours, theirs


def weights(model):
    return [np.ravel(weight) for weight in model.get_weights()]


def data(equation):
    rng = np.random.default_rng(1)
    shape, output, _, _ = CASES[equation]
    return rng.normal(size=(8, *shape)), rng.normal(size=(8, *output))


@pytest.mark.parametrize("equation", CASES)
@pytest.mark.parametrize(
    "bits, scale",
    [pytest.param(1, "fan_in", marks=pytest.mark.exhaustive), (2, "channel")],
)
def test_a_step_equals_that_of_a_dense_layer(equation, bits, scale):
    ours, theirs = pair(equation, bits=bits, output_scale=scale)
    x, y = data(equation)
    found, expected = ours(x).numpy(), theirs(x).numpy()
    np.testing.assert_allclose(
        found.reshape(expected.shape), expected, atol=1e-5
    )
    before = weights(ours)[0]
    for model, target in ((ours, y), (theirs, y.reshape(8, 3, 6))):
        opt = kq.QPSBGD(0.05, "sign", real_optimizer="sgd", seed=1)
        model.compile(opt, "mse", run_eagerly=True)
        model.train_on_batch(x, target)
    mark = ours.layers[-1]._mark
    assert (mark.num_variables, mark.num_columns) == (4, 6)
    assert (weights(ours)[0] != before).all()
    for first, second in zip(weights(ours), weights(theirs)):
        np.testing.assert_allclose(first, second, atol=1e-5)


@pytest.mark.parametrize(
    "equation",
    (
        "abc,dc->abd",  # outputs first in the kernel
        "acb,cd->abd",  # summed axes inside the inputs
        "abc,cd->adb",  # outputs inside
        "abc,bcd->abd",  # one kernel for each b
        "abcd,dce->abe",  # another order
        "abc,cd->ab",
        "abc,c->ab",
        "ab,cd->abcd",
        "abc",
    ),
)
def test_other_equations_raise(equation):
    with pytest.raises(ValueError, match="`equation` must have .* Received"):
        kq.layers.BinaryEinsumDense(equation, (None, 2))


def test_save_and_load(tmp_path):
    model, _ = pair("abc,cde->abde", bits=3, output_scale="channel")
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    assert loaded.layers[-1].bits == 3
    tools.assert_equal(loaded.get_weights(), model.get_weights())
    assert kq.summary(loaded, None).layers[0].binary_params == 24
