"""Rows times kernel is what the Keras layers compute."""

import numpy as np
import pytest
import quantizing
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd.layers import equations
from keras_qpsbgd.quantization import kinds
from keras_qpsbgd.quantization.kinds import convolutions

L = keras.layers
RNG = np.random.default_rng(0)


EQUATIONS = [
    # equation, input shape, output shape, bias axes
    ("abc,cde->abde", (4, 3, 2), (None, 5, 6), "de"),  # query of attention
    ("abcd,cde->abe", (4, 3, 2, 6), (None, 5), "e"),  # its output
    ("abc,dce->abed", (4, 3, 2), (None, 6, 5), "ed"),
    ("abc,bd->adc", (4, 3, 2), (5, None), "d"),
    ("xab,bc->xac", (4, 3, 2), (None, 5), None),
]


@pytest.mark.parametrize("equation, shape, output_shape, bias", EQUATIONS)
def test_einsum_dense(equation, shape, output_shape, bias):
    layer = keras.layers.EinsumDense(equation, output_shape, bias_axes=bias)
    x = tf.constant(RNG.normal(size=shape), "float32")
    layer(x)
    layer.set_weights([RNG.normal(size=w.shape) for w in layer.get_weights()])
    kind = kinds.kind_of(layer)
    assert kind.has_bias(layer) is (bias is not None)
    wanted = layer(x).numpy()
    # Add the product and the bias in the order of the matrix.
    matrix, rows = kind.kernel(layer), equations.rows(equation, x)
    found = rows.numpy() @ matrix
    if bias:
        found += layer.bias.numpy().reshape(-1)
    # The sum of squares over rows does not depend on their order.
    columns = found.reshape(-1, matrix.shape[1])
    parsed = equations.parse(equation)
    letters = parsed.outputs.replace("...", "AB"[: wanted.ndim - 1])
    last = [letters.index(axis) for axis in parsed.free]
    rest = [axis for axis in range(wanted.ndim) if axis not in last]
    wanted = wanted.transpose(*rest, *last).reshape(columns.shape)
    np.testing.assert_allclose(columns, wanted, atol=1e-4)
    # A kernel that is written as a matrix is read as the same matrix.
    new = RNG.normal(size=matrix.shape)
    kind.set_kernel(layer, new)
    np.testing.assert_allclose(kind.kernel(layer), new, atol=1e-6)
    before = layer(x).numpy()
    change = RNG.normal(size=matrix.shape[1])
    kind.change_bias(layer, change)
    moved = (layer(x).numpy() - before).transpose(*rest, *last)
    expected = change if bias else 0.0 * change
    np.testing.assert_allclose(
        moved.reshape(columns.shape),
        np.broadcast_to(expected, columns.shape),
        atol=1e-4,
    )


@pytest.mark.parametrize("sparse", [False, True])
def test_gcn_conv(sparse):
    spektral = pytest.importorskip("spektral")
    with kq.spektral.enable_keras3():
        layer = spektral.layers.GCNConv(4, use_bias=False)
        x = tf.constant(RNG.normal(size=(6, 3)), "float32")
        a = RNG.random((6, 6)).astype("float32")
        a[a < 0.5] = 0.0
        adjacency = tf.sparse.from_dense(a) if sparse else tf.constant(a)
        y = layer([x, adjacency]).numpy()
        kind = kinds.kind_of(layer)
        (rows,) = kind.rows(layer, ([x, adjacency],), {})
        found = rows @ kind.kernel(layer)
        np.testing.assert_allclose(found, y, atol=1e-5)
        # Masked nodes are not part of the rows.
        mask = tf.constant([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])[:, None]
        rows = next(kind.rows(layer, ([x, adjacency],), {"mask": [mask, None]}))
        kept = (a @ x.numpy())[[0, 2, 3, 5]]
        np.testing.assert_allclose(rows, kept, atol=1e-6)


