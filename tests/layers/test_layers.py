"""Tests `BinaryDense`, `BinaryConv2D` and custom binary layers."""

import gc
import inspect

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd.layers import statistics
from keras_qpsbgd.optimizers import paper_rule
from keras_qpsbgd.qubo import ops

layers = kq.layers


class JacobianDense(layers.BinaryDense):
    """`BinaryDense` without its own `rows`."""

    rows = layers.BinaryLayer.rows


class JacobianConv(layers.BinaryConv2D):
    rows = layers.BinaryLayer.rows


class KeepsGradients(statistics.BatchCouplings):
    """Couplings of the paper. Also keeps the gradients of the rows."""

    def gradient(self, rows, row_gradients, kept):
        self.row_gradients = row_gradients
        return super().gradient(rows, row_gradients, kept)


def observe(layer, kind):
    """Connects an observer of this kind to a layer. Returns it and its sum."""
    mark = statistics.mark_of(layer.kernel)
    total = tf.Variable(tf.zeros((1, mark.num_variables, mark.num_variables)))
    mark.observer = observer = kind(total)
    return observer, total


def observed(layer, x):
    """Returns the problem of the paper, and the gradients of its rows."""
    layer.build(x.shape)
    observer, couplings = observe(layer, KeepsGradients)
    rng = np.random.default_rng(0)
    with tf.GradientTape() as tape:
        y = keras.activations.get("hard_tanh")(layer(x))
        target = tf.constant(rng.normal(size=y.shape), y.dtype)
        # Half of the samples have no gradient.
        weight = tf.reshape(
            tf.range(len(x)) % 2, [-1] + [1] * (len(y.shape) - 1)
        )
        loss = tf.reduce_mean((y - target) ** 2 * tf.cast(weight, y.dtype))
    gradient = tape.gradient(loss, tools.tf_variable(layer.kernel))
    mark = statistics.mark_of(layer.kernel)
    gradient = tf.reshape(gradient, (mark.num_variables, mark.num_columns))
    (problem,) = paper_rule.problems(gradient, tf.convert_to_tensor(couplings))
    return problem, observer.row_gradients


def second_moments(layer, x):
    """Returns X'X of all rows of a forward pass."""
    mark = statistics.mark_of(layer.kernel)
    mark.observer = observer = tools.KeptRows()
    layer(x)
    (rows,) = observer.rows
    return rows.T @ rows


def assert_same_problem(closed, jacobian, columns):
    """Compares with the problem of a Jacobian, which has a block per column."""
    for column in range(columns):
        assert_same_block(closed.couplings, jacobian.couplings, column, columns)
        np.testing.assert_allclose(
            jacobian.fields.numpy()[column::columns, 0],
            closed.fields[:, column],
            rtol=1e-4,
            atol=1e-6,
        )


def assert_same_block(closed, jacobian, column, columns):
    block = np.asarray(jacobian)[column::columns, column::columns]
    np.testing.assert_allclose(block, closed, rtol=1e-4, atol=1e-5)


@pytest.mark.once
@pytest.mark.parametrize("shape", [(8, 5), (4, 3, 5), (2, 3, 2, 5)], ids=str)
def test_dense_rows_match_the_jacobian(shape):
    x = tf.random.stateless_normal(shape, (1, 2)) * 2
    found = {}
    for kind in (layers.BinaryDense, JacobianDense):
        keras.utils.set_random_seed(0)
        layer = kind(3)
        problem, row_gradients = observed(layer, x)
        found[kind] = problem, second_moments(layer, x)
        if kind is layers.BinaryDense:
            gradients = row_gradients.numpy()
            kept = (gradients != 0).any(axis=1)
            # Units are saturated, so some entries of V are zero.
            assert (gradients[kept] == 0).any()
            assert not kept.all()
    closed, moments = found[layers.BinaryDense]
    by_tape, jacobian_moments = found[JacobianDense]
    assert_same_problem(closed, by_tape, 3)
    rows = np.reshape(x, (-1, 5))
    np.testing.assert_allclose(moments, rows.T @ rows, rtol=1e-5, atol=1e-5)
    assert_same_block(moments, jacobian_moments, 1, 3)


@pytest.mark.once
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"padding": "same"},
        {"strides": 2},
        {"strides": 2, "padding": "same"},
        {"dilation_rate": 2, "padding": "same"},
        {"dilation_rate": 2},
    ],
    ids=str,
)
def test_conv_rows_match_the_jacobian(arguments):
    x = tf.random.stateless_normal((2, 6, 5, 2), (1, 2)) * 2
    found = []
    for kind in (layers.BinaryConv2D, JacobianConv):
        keras.utils.set_random_seed(0)
        layer = kind(2, (3, 2), **arguments)
        found.append(observed(layer, x)[0])
        found.append(second_moments(layer, x))
    assert_same_problem(found[0], found[2], columns=2)
    assert_same_block(found[1], found[3], column=0, columns=2)


