"""Sizes of the files of quantized networks.

Networks of layers that have no binary version, and two networks of
`keras.applications`, are quantized to 2 and to 4 bits and written as packed,
ONNX and LiteRT files. The weights are random, which does not change the sizes.
"""

import pathlib
import tempfile
import warnings

import numpy as np
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.export import container
from keras_qpsbgd.export import saving
from research.bench.export import text_of_size
from research.engine import tables

HELP = "sizes of files of quantized networks (5 minutes)"
L = keras.layers
# The shape of an input, and the layers.
SMALL = {
    "SeparableConv2D": (
        (16, 16, 64),
        lambda: [
            L.SeparableConv2D(128, 3, activation="relu"),
            L.SeparableConv2D(256, 3, activation="relu"),
            L.GlobalAveragePooling2D(),
        ],
    ),
    "Conv1D": (
        (50, 64),
        lambda: [
            L.Conv1D(128, 5, activation="relu"),
            L.Conv1D(96, 5, activation="relu"),
            L.GlobalAveragePooling1D(),
        ],
    ),
    "Conv3D": (
        (8, 8, 8, 16),
        lambda: [
            L.Conv3D(32, 3, activation="relu"),
            L.Conv3D(64, 3, activation="relu"),
            L.GlobalAveragePooling3D(),
        ],
    ),
    "Conv2DTranspose": (
        (5, 5, 64),
        lambda: [
            L.Conv2DTranspose(64, 3, 2, activation="relu"),
            L.Conv2DTranspose(64, 3, 2, activation="relu"),
            L.GlobalAveragePooling2D(),
        ],
    ),
    "LSTM": ((20, 64), lambda: [L.LSTM(128)]),
}
LARGE = ("MobileNetV2", "ResNet50")
IMAGE = (32, 32, 3)
BITS = (2, 4)
WRITERS = {"ONNX": kq.export.onnx, "LiteRT": kq.export.litert}


def measure(quick):
    """Returns the sizes in bytes of all networks, by name."""
    results = {}
    for name in [*SMALL, *(() if quick else LARGE)]:
        show_status(name)
        model = _network(name)
        results[name] = {
            "floats": 4 * model.count_params(),
            **{str(bits): _sizes(model, bits) for bits in BITS},
        }
        keras.backend.clear_session()
    return results


def _network(name):
    keras.utils.set_random_seed(0)
    if name in LARGE:
        build = getattr(keras.applications, name)
        return build(weights=None, input_shape=IMAGE, classes=10)
    shape, layers = SMALL[name]
    return keras.Sequential([keras.Input(shape), *layers(), L.Dense(10)])


def _sizes(model, bits):
    """Returns the sizes of the files of a model with few bits.

    `real` is the part of the packed file with real weights, which are biases
    and batch normalizations.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, *model.input_shape[1:])).astype("float32")
    with warnings.catch_warnings():
        # Few samples give fewer rows than some layers have inputs.
        warnings.simplefilter("ignore")
        quantized, report = kq.quantize(
            model, x, bits, method="nearest", seed=0, verbose=0
        )
    content = saving.content_of(quantized)
    sizes = {
        "compression": report.compression,
        "real": sum(
            len(data)
            for entry, data in container.decode(content)[1]
            if entry.bits is None
        ),
        "packed": len(content),
    }
    for name, write in WRITERS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "model")
            try:
                write(quantized, path)
                sizes[name] = path.stat().st_size
            except (ImportError, ValueError):  # a recurrent layer in LiteRT
                sizes[name] = None
    return sizes


def blocks(result):
    """Returns the block `sizes`."""
    names = ("packed", *WRITERS)
    head = ["network", "bits", "float32", *names, "real weights", "report"]
    rows = []
    for network, found in result.items():
        for bits in BITS:
            sizes, floats = found[str(bits)], found["floats"]
            files = [
                "-"
                if sizes[name] is None
                else text_of_size(sizes[name], floats)
                for name in names
            ]
            floats = f"{floats / 1000:,.0f}"
            real = f"{sizes['real'] / 1000:,.1f}"
            compression = f"{sizes['compression']:.1f}x"
            rows.append([network, str(bits), floats, *files, real, compression])
    return {
        "sizes": f"{tables.markdown_table(head, rows)}\n\n"
        "Sizes in kB (1,000 bytes). `float32` is the size of the weights of "
        "the given network, and `real weights` the part of the packed file "
        "with biases and batch normalizations. `report` is the compression in "
        "the report of `kq.quantize`, without the configuration of the model."
    }
