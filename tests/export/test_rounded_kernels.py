"""Files of networks whose layers have no binary version.

`quantize` rounds their kernels, and files store them with few bits per weight.
"""

import os

import exporting
import numpy as np
import pytest
import quantizing
import test_runtimes
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd.export import container
from keras_qpsbgd.export import saving

L = keras.layers
# Inputs, and the layers that take them.
KINDS = {
    (9, 8): (
        lambda: L.Conv1D(6, 3, groups=2),
        lambda: L.DepthwiseConv1D(5, depth_multiplier=2),
        lambda: L.SeparableConv1D(6, 5),
        lambda: L.Conv1DTranspose(6, 3),
        lambda: L.EinsumDense("abc,dce->abed", (None, 6, 5), bias_axes="ed"),
        lambda: L.TimeDistributed(L.Dense(7)),
        lambda: L.SimpleRNN(6, return_sequences=True),
        lambda: L.LSTM(6),
        lambda: L.Bidirectional(L.GRU(6)),
    ),
    (7, 6, 8): (
        lambda: L.Conv2D(6, 3, groups=2),
        lambda: L.DepthwiseConv2D(3, depth_multiplier=2),
        lambda: L.SeparableConv2D(6, 3),
        lambda: L.Conv2DTranspose(6, 3),
    ),
    (3, 4, 3, 8): (
        lambda: L.Conv3D(6, 2),
        lambda: L.Conv3DTranspose(6, 2),
    ),
}


def all_kinds():
    """A network with a branch for each kind of layer."""
    inputs, outputs = [], []
    for shape, layers in KINDS.items():
        inputs.append(keras.Input(shape))
        for make in layers:
            outputs.append(L.Flatten()(make()(inputs[-1])))
    attention = L.MultiHeadAttention(2, 4, name="attention")
    outputs.append(L.Flatten()(attention(inputs[0], inputs[0])))
    model = keras.Model(inputs, L.Concatenate()(outputs))
    return quantizing.with_random_biases(model)


@pytest.mark.parametrize(
    "bits",
    [
        pytest.param(2, marks=pytest.mark.slow),
        *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (1, 3, 4)),
    ],
)
def test_every_kind_of_kernel(bits, tmp_path):
    model = all_kinds()
    inputs = [quantizing.data(6, *shape) for shape in KINDS]
    chosen = "^(?!attention/query)"  # an attention layer is then frozen
    quantized, report = kq.quantize(
        model, inputs, bits, method="nearest", layers=chosen, verbose=0
    )
    assert all(layer.frozen for layer in report.layers)
    path = tmp_path / "model.kq"
    kq.export.packed(quantized, path)
    arrays = container.decode(path.read_bytes())[1]
    found = [entry.bits for entry, _ in arrays if entry.bits is not None]
    assert found == [bits] * len(report.layers)
    size = sum(len(data) for _, data in arrays)
    assert report.packed_bytes == size
    loaded = kq.export.load_packed(path)
    for before, after in zip(quantized.weights, loaded.weights, strict=True):
        assert before.numpy().tobytes() == after.numpy().tobytes()
    expected = exporting.predict(quantized, inputs)
    np.testing.assert_array_equal(exporting.predict(loaded, inputs), expected)
    # Keras layers with the levels of binary layers are also stored as bits.
    again = saving.content_of(kq.export.inference_model(quantized))
    assert len(again) <= 1.02 * os.path.getsize(path)


def separable():
    """MobileNet's layers: a depthwise and a pointwise convolution."""
    return [
        keras.Input((8, 8, 64)),
        L.SeparableConv2D(128, 3, padding="same", activation="relu"),
        L.DepthwiseConv2D(5, padding="same", activation="relu"),
        L.SeparableConv2D(384, 3, activation="relu"),
        L.GlobalAveragePooling2D(),
        L.Dense(10),
    ]


def conv1d():
    return [
        keras.Input((20, 64)),
        L.Conv1D(128, 5, activation="relu"),
        L.Conv1D(96, 5, activation="relu"),
        L.GlobalAveragePooling1D(),
        L.Dense(10),
    ]


