"""Writes a model in every format, and runs the files in their runtimes."""

import pathlib

import numpy as np
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq


def _latent(model, path, inputs):
    model.save(path)
    return keras.models.load_model(path, compile=False)(inputs)


def _packed(model, path, inputs):
    kq.export.packed(model, path)
    return kq.export.load_packed(path)(inputs)


def _stock(model, path, inputs):
    kq.export.inference_model(model).save(path)
    return keras.models.load_model(path, compile=False)(inputs)


def _saved_model(model, path, inputs):
    kq.export.saved_model(model, path)
    artifact = tf.saved_model.load(str(path))
    return artifact.serve(inputs)


def _onnx_float(model, path, inputs):
    stock = kq.export.inference_model(model)
    stock.export(str(path), format="onnx", verbose=False)
    return _onnx_runtime(path, inputs)


def _onnx(model, path, inputs):
    kq.export.onnx(model, path)
    return _onnx_runtime(path, inputs)


def _litert_float(model, path, inputs):
    kq.export.litert(kq.export.inference_model(model), path)
    return _litert_runtime(path, inputs)


def _litert(model, path, inputs):
    kq.export.litert(model, path)
    return _litert_runtime(path, inputs)


def _openvino(model, path, inputs):
    import openvino

    stock = kq.export.inference_model(model)
    stock.export(str(path), format="openvino", verbose=False)
    # The default on ARM is less precise.
    compiled = openvino.compile_model(
        str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    return compiled(inputs if isinstance(inputs, list) else [inputs])[0]


def _onnx_runtime(path, inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    arrays = inputs if isinstance(inputs, list) else [inputs]
    names = [each.name for each in session.get_inputs()]
    feeds = {name: np.asarray(each) for name, each in zip(names, arrays)}
    return session.run(None, feeds)[0]


def _litert_runtime(path, inputs):
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(str(path)).get_signature_runner()
    arrays = inputs if isinstance(inputs, list) else [inputs]
    arrays = [np.asarray(each) for each in arrays]
    details = runner.get_input_details()
    feeds = {}
    # Inputs with known sizes first, which match only one array.
    for name in sorted(details, key=lambda name: _unknown(details[name])):
        signature = details[name]["shape_signature"]
        place = next(
            i for i, each in enumerate(arrays) if _fits(each, signature)
        )
        feeds[name] = arrays.pop(place)
    (output,) = runner(**feeds).values()
    return output


def _unknown(details):
    return int((details["shape_signature"] < 0).sum())


def _fits(array, signature):
    sizes = zip(array.shape, signature)
    return array.ndim == len(signature) and all(
        size == known or known < 0 for size, known in sizes
    )


# Name of a format, file name, function, and runtime.
FORMATS = (
    ("`model.save`", "latent.keras", _latent, "Keras and this package"),
    ("`export.packed`", "packed.kq", _packed, "Keras and this package"),
    ("`inference_model`, `save`", "stock.keras", _stock, "Keras"),
    ("`export.saved_model`", "folder", _saved_model, "TensorFlow"),
    ("`inference_model`, ONNX", "f.onnx", _onnx_float, "ONNX Runtime"),
    ("`export.onnx`", "bits.onnx", _onnx, "ONNX Runtime"),
    ("`inference_model`, LiteRT", "f.tflite", _litert_float, "LiteRT"),
    ("`export.litert`", "bits.tflite", _litert, "LiteRT"),
    ("`inference_model`, OpenVINO", "f.xml", _openvino, "OpenVINO"),
)


def measure(model, inputs, folder):
    """Returns the size and the error of every format.

    Args:
        model: Keras model.
        inputs: Array or list of arrays.
        folder: Folder for the files.

    Returns:
        Dictionary from the format to a dictionary with `size` in bytes,
        `difference`, the largest difference of an output relative to the
        largest output, and `problem`, why the format does not run, or `None`.
    """
    expected = np.asarray(model(inputs, training=False))
    found = {}
    for name, file, function, _ in FORMATS:
        path = pathlib.Path(folder, file)
        try:
            outputs = np.asarray(function(model, path, inputs))
        except ImportError as error:
            found[name] = {"problem": f"not installed: {error.name}"}
            continue
        except Exception as error:  # converters raise anything
            text = str(error).strip() or type(error).__name__
            found[name] = {"problem": text.splitlines()[0][:80]}
            continue
        error = np.abs(outputs - expected).max() / np.abs(expected).max()
        found[name] = {
            "problem": None,
            "size": size_of(path),
            "difference": float(error),
        }
    return found


def size_of(path):
    """Returns the size of a file, with its data file, or of a folder."""
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*"))
    data = path.with_suffix(".bin")  # OpenVINO
    extra = data.stat().st_size if path.suffix == ".xml" else 0
    return path.stat().st_size + extra