def test_channels_first_matches_channels_last():
    x = tf.random.stateless_normal((4, 6, 5, 2), (1, 2))
    keras.utils.set_random_seed(0)
    last = layers.BinaryConv2D(3, 2, padding="same", bias_initializer="ones")
    first = layers.BinaryConv2D(
        3, 2, padding="same", data_format="channels_first"
    )
    y = last(x)
    first.build((None, 2, 6, 5))
    first.set_weights(last.get_weights())
    transposed = first(tf.transpose(x, (0, 3, 1, 2)))
    np.testing.assert_allclose(
        tf.transpose(transposed, (0, 2, 3, 1)), y, atol=1e-6
    )
    rows = last.rows(x)
    np.testing.assert_allclose(
        first.rows(tf.transpose(x, (0, 3, 1, 2))), rows, atol=1e-6
    )
    np.testing.assert_allclose(
        first.row_gradients(tf.transpose(y, (0, 3, 1, 2))),
        last.row_gradients(y),
    )


def test_forward_and_straight_through_gradient():
    x = tf.random.stateless_normal((8, 5), (1, 2))
    layer = layers.BinaryDense(3)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        loss = tf.reduce_sum(y**2)
    kernel, bias = layer.trainable_variables
    d_x, d_kernel, d_bias = tape.gradient(
        loss, [x, tools.tf_variable(kernel), tools.tf_variable(bias)]
    )
    w = ops.sign(tf.convert_to_tensor(kernel))
    scale = 1 / np.sqrt(5)
    np.testing.assert_allclose(y, x @ w * scale, rtol=1e-5)
    np.testing.assert_allclose(d_x, 2 * y @ tf.transpose(w) * scale, rtol=1e-4)
    np.testing.assert_allclose(
        d_kernel, tf.transpose(x) @ (2 * y) * scale, rtol=1e-4
    )
    np.testing.assert_allclose(d_bias, tf.reduce_sum(2 * y, 0), rtol=1e-4)


PAIRS = [
    (layers.BinaryDense, keras.layers.Dense),
    (layers.BinaryConv2D, keras.layers.Conv2D),
]


@pytest.mark.parametrize("ours, theirs", PAIRS)
def test_arguments_and_defaults_match_keras(ours, theirs):
    signature = inspect.signature(theirs.__init__)
    required = (
        {"units": 3}
        if ours is layers.BinaryDense
        else {
            "filters": 3,
            "kernel_size": 2,
        }
    )
    defaults = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    config = theirs(**required).get_config()
    mine = ours(**required).get_config()
    assert mine["output_scale"] == "fan_in"
    assert mine["training_weights"] == "binary"

    def shared(config):
        extra = ("name", "bits", "output_scale", "training_weights")
        return {key: config[key] for key in config if key not in extra}

    assert shared(mine) == shared(config)
    explicit = ours(**required, **defaults).get_config()
    assert shared(explicit) == shared(config)
    # Positional arguments have the same order as in Keras.
    positional = list(required.values()) + list(defaults.values())
    names = [p for p in signature.parameters if p in {**required, **defaults}]
    assert names == list({**required, **defaults})
    in_order = ours(*positional).get_config()
    assert shared(in_order) == shared(config)
    # So have the weights.
    shape = (None, 6) if ours is layers.BinaryDense else (None, 6, 6, 2)
    mine, other = ours(**required), theirs(**required)
    mine.build(shape), other.build(shape)
    other.set_weights(mine.get_weights())


def test_masks_and_sequences():
    model = keras.Sequential(
        [
            keras.layers.InputLayer((4, 3)),
            keras.layers.Masking(),
            layers.BinaryDense(2),
        ]
    )
    x = np.ones((2, 4, 3), "float32")
    x[:, 2:] = 0.0
    assert layers.BinaryDense(2).supports_masking
    model.compile(tools.optimizer(backend="sign"), "mse", run_eagerly=True)
    model.fit(x, np.ones((2, 4, 2)), verbose=0)
    assert model(x).shape == (2, 4, 2)