def conv3d():
    return [
        keras.Input((6, 6, 6, 8)),
        L.Conv3D(32, 3, activation="relu"),
        L.Conv3D(64, 3, activation="relu"),
        L.GlobalAveragePooling3D(),
        L.Dense(10),
    ]


def transposed():
    return [
        keras.Input((5, 5, 64)),
        L.Conv2DTranspose(64, 3, strides=2, activation="relu"),
        L.Conv2DTranspose(48, 3, strides=2, activation="relu"),
        L.GlobalAveragePooling2D(),
        L.Dense(10),
    ]


def lstm():
    return [keras.Input((10, 64)), L.LSTM(128), L.Dense(10)]


RUNTIMES = {"onnx": test_runtimes.run_onnx, "litert": test_runtimes.run_litert}


@pytest.mark.parametrize(
    "bits, smaller", [(2, 6), pytest.param(4, 4, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize(
    "make",
    [
        separable,
        *(
            pytest.param(make, marks=pytest.mark.slow)
            for make in (conv1d, conv3d, transposed, lstm)
        ),
    ],
    ids=lambda make: make.__name__,
)
def test_sizes_and_runtimes(make, bits, smaller, tmp_path):
    model = keras.Sequential(make())
    floats = 4 * model.count_params()
    x = quantizing.data(16, *model.input_shape[1:])
    quantized, report = kq.quantize(model, x, bits, method="nearest", verbose=0)
    # The file also has the configuration of the model.
    assert len(saving.content_of(quantized)) * smaller < floats
    assert report.compression > smaller
    expected = exporting.predict(quantized, x)
    for name, run in RUNTIMES.items():
        if name == "onnx" and not _keras.KERAS_3:
            continue
        if name == "litert" and make is lstm:
            continue  # see the next test
        path = tmp_path / f"model.{name}"
        getattr(kq.export, name)(quantized, path)
        assert os.path.getsize(path) * smaller < floats, name
        test_runtimes.assert_close(run(path, x), expected)


@pytest.mark.slow
def test_recurrent_layers_in_litert(tmp_path):
    path = tmp_path / "model.tflite"
    x = quantizing.data(16, 3, 20)

    def model(**options):
        return keras.Sequential(
            [
                keras.Input((3, 20)),
                L.LSTM(24, return_sequences=True, name="first", **options),
                L.Bidirectional(L.SimpleRNN(8, **options), name="second"),
                L.Dense(3),
            ]
        )

    with pytest.raises(
        ValueError, match=r"Received: first \(LSTM\), second \(Bidirectional\)"
    ):
        kq.export.litert(model(), path)
    assert not path.exists()
    unrolled = model(unroll=True)
    quantized, _ = kq.quantize(unrolled, x, 4, method="nearest", verbose=0)
    kq.export.litert(quantized, path)
    expected = exporting.predict(quantized, x)
    test_runtimes.assert_close(test_runtimes.run_litert(path, x), expected)


def test_predictor_multiplies_by_floats(tmp_path):
    """It reads rounded kernels of Keras layers, but computes with floats."""
    x = quantizing.data(64, 8)
    quantized, _ = kq.quantize(
        quantizing.mlp(), x, 2, method="nearest", verbose=0
    )
    stock = kq.export.inference_model(quantized)
    path = tmp_path / "model.kq"
    kq.export.packed(stock, path)
    found = kq.inference.Predictor(path).predict(x)
    test_runtimes.assert_close(found, exporting.predict(stock, x))


@pytest.mark.skipif(not _keras.KERAS_3, reason="`onnx` requires Keras 3.")
def test_grouped_convolutions_in_onnx(tmp_path):
    """Keras compiles them with XLA, and tf2onnx does not convert that."""
    pytest.importorskip("tf2onnx")
    path = tmp_path / "model.onnx"
    convolution = L.Conv2D(8, 3, groups=2, name="grouped")
    model = keras.Sequential([keras.Input((6, 6, 4)), convolution])
    with pytest.raises(ValueError, match="`groups`. Received: .*grouped"):
        kq.export.onnx(model, path)
    assert not path.exists()
