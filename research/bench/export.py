"""Sizes of exported files, and their outputs in other runtimes.

Every network is written in every format, with 1 bit per weight, and run in the
runtime of the format. The outputs are compared with those of Keras. Formats
whose runtime is not installed are listed as such.
"""

import pathlib
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.export import container
from keras_qpsbgd.export import saving
from research.engine import tables

HELP = "sizes and outputs of exported files (1 minute)"


def _dense():
    model = keras.Sequential([keras.layers.InputLayer((784,))])
    for units in (1024, 1024):
        model.add(kq.layers.BinaryDense(units))
        model.add(keras.layers.BatchNormalization())
        model.add(keras.layers.Activation("hard_tanh"))
    model.add(kq.layers.BinaryDense(10))
    return model


def _conv():
    model = keras.Sequential([keras.layers.InputLayer((28, 28, 1))])
    for filters in (64, 128):
        model.add(kq.layers.BinaryConv2D(filters, 3, padding="same"))
        model.add(keras.layers.BatchNormalization())
        model.add(keras.layers.ReLU())
        model.add(keras.layers.MaxPooling2D())
    model.add(keras.layers.GlobalAveragePooling2D())
    model.add(kq.layers.BinaryDense(10))
    return model


def _attention():
    inputs = keras.Input((16, 128))
    layer = kq.layers.BinaryMultiHeadAttention(4, 32)
    hidden = keras.layers.LayerNormalization()(layer(inputs, inputs))
    hidden = kq.layers.BinaryDense(256, activation="relu")(hidden)
    return keras.Model(inputs, kq.layers.BinaryDense(128)(hidden))


def _graph():
    x, a = keras.Input((1433,)), keras.Input((None,))
    hidden = kq.layers.BinaryGraphConv(64, "relu")([x, a])
    return keras.Model([x, a], kq.layers.BinaryGraphConv(7)([hidden, a]))


NETWORKS = {
    "784-1024-1024-10": _dense,
    "convolutions": _conv,
    "attention": _attention,
    "graph": _graph,
}


def measure(quick):
    """Measures all networks."""
    results = {}
    for name in NETWORKS:
        show_status(name)
        keras.utils.set_random_seed(0)
        model = NETWORKS[name]()
        with tempfile.TemporaryDirectory() as folder:
            formats = measure_formats(model, _inputs(model), folder)
        content = saving.content_of(model)
        kernels = [
            (len(data), int(np.prod(entry.shape)))
            for entry, data in container.decode(content)[1]
            if entry.bits is not None
        ]
        results[name] = {
            "floats": 4 * sum(int(np.prod(w.shape)) for w in model.weights),
            "kernel_ratio": 4
            * sum(count for _, count in kernels)
            / sum(size for size, _ in kernels),
            "formats": formats,
        }
    return results


def _inputs(model):
    rng = np.random.default_rng(0)
    if len(model.inputs) == 1:
        shape = [each or 32 for each in model.inputs[0].shape]
        return rng.normal(size=shape).astype("float32")
    x = rng.normal(size=(32, model.inputs[0].shape[-1])).astype("float32")
    a = (rng.random((32, 32)) < 0.1).astype("float32")
    return [x, kq.layers.BinaryGraphConv.preprocess(np.maximum(a, a.T))]


# The table in the documentation


def markdown(networks):
    """Returns a Markdown table of sizes, relative to float weights.

    Args:
        networks: Dictionary, the result of the suite for one thread count.
    """
    first = next(iter(networks.values()))["formats"]
    head = ["format", *networks, "largest difference"]
    rows = []
    for name in first:
        found = [each["formats"][name] for each in networks.values()]
        worst = [each["difference"] for each in found if not each["problem"]]
        rows.append(
            [
                name,
                *(
                    _size(each, network["floats"])
                    for each, network in zip(found, networks.values())
                ),
                f"{max(worst):.0e}" if worst else "-",
            ]
        )
    floats = ["weights as float32"]
    floats += [_kilobytes(each["floats"]) for each in networks.values()]
    return tables.markdown_table(head, [[*floats, "-"], *rows])


def blocks(result):
    """Returns the block `export`."""
    return {
        "export": f"{markdown(result)}\n\n"
        "Sizes in kB (1,000 bytes), with 1 bit per weight. The last column is "
        "the largest difference from the outputs of Keras in the runtime of "
        "the format, relative to the largest output."
    }


def _size(found, floats):
    return found["problem"] or text_of_size(found["size"], floats)


def text_of_size(size, floats):
    """Returns a size in kB and its ratio to the size of the float weights."""
    return f"{_kilobytes(size)} ({_ratio(size / floats)})"


def _ratio(ratio):
    """Returns a relative size, for example "27x smaller" for 1/27."""
    factor = max(ratio, 1 / ratio)
    text = f"{factor:.0f}x" if factor >= 10 else f"{factor:.1f}x"
    if text == "1.0x":
        return "about the same"
    return f"{text} {'larger' if ratio > 1 else 'smaller'}"


def _kilobytes(size):
    return f"{size / 1000:,.0f}"


# Formats and their runtimes


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
    folder = path.with_suffix(".folder")
    kq.export.saved_model(model, folder)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder))
    path.write_bytes(converter.convert())
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


def measure_formats(model, inputs, folder):
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
