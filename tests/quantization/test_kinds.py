"""Rows times kernel is what the Keras layers compute."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd.layers import equations
from keras_qpsbgd.quantization import kinds
from keras_qpsbgd.quantization.kinds import convolutions

RNG = np.random.default_rng(0)


def random_weights(layer):
    layer.set_weights([RNG.normal(size=w.shape) for w in layer.get_weights()])


def product(layer, inputs):
    """Returns rows times kernel, one row per output position."""
    kind = kinds.kind_of(layer)
    assert kind.problem(layer) is None
    pieces = list(kind.rows(layer, (inputs,), {}))
    return np.concatenate(pieces) @ kind.kernel(layer)


@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 5), (2, 3, 4, 5)])
def test_dense(shape):
    layer = keras.layers.Dense(6, use_bias=False)
    x = tf.constant(RNG.normal(size=shape), "float32")
    y = layer(x).numpy()
    found = product(layer, x).reshape(y.shape)
    np.testing.assert_allclose(found, y, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": "same", "strides": 2},
        {"padding": "same", "dilation_rate": (1, 2)},
        {"dilation_rate": 2, "kernel_size": (1, 2)},
        {"padding": "same", "data_format": "channels_first"},
        {"strides": (2, 1), "data_format": "channels_first"},
    ],
)
def test_conv2d(options, monkeypatch):
    # Several pieces, the last of them smaller.
    options = {"kernel_size": (3, 2), **options}
    numbers = 3 * int(np.prod(options["kernel_size"]))
    monkeypatch.setattr(convolutions, "MAX_NUMBERS", 60 * numbers)
    first = options.get("data_format") == "channels_first"
    shape = (5, 3, 8, 7) if first else (5, 8, 7, 3)
    x = tf.constant(RNG.normal(size=shape), "float32")
    layer = keras.layers.Conv2D(4, use_bias=False, **options)
    try:
        y = layer(x).numpy()
    except tf.errors.UnimplementedError as error:
        pytest.skip(f"This CPU has no such convolution: {error}")
    y = y.transpose(0, 2, 3, 1) if first else y
    pieces = list(kinds.Conv2DKind().rows(layer, (x,), {}))
    assert len(pieces) > 1 and max(len(piece) for piece in pieces) <= 60
    found = product(layer, x).reshape(y.shape)
    np.testing.assert_allclose(found, y, atol=1e-5)


EQUATIONS = [
    # equation, input shape, output shape, bias axes
    ("ab,bc->ac", (4, 3), (5,), "c"),
    ("abc,cd->abd", (4, 3, 2), (None, 5), "d"),
    ("abc,cde->abde", (4, 3, 2), (None, 5, 6), "de"),  # query of attention
    ("abcd,cde->abe", (4, 3, 2, 6), (None, 5), "e"),  # its output
    ("abcd,dce->abe", (4, 3, 2, 6), (None, 5), "e"),
    ("abc,dce->abed", (4, 3, 2), (None, 6, 5), "ed"),
    ("abc,bd->adc", (4, 3, 2), (5, None), "d"),
    ("...x,xy->...y", (4, 3, 2), 5, "y"),
    ("xab,bc->xac", (4, 3, 2), (None, 5), None),
]


@pytest.mark.parametrize("equation, shape, output_shape, bias", EQUATIONS)
def test_einsum_dense(equation, shape, output_shape, bias):
    layer = keras.layers.EinsumDense(equation, output_shape, bias_axes=bias)
    x = tf.constant(RNG.normal(size=shape), "float32")
    layer(x)
    random_weights(layer)
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


@pytest.mark.parametrize(
    "equation, reason",
    [
        ("abc,bcd->abd", "batch axes"),
        ("abc,c->abc", "batch axes"),
        ("abc,cd->ad", "one operand"),
        ("ab,cb->a", "one operand"),
        ("ab,c->abc", "not a matrix product"),
    ],
)
def test_unsupported_equations(equation, reason):
    assert reason in equations.problem(equation)


def test_partial_bias_is_not_corrected():
    assert not equations.bias_is_per_output("abc,cde->abde", "e")
    assert not equations.bias_is_per_output("abc,cd->abd", "bd")


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
        found = product(layer, [x, adjacency])
        np.testing.assert_allclose(found, y, atol=1e-5)
        np.testing.assert_allclose(
            found, a @ x.numpy() @ layer.kernel.numpy(), atol=1e-5
        )
        # Masked nodes are not part of the rows.
        mask = tf.constant([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])[:, None]
        rows = next(
            kinds.GraphConvKind().rows(
                layer, ([x, adjacency],), {"mask": [mask, None]}
            )
        )
        kept = (a @ x.numpy())[[0, 2, 3, 5]]
        np.testing.assert_allclose(rows, kept, atol=1e-6)


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
        name="conv",
        trainable=False,
        dtype="mixed_float16",
    )
    new = kinds.kind_of(layer).quantized(layer, 3)
    assert type(new) is kq.layers.BinaryConv2D
    assert (new.bits, new.output_scale) == (3, "channel")
    old, new = layer.get_config(), new.get_config()
    for name, value in old.items():
        if name not in ("lora_rank", "lora_alpha", "quantization_config"):
            assert new[name] == value, name