@pytest.mark.parametrize(
    "equation, reason",
    [
        ("abc,bcd->abd", "batch axes"),
        ("abc,cd->ad", "one operand"),
        ("ab,c->abc", "not a matrix product"),
    ],
)
def test_unsupported_equations(equation, reason):
    assert reason in equations.problem(equation)
    # The bias has no entry for axis `d`, so it is not corrected.
    assert not equations.bias_is_per_output("abc,cde->abde", "e")


def test_unsupported_layers():
    class Custom(keras.layers.Dense):
        pass

    assert kinds.kind_of(Custom(2)) is None
    binary = kinds.kind_of(kq.layers.BinaryDense(2))
    assert binary is kinds.kind_of(keras.layers.Dense(2))
    grouped = keras.layers.Conv2D(4, 3, groups=2)
    assert not kinds.kind_of(grouped).can_quantize(grouped)


@pytest.mark.skipif(not _keras.KERAS_3, reason="legacy Keras has neither")
def test_lora_and_int8_are_unsupported():
    for change, reason in (
        (lambda layer: layer.enable_lora(2), "LoRA weights"),
        (lambda layer: layer.quantize("int8"), "quantized by Keras"),
    ):
        layer = keras.layers.Dense(4)
        layer.build((None, 4))
        change(layer)
        assert kinds.kind_of(layer).problem(layer) == reason


def test_replacement_keeps_other_arguments():
    layer = keras.layers.Conv2D(
        4,
        (3, 2),
        strides=2,
        padding="same",
        data_format="channels_last",
        activation="relu",
        use_bias=False,
        activity_regularizer=keras.regularizers.L2(0.5),
        # They would change the levels of latent weights.
        kernel_constraint=keras.constraints.MaxNorm(0.5),
        kernel_regularizer="l2",
        name="conv",
        trainable=False,
        dtype="mixed_float16",
    )
    new = kinds.kind_of(layer).quantized(layer, 3)
    assert type(new) is kq.layers.BinaryConv2D
    assert (new.bits, new.output_scale) == (3, "channel")
    assert new.kernel_constraint is None and new.kernel_regularizer is None
    old, new = layer.get_config(), new.get_config()
    del old["kernel_constraint"], old["kernel_regularizer"]
    for name, value in old.items():
        if name not in ("lora_rank", "lora_alpha", "quantization_config"):
            assert new[name] == value, name


