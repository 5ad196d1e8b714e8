"""The report of `kq.quantize`."""

import json

import pytest
import quantizing
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.export import container
from keras_qpsbgd.export import saving
from keras_qpsbgd.quantization.quantization_report import LayerQuantization
from keras_qpsbgd.quantization.quantization_report import QuantizationReport
from keras_qpsbgd.quantization.quantization_report import UnchangedLayer

L = keras.layers


def layer(name, **changes):
    values = {
        "name": name,
        "type": "Dense",
        "num_inputs": 1024,
        "num_outputs": 4096,
        "bits": 2,
        "errors": {
            "nearest": 0.5,
            "gptq": 0.2,
            "gptq+scales": 0.123456,
            "descent+scales": 0.1,
            "qubo": 0.0,
        },
        "error": 0.0,
        "held_out": 0.25,
        "improved": 1000,
        "proven": 3,
        "frozen": False,
        "packed_bytes": 100,
        "float32_bytes": 1600,
        "calls": 2,
        "seconds": 1.5,
        "qpu_seconds": 0.25,
    }
    return LayerQuantization(**{**values, **changes})


@pytest.fixture
def report():
    return QuantizationReport(
        name="network",
        bits=2,
        method="qubo",
        backend="native",
        layers=[layer("first"), layer(f"{'long' * 20}/name", frozen=True)],
        unchanged=[UnchangedLayer("n" * 90, "LSTM", "unsupported type")],
        packed_bytes=500,
        float32_bytes=3500,
    )


def test_table(report):
    text = str(report)
    assert max(map(len, text.splitlines())) <= 80
    for part in (
        "2 bits per weight, method qubo, backend native",
        "1024 x 4096",
        "0.123",
        "+scales",
        "held out",
        "Improved by the solver: 2,000 of 8,192 outputs",
        "Proven optimal for their scale: 6 of 8,192 outputs",
        "unchanged",
        "7.0x (weights in a packed file, 2 bits in",
        "* Frozen layer",
    ):
        assert part in text, part
    assert repr(report).startswith("QuantizationReport(name='network', bits=2")
    report.layers.append(layer("third", bits=4))
    assert "2 to 4 bits per weight" in str(report)


def test_numbers_and_notebooks(report):
    totals = {
        "packed_bytes": 500,
        "float32_bytes": 3500,
        "unchanged_bytes": 300,
        "compression": 7.0,
        "calls": 4,
        "seconds": 3.0,
        "qpu_seconds": 0.5,
    }
    found = json.loads(json.dumps(report.as_dict()))
    assert {name: found[name] for name in totals} == totals
    assert {name: getattr(report, name) for name in totals} == totals
    assert found["layers"][0]["errors"]["gptq"] == 0.2
    assert found["unchanged"][0]["reason"] == "unsupported type"
    assert report._repr_html_().startswith("<pre>Model: &quot;network&quot;")


def test_numbers_of_a_model():
    model, x = quantizing.mlp(), quantizing.data(64, 8)
    quantized, report = kq.quantize(
        model, x, bits=3, method="descent+scales", verbose=0
    )
    first, second, head = report.layers
    assert (first.num_inputs, first.num_outputs, first.bits) == (8, 16, 3)
    assert list(first.errors)[-2:] == ["gptq+scales", "descent+scales"]
    assert first.error == first.errors["descent+scales"]
    assert 0.5 < first.held_out / first.error < 2
    assert first.packed_bytes == 8 * 16 * 3 // 8 + 4 * (16 + 16)
    assert second.packed_bytes == 16 * 12 * 3 // 8 + 4 * 12  # no bias
    assert first.float32_bytes == 4 * (8 * 16 + 16)
    assert report.float32_bytes == 4 * model.count_params()
    assert report.unchanged_bytes == 4 * 4 * 16  # batch normalization
    assert report.backend is None and report.calls == 0
    assert_same_as_the_file(report, quantized)


def assert_same_as_the_file(report, quantized):
    """The report, the summary and a packed file have the same sizes."""
    content = saving.content_of(quantized)
    size = sum(len(data) for _, data in container.decode(content)[1])
    summary = kq.summary(quantized, print_fn=None)
    assert report.packed_bytes == summary.packed_bytes == size
    assert report.compression == summary.compression
    assert report.as_dict()["compression"] == report.float32_bytes / size


def test_memory_of_frozen_layers():
    """Each weight and bias counts once, and each output has a scale."""
    x = keras.Input((6, 8))
    h = L.Conv1D(8, 3, groups=4, name="grouped")(x)
    h = L.SeparableConv1D(6, 3, name="separable")(h)
    h = L.GRU(5, return_sequences=True, name="gru")(h)
    h = L.TimeDistributed(L.Dense(3, name="dense"), name="time")(h)
    model = keras.Model(x, L.Dense(2, name="head")(h))
    quantized, report = kq.quantize(
        model, quantizing.data(40, 6, 8), bits=2, method="nearest", verbose=0
    )
    # Weights, scales, biases.
    expected = {
        "grouped": (3 * 2 * 8, 8, 8),
        "separable/depthwise": (3 * 8, 8, 0),
        "separable/pointwise": (8 * 6, 6, 6),
        "gru/kernel": (6 * 15, 15, 30),
        "gru/recurrent": (5 * 15, 15, 0),
        "time/dense": (5 * 3, 3, 3),
        "head": (3 * 2, 2, 2),
    }
    assert [layer.name for layer in report.layers] == list(expected)
    for layer, (weights, scales, biases) in zip(
        report.layers, expected.values()
    ):
        packed = -(-weights * 2 // 8) + 4 * (scales + biases)
        assert layer.packed_bytes == packed, layer.name
        assert layer.float32_bytes == 4 * (weights + biases), layer.name
        assert layer.num_inputs * layer.num_outputs == weights
    assert report.float32_bytes == 4 * model.count_params()
    assert report.unchanged_bytes == 0
    assert_same_as_the_file(report, quantized)


@pytest.mark.once
def test_plot(report):
    pytest.importorskip("matplotlib").use("agg")
    from matplotlib import pyplot

    ax = report.plot()
    heights = [list(line.get_ydata()) for line in ax.lines]
    assert heights[:2] == [[0.5, 0.5], [0.123456, 0.123456]]
    assert heights[-1] == [0.25, 0.25] and ax.get_ylim()[0] == 0
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == [
        "nearest",
        "gptq+scales",
        "descent+scales",
        "qubo",
        "qubo, held out",
    ]
    assert report.plot(ax) is ax
    pyplot.close("all")
