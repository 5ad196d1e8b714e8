"""Exported files in their runtimes, with few bits per binary weight."""

import exporting
import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras

WIDE = (200, 96)


def wide(**arguments):
    return exporting.randomize(
        keras.Sequential(
            [
                keras.layers.InputLayer((WIDE[0],)),
                kq.layers.BinaryDense(WIDE[1], **arguments),
                keras.layers.BatchNormalization(),
                keras.layers.ReLU(),
                kq.layers.BinaryDense(70, **arguments),
            ]
        )
    )


def assert_close(actual, expected):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * scale)


def run_onnx(path, inputs):
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)
    arrays = inputs if isinstance(inputs, list) else [inputs]
    names = [each.name for each in session.get_inputs()]
    feeds = {name: np.asarray(each) for name, each in zip(names, arrays)}
    return session.run(None, feeds)[0]


def run_litert(path, inputs):
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        Interpreter = tf.lite.Interpreter  # an older version of the same
    interpreter = Interpreter(str(path), num_threads=1)
    arrays = inputs if isinstance(inputs, list) else [inputs]
    arrays = [np.asarray(each) for each in arrays]
    runner = interpreter.get_signature_runner()
    names = list(runner.get_input_details())
    by_size = {tuple(each.shape[1:]): each for each in arrays}
    details = runner.get_input_details()
    feeds = {name: by_size[tuple(details[name]["shape"][1:])] for name in names}
    (output,) = runner(**feeds).values()
    return output


def write_and_run(name, model, path):
    """Exports a model, and compares the outputs of its runtime."""
    if name == "onnx":
        pytest.importorskip("tf2onnx")
        if not _keras.KERAS_3:
            pytest.skip("Keras 3 exports ONNX files")
    getattr(kq.export, name)(model, path)
    inputs = exporting.batch(model)
    run = {"onnx": run_onnx, "litert": run_litert}[name]
    assert_close(run(path, inputs), exporting.predict(model, inputs))


@pytest.mark.parametrize(
    "bits",
    [1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (2, 3)), 4],
)
@pytest.mark.parametrize("name, stored", [("onnx", 1244), ("litert", 2244)])
def test_few_bits_are_stored(name, stored, bits, tmp_path):
    path = tmp_path / "model"
    write_and_run(name, wide(bits=bits, output_scale="channel"), path)
    weights = WIDE[0] * WIDE[1] + WIDE[1] * 70
    size = weights * int(str(stored)[bits - 1]) / 8
    assert path.stat().st_size < size + (10_000 if name == "onnx" else 16_000)
    if name == "onnx":  # only standard operators
        onnx = pytest.importorskip("onnx")
        assert {node.domain for node in onnx.load(path).graph.node} == {""}


@pytest.mark.parametrize("name", ["onnx", "litert"])
def test_convolutions_shrink(name, tmp_path):
    """Both converters transpose the kernel."""
    model = keras.Sequential(
        [
            keras.layers.InputLayer((6, 6, 16)),
            kq.layers.BinaryConv2D(64, 3),
            keras.layers.Flatten(),
        ]
    )
    write_and_run(name, exporting.randomize(model), tmp_path / "model")
    floats = 4 * model.count_params()
    assert (tmp_path / "model").stat().st_size < floats / 3


@pytest.mark.parametrize("model", ["conv", "graph", "attention", "twice"])
@pytest.mark.parametrize("name", ["onnx", "litert"])
def test_every_layer(name, model, tmp_path):
    model = exporting.randomize(exporting.MODELS[model]())
    write_and_run(name, model, tmp_path / "model")


@pytest.mark.parametrize("bits", [1, 2])
def test_litert_with_batch_normalization_before_a_layer(bits, tmp_path):
    """The converter multiplies it into the kernel: one scale per input."""
    model = keras.Sequential(
        [
            keras.layers.InputLayer((WIDE[0],)),
            keras.layers.ReLU(),
            keras.layers.BatchNormalization(),
            kq.layers.BinaryDense(WIDE[1], bits=bits),
        ]
    )
    path = tmp_path / "model.tflite"
    write_and_run("litert", exporting.randomize(model), path)
    assert path.stat().st_size < WIDE[0] * WIDE[1] * 2 / 8 + 8_000


@pytest.mark.skipif(not _keras.KERAS_3, reason="Keras 3 exports OpenVINO")
def test_openvino(tmp_path):
    openvino = pytest.importorskip("openvino")
    model = wide()
    path = str(tmp_path / "model.xml")
    stock = kq.export.inference_model(model)
    stock.export(path, format="openvino", verbose=False)
    inputs = exporting.batch(model)
    compiled = openvino.compile_model(
        path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    assert_close(compiled(inputs)[0], exporting.predict(model, inputs))


def test_saved_model_replaces_only_saved_models(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    model = exporting.randomize(exporting.dense())
    inputs = exporting.batch(model)
    path = tmp_path / "model"
    kq.export.saved_model(model, "~/model")
    exporting.randomize(model, 3)
    kq.export.saved_model(model, path)
    loaded = tf.saved_model.load(str(path))
    found = loaded.serve(inputs)
    assert_close(found, exporting.predict(model, inputs))
    assert [each.name for each in tmp_path.iterdir()] == ["model"]
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("keep")
    with pytest.raises(ValueError, match="new folder or a SavedModel"):
        kq.export.saved_model(model, other)
    assert (other / "letter.txt").read_text() == "keep"


WRITERS = [kq.export.onnx, kq.export.litert, kq.export.saved_model]


@pytest.mark.parametrize("write", WRITERS, ids=lambda f: f.__name__)
def test_wrong_models_and_paths(write, tmp_path):
    path = tmp_path / "out"
    with pytest.raises(ValueError, match="`keras.models.load_model`"):
        write("model.keras", path)
    with pytest.raises(ValueError, match="Call it on a batch first"):
        write(keras.Sequential([kq.layers.BinaryDense(3)]), path)
    model = exporting.dense()
    for wrong in (tmp_path, ""):
        with pytest.raises(ValueError, match="`path` must be .*Received: path"):
            write(model, wrong)
    assert not list(tmp_path.iterdir())