def test_nothing_is_computed_without_qpsbgd(monkeypatch):
    model = tools.small_model()
    before = len([v for v in model.variables])
    x, y = tools.data()
    calls = []
    rows = layers.BinaryDense.rows

    def counted(self, inputs):
        calls.append(self.name)
        return rows(self, inputs)

    monkeypatch.setattr(layers.BinaryDense, "rows", counted)
    model.compile("adam", tools.loss(), run_eagerly=True)
    model.fit(x, y, verbose=0)
    assert not calls
    assert len(model.variables) == before
    model.compile(tools.optimizer(), tools.loss(), run_eagerly=True)
    model.fit(x, y, batch_size=9, verbose=0)  # the first step builds it
    assert set(calls) == {layer.name for layer in model.layers[-2:]}
    # With the optimizer, its statistics end.
    model.compile("adam", tools.loss(), run_eagerly=True)
    gc.collect()
    calls.clear()
    model.fit(x, y, verbose=0)
    assert not calls


def test_wrong_arguments():
    rejected = {
        "bits": (0, 5, True, 1.5, 2.0, "2", None),
        "output_scale": (2.0, "fan_out"),
        "training_weights": ("real", None),
        **({"lora_rank": (2,)} if _keras.KERAS_3 else {}),
    }
    for name, values in rejected.items():
        for value in values:
            with pytest.raises(ValueError, match=f"`{name}`.*Received: {name}"):
                layers.BinaryDense(2, **{name: value})
    with pytest.raises(ValueError, match="`bits` must be"):
        layers.BinaryMultiHeadAttention(2, 3, bits=0)
    with pytest.raises(ValueError, match="groups.*Received: groups=2"):
        layers.BinaryConv2D(4, 3, groups=2)
    for shape in ((None, 0), (None, 3, 0)):
        with pytest.raises(ValueError, match="at least one input.*Received"):
            layers.BinaryDense(4).build(shape)
    layer = layers.BinaryDense(2, bits=np.int64(3))
    assert type(layer.get_config()["bits"]) is int
    layer.build((None, 3))
    with pytest.raises(ValueError, match="Received: mode=int8"):
        layer.quantize("int8")
    with pytest.raises(ValueError, match="Received: rank=2"):
        layer.enable_lora(2)


def test_layer_without_binary_kernel():
    with pytest.raises(ValueError, match="no binary kernel.*is not built"):
        layers.BinaryDense(3).binary_kernel  # noqa: B018

    class Unmarked(layers.BinaryLayer):
        def binary_call(self, inputs, binary_kernel):
            return inputs

        def call(self, inputs, training=None):
            return self.binary_product(inputs, training)

    with pytest.raises(ValueError, match="no binary kernel.*mark_binary"):
        Unmarked()(np.ones((1, 2)))

    class Frozen(Unmarked):
        def build(self, input_shape):
            self.kernel = self.add_weight(
                name="kernel", shape=(2,), trainable=False
            )
            self.mark_binary(self.kernel)

    with pytest.raises(ValueError, match="must be a trainable variable"):
        Frozen()(np.ones((1, 2)))


@pytest.mark.parametrize("repeated", [False, True], ids=["once", "repeated"])
@pytest.mark.parametrize("symbolic", [False, True], ids=["eager", "function"])
def test_sparse_inputs_in_any_order(repeated, symbolic):
    """A CSR product of two matrices has such unsorted indices."""
    indices = [[0, 3], [0, 1], [2, 2], [1, 0]] + [[0, 3]] * repeated
    values = np.arange(1.0, len(indices) + 1, dtype="float32")
    dense = np.zeros((3, 5), "float32")
    np.add.at(dense, tuple(np.transpose(indices)), values)
    sparse = tf.SparseTensor(np.int64(indices), values, (3, 5))
    layer = layers.BinaryDense(2)
    expected = layer(dense)
    call = tf.function(layer) if symbolic else layer
    np.testing.assert_array_equal(call(sparse), expected)
    graph = layers.BinaryGraphConv(2, check_adjacency=False)
    expected = graph([dense, np.eye(3, dtype="float32")])
    call = tf.function(lambda x, a: graph([x, a])) if symbolic else None
    call = call or (lambda x, a: graph([x, a]))
    shuffled = tf.SparseTensor([[2, 2], [0, 0], [1, 1]], [1.0] * 3, (3, 3))
    np.testing.assert_array_equal(call(sparse, shuffled), expected)


def test_gradient_penalties():
    """Second derivatives are the same in eager execution and in a graph."""
    layer = kq.layers.BinaryConv2D(3, 2)
    model = keras.Sequential([keras.Input((4, 4, 2)), layer])
    x = tf.random.stateless_normal((5, 4, 4, 2), (1, 2))

    def penalty_gradient():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(model(x, training=False) ** 2)
            gradient = inner.gradient(y, x)
            penalty = tf.reduce_sum(gradient**2)
        return outer.gradient(penalty, layer.kernel)

    eager = penalty_gradient()
    assert np.abs(eager).max() > 0
    np.testing.assert_allclose(
        eager, tf.function(penalty_gradient)(), rtol=1e-4, atol=1e-4
    )