@pytest.mark.parametrize(
    "make, shape",
    [
        (lambda: L.Conv2D(6, 3, strides=2, padding="same"), (9, 8, 4)),
        (lambda: L.Conv2D(6, (3, 2), dilation_rate=2), (9, 8, 4)),
        (lambda: L.Conv2D(6, 3, groups=2, padding="same"), (6, 6, 4)),
        (lambda: L.Conv1D(6, 3, padding="causal", dilation_rate=2), (9, 4)),
        (lambda: L.Conv1D(6, 3, strides=2, groups=2), (9, 4)),
        (lambda: L.Conv3D(3, 2, padding="same"), (4, 3, 5, 2)),
        (lambda: L.DepthwiseConv2D(3, 2, depth_multiplier=2), (7, 7, 3)),
        (lambda: L.DepthwiseConv1D(3, padding="same"), (7, 3)),
        (lambda: L.Conv1DTranspose(4, 2, strides=3), (5, 3)),
        (
            lambda: L.Conv2DTranspose(
                4, 3, strides=(3, 2), padding="same", output_padding=1
            ),
            (4, 5, 3),
        ),
        pytest.param(
            lambda: L.Conv2DTranspose(4, 3, dilation_rate=2, padding="same"),
            (6, 5, 3),
            marks=pytest.mark.skipif(
                _keras.KERAS_3, reason="TensorFlow has none on a CPU"
            ),
        ),
        (lambda: L.Conv3DTranspose(2, 3, strides=2), (2, 3, 2, 3)),
        (lambda: L.Dense(5), (3, 4)),
        (lambda: L.EinsumDense("abc,cd->abd", (3, 6), bias_axes="d"), (3, 4)),
    ],
)
def test_rows_times_kernel_are_the_outputs(make, shape, monkeypatch):
    monkeypatch.setattr(convolutions, "MAX_NUMBERS", 500)  # several pieces
    layer, x = make(), tf.constant(quantizing.data(5, *shape))
    outputs = layer(x).numpy()
    kind = kinds.kind_of(layer)
    kernel = kind.kernel(layer)
    kernel = kernel[None] if kernel.ndim == 2 else kernel

    def product(count=None):
        rows = np.concatenate(list(kind.rows(layer, (x,), {}, count, seed=1)))
        rows = rows[:, None] if rows.ndim == 2 else rows
        return np.einsum("bgi,gij->bgj", rows, kernel)

    every = product().reshape(outputs.shape)
    np.testing.assert_allclose(every, outputs, rtol=1e-4, atol=1e-5)
    some = product(count=7).reshape(7, -1)
    known = {tuple(row) for row in every.reshape(-1, some.shape[1]).round(6)}
    assert {tuple(row) for row in some.round(6)} <= known

    kind.set_kernel(layer, 2 * kind.kernel(layer))
    np.testing.assert_allclose(layer(x), 2 * outputs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "make, shape",
    [
        (lambda: L.SeparableConv1D(5, 3, dilation_rate=2), (7, 4)),
        (
            lambda: L.SeparableConv2D(
                5, (3, 2), padding="same", depth_multiplier=2
            ),
            (7, 6, 4),
        ),
    ],
)
def test_rows_of_separable_convolutions(make, shape):
    layer, x = make(), tf.constant(quantizing.data(5, *shape))
    outputs = layer(x).numpy()
    depthwise, pointwise = kinds.kernels_of(layer).values()

    def product(kind):
        (rows,) = kind.rows(layer, (x,), {})
        kernel = kind.kernel(layer)
        kernel = kernel[None] if kernel.ndim == 2 else kernel
        rows = rows[:, None] if rows.ndim == 2 else rows
        return np.einsum("bgi,gij->bgj", rows, kernel).reshape(len(rows), -1)

    found = product(pointwise).reshape(outputs.shape)
    np.testing.assert_allclose(found, outputs, rtol=1e-4, atol=1e-5)
    (rows,) = pointwise.rows(layer, (x,), {})
    np.testing.assert_allclose(product(depthwise), rows, rtol=1e-4, atol=1e-5)
    for kind in (depthwise, pointwise):
        kind.set_kernel(layer, 2 * kind.kernel(layer))
    np.testing.assert_allclose(layer(x), 4 * outputs, rtol=1e-4, atol=1e-5)


RECURRENT = {
    "LSTM": lambda **options: L.LSTM(4, **options),
    "GRU": lambda **options: L.GRU(4, **options),
    "SimpleRNN": lambda **options: L.SimpleRNN(4, **options),
}


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("case", ["plain", "backwards", "masked", "states"])
def test_rows_of_recurrent_layers(name, case):
    """The inputs, and the outputs of the step before."""
    layer = RECURRENT[name](
        return_sequences=True, go_backwards=case == "backwards"
    )
    x, kwargs = quantizing.data(5, 6, 3), {}
    start = np.zeros((5, 4), "float32")
    keep = np.ones((5, 6), bool)
    if case == "masked":
        keep[:, 2] = keep[1, 4] = False
        kwargs["mask"] = tf.constant(keep)
    if case == "states":
        start = quantizing.data(5, 4, seed=1)
        states = [start, quantizing.data(5, 4, seed=2)]
        kwargs["initial_state"] = [
            tf.constant(each) for each in states[: 1 + (name == "LSTM")]
        ]
    outputs = layer(tf.constant(x), **kwargs).numpy()
    before = np.concatenate([start[:, None], outputs[:, :-1]], axis=1)
    if case == "backwards":  # the first output is that of the last step
        before = before[:, ::-1]
    for kind, wanted in zip(kinds.kernels_of(layer).values(), (x, before)):
        (rows,) = kind.rows(layer, (tf.constant(x),), kwargs)
        np.testing.assert_allclose(rows, wanted[keep], atol=1e-6)
