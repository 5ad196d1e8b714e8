"""Sizes of exported files, and their outputs in other runtimes.

Every network is written in every format, with 1 bit per weight, and run in the
runtime of the format. The outputs are compared with those of Keras. Formats
whose runtime is not installed are listed as such.
"""

import tempfile

import numpy as np
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.compare.report import canvas
from keras_qpsbgd.export import container
from keras_qpsbgd.export import saving
from research.bench.export import formats_table
from research.bench.export import runtimes

HELP = "sizes and outputs of exported files (1 minute)"
THREADS = (1,)

KERNEL_TARGET, FILE_TARGET = 31, 25
DIFFERENCE_TARGET = 1e-5


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


def names():
    """Returns the names that `--only` accepts."""
    return list(NETWORKS)


def measure(options):
    """Measures all networks."""
    results = {}
    for name in options.wanted(NETWORKS):
        show_status(name)
        keras.utils.set_random_seed(0)
        model = NETWORKS[name]()
        with tempfile.TemporaryDirectory() as folder:
            formats = runtimes.measure(model, _inputs(model), folder)
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


def table(results):
    """Returns the table of the documentation."""
    return formats_table.table(next(iter(results.values())))


def verdicts(results):
    """Checks the targets."""
    found = []
    for result in results.values():
        dense = result.get("784-1024-1024-10")
        if dense:
            packed = dense["formats"]["`export.packed`"]
            ratio = dense["floats"] / packed["size"]
            found += [
                (
                    dense["kernel_ratio"] >= KERNEL_TARGET,
                    f"784-1024-1024-10: float kernels / packed kernels: "
                    f"{dense['kernel_ratio']:.1f} (>= {KERNEL_TARGET})",
                ),
                (
                    ratio >= FILE_TARGET,
                    f"784-1024-1024-10: float weights / packed file: "
                    f"{ratio:.1f} (>= {FILE_TARGET})",
                ),
            ]
        for name, network in result.items():
            differences = [
                each["difference"]
                for each in network["formats"].values()
                if each["problem"] is None
            ]
            worst = max(differences)
            found.append(
                (
                    worst <= DIFFERENCE_TARGET,
                    f"{name}: largest difference in {len(differences)} "
                    f"formats: {worst:.1e} (<= {DIFFERENCE_TARGET:g})",
                )
            )
    return found


def draw(results, path):
    """Draws the sizes of the first network as bars.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    result = next(iter(next(iter(results.values())).values()))
    sizes = {
        name.replace("`", ""): each["size"] / result["floats"]
        for name, each in result["formats"].items()
        if each["problem"] is None
    }
    figure = canvas.figure(6.0, 3.0)
    axes = figure.subplots()
    axes.barh(list(sizes), list(sizes.values()), color="#0072b2")
    axes.invert_yaxis()
    axes.set_xlabel("size / weights as float32")
    axes.spines[["top", "right"]].set_visible(False)
    canvas.save(figure, path)
