"""A gradient that is only rounding noise changes nothing."""

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import ops

HIDDEN = 4
# The outgoing weights of hidden units 1 and 3 are equal.
OUTGOING = np.float32([[1, -1], [1, 1], [-1, 1], [-1, -1]])
EQUAL = [1, 3]


def network(outgoing=OUTGOING, **arguments):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.InputLayer((6,)),
            kq.layers.BinaryDense(HIDDEN, activation="tanh", **arguments),
            kq.layers.BinaryDense(2, use_bias=False, **arguments),
        ]
    )
    model.layers[-1].set_weights([0.5 * outgoing])
    return model


def data(rows=32):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 6)).astype("float32")
    return x, (x[:, 0] > 0).astype("int32")


def moved(model, opt, **arguments):
    """Returns which columns of the first kernel change in one step."""
    before = model.layers[-2].kernel.numpy()
    model.compile(opt, tools.loss(), **arguments)
    model.fit(*data(), batch_size=32, verbose=0)
    change = np.abs(model.layers[-2].kernel.numpy() - before)
    return (change > 0).any(axis=0).tolist()


MODES = [{}, {"run_eagerly": True}, {"jit_compile": True}]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_units_with_equal_outgoing_weights_are_held(mode):
    opt = tools.optimizer(backend="exact")
    assert moved(network(), opt, **mode) == [True, False, True, False]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_layers_with_only_such_units_are_held(mode):
    opt = tools.optimizer(backend="exact")
    assert not any(moved(network(OUTGOING[[1, 1, 3, 3]]), opt, **mode))
    assert opt.skipped_updates == 0


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision(policy):
    opt = tools.optimizer(backend="exact")
    model = network(dtype=policy)
    assert moved(model, opt) == [True, False, True, False]


def test_plain_products_have_noise():
    """The plain product leaves errors where the true gradient is zero."""
    x, y = data()
    model = network()
    first, second = model.layers[-2:]
    with tf.GradientTape() as tape:
        hidden = tf.tanh(first(x))
        tape.watch(hidden)
        logits = hidden @ second.binary_kernel / np.sqrt(HIDDEN)
        value = tools.loss()(y, logits)
    noise = np.abs(tape.gradient(value, hidden).numpy())
    assert 0 < noise[:, EQUAL].max() < 1e-6 * noise.max()


@pytest.mark.parametrize("training", [True, None])
def test_gradient_values(training):
    """The gradient is zero for such units and unchanged for all others."""
    x, y = data()
    model = network()
    found = []
    for flag in (training, False):
        with tf.GradientTape() as tape:
            value = tools.loss()(y, model(x, training=flag))
        found.append(tape.gradient(value, model.layers[-2].kernel).numpy())
    assert not found[0][:, EQUAL].any()
    others = [0, 2]
    np.testing.assert_array_equal(found[0][:, others], found[1][:, others])
    assert found[0][:, others].all()


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_graph_convolutions_with_any_adjacency(sparse):
    """A different order of summation changes the noise, not the kernels."""
    rng = np.random.default_rng(0)
    nodes = 24
    a = kq.layers.BinaryGraphConv.preprocess(
        np.float32(rng.random((nodes, nodes)) < 0.2)
    )
    x = rng.normal(size=(nodes, 6)).astype("float32")
    y = rng.integers(2, size=(nodes,))
    keras.utils.set_random_seed(0)
    layers = [
        kq.layers.BinaryGraphConv(HIDDEN, "tanh", check_adjacency=False),
        kq.layers.BinaryGraphConv(2, use_bias=False, check_adjacency=False),
    ]
    a = tf.sparse.from_dense(a) if sparse else tf.constant(a)
    layers[1].build([(nodes, HIDDEN), (nodes, nodes)])
    layers[1].set_weights([0.5 * OUTGOING])
    layers[0].build([(nodes, 6), (nodes, nodes)])
    variables = [w for layer in layers for w in layer.trainable_variables]
    start = layers[0].kernel.numpy()
    opt = tools.optimizer(backend="exact")

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            value = tools.loss()(y, layers[1]([layers[0]([x, a]), a]))
        grads = tape.gradient(value, variables)
        opt.apply_gradients(zip(grads, variables))

    step()
    change = np.abs(layers[0].kernel.numpy() - start)
    assert (change > 0).any(axis=0).tolist() == [True, False, True, False]


def test_convolutions():
    """Columns are channels, and a 1x1 kernel sums over the filters."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 3, 3, 2)).astype("float32")
    y = rng.integers(2, size=(8, 3, 3))
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.InputLayer((3, 3, 2)),
            kq.layers.BinaryConv2D(HIDDEN, 1, activation="tanh"),
            kq.layers.BinaryConv2D(2, 1, use_bias=False),
        ]
    )
    model.layers[-1].set_weights([0.5 * OUTGOING[None, None]])
    before = model.layers[-2].kernel.numpy()
    model.compile(tools.optimizer(backend="exact"), tools.loss())
    model.fit(x, y, verbose=0)
    change = np.abs(model.layers[-2].kernel.numpy() - before)
    found = (change > 0).any(axis=(0, 1, 2)).tolist()
    assert found == [True, False, True, False]


def test_overflow_is_not_hidden():
    upstream = tf.constant([[np.inf, 1.0], [1.0, 1.0]])
    gradient = tf.constant([[np.inf, np.nan], [1.0, 1.0]])
    kernel = tf.ones((2, 2))
    found = ops.without_rounding_noise(gradient, upstream, kernel, 1)
    np.testing.assert_array_equal(found, gradient)


def test_confident_predictions():
    """Their small gradients have lost most of their digits."""
    model = network()
    x, y = data()
    keras.utils.set_random_seed(0)
    first, last = model.layers[-2:]
    first.output_scale = last.output_scale = None
    # The first input determines the class by a large margin.
    model.layers[-2].set_weights(
        [np.ones((6, HIDDEN), "float32"), np.zeros(HIDDEN)]
    )
    x = np.float32(8.0 * np.sign(x[:, :1])) * np.ones((1, 6), "float32")
    with tf.GradientTape() as tape:
        logits = 3.0 * model(x, training=True)
        value = tools.loss()((x[:, 0] < 0).astype("int32"), logits)
    gradient = tape.gradient(value, first.kernel).numpy()
    assert not gradient[:, EQUAL].any()


def test_nonzero_sums_are_kept():
    """The weights are equal, but the sum over the outputs is not zero."""
    model = network()
    x, _ = data()
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(model(x, training=True) ** 2)
    gradient = tape.gradient(value, model.layers[-2].kernel).numpy()
    assert gradient[:, EQUAL].all()


@pytest.mark.once
def test_fields_that_cancel():
    """0.1 + 0.6 - 0.7 is not zero in floating point."""
    rows = tf.ones((3, 2))
    gradients = tf.constant([[0.1, 0.5], [0.6, 0.25], [-0.7, 0.125]])
    call = ops.normalize(rows, gradients, batch=3)
    for wide in (False, True):
        make = ops.rows_problem if wide else ops.gram_problem
        problem = make(call.normalized_rows, call.row_gradients)
        assert problem.fields[0, 0] != 0
        found = ops.has_information(problem).numpy()
        np.testing.assert_array_equal(found, [[False, True]] * 2)
