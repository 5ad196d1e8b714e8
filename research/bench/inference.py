"""Time of a prediction with `kq.inference.Predictor`.

Networks with random weights predict batches on one thread:

- 784-1024-1024-10 with binary and with real activations (`hard_tanh`);
- the network of `research/cifar10` with binary activations and with ReLU;
- VGG-small, which has convolutions of 128, 128, 256, 256, 512 and 512 filters
  and a dense layer of 10, with binary activations and with ReLU. `real ends`
  has real weights in the first and in the last layer.

All weights of the others have 1 bit. The times of `Predictor` and of Keras
(`model.predict_on_batch`, compiled) are divided by that of ONNX Runtime with
float32 weights, with which they take turns (see `timing.py`).

All of them must give the same predictions.
"""

import dataclasses
import pathlib
import tempfile
import time

import numpy as np
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.inference import products
from research.bench import timing
from research.cifar10 import export
from research.engine import tables

HELP = "time of predictions on a CPU (3 minutes)"
LABELS = {"predictor": "Predictor", "keras": "Keras"}
SIZES = (784, 1024, 1024, 10)
FILTERS = (128, 128, 256, 256, 512, 512)
WIDTH = 64  # of the network of research/cifar10
ROWS, IMAGES = (1, 256), (1, 64)  # samples per batch
# Seconds of a block and of all blocks of a side, and numbers of blocks.
SECONDS, TOTAL, BLOCKS, QUICK_BLOCKS = 0.02, 1.5, (3, 25), 3


def dense(activation):
    """Returns the network of dense layers."""
    model = keras.Sequential([keras.layers.InputLayer(SIZES[:1])])
    for units in SIZES[1:]:
        is_last = units == SIZES[-1]
        model.add(
            kq.layers.BinaryDense(
                units, activation=None if is_last else activation, use_bias=True
            )
        )
    return model


def vgg(activation, has_real_ends=False):
    """Returns VGG-small. Binary activations come after the pooling."""
    layers = keras.layers
    model = keras.Sequential([layers.InputLayer(export.IMAGE)])
    for index, filters in enumerate(FILTERS):
        is_real = has_real_ends and index == 0
        kind = layers.Conv2D if is_real else kq.layers.BinaryConv2D
        model.add(kind(filters, 3, padding="same", use_bias=False))
        if index % 2 and activation == "binary":
            model.add(layers.MaxPooling2D())
        model.add(layers.BatchNormalization())
        model.add(layers.Activation(activation))
        if index % 2 and activation != "binary":
            model.add(layers.MaxPooling2D())
    model.add(layers.Flatten())
    kind = layers.Dense if has_real_ends else kq.layers.BinaryDense
    model.add(kind(export.CLASSES))
    return model


NETWORKS = {
    "784-1024-1024-10, binary": (lambda: dense("binary"), ROWS),
    "784-1024-1024-10, hard_tanh": (lambda: dense("hard_tanh"), ROWS),
    "CIFAR-10, binary": (lambda: export.network(WIDTH, "binary"), IMAGES),
    "CIFAR-10, ReLU": (lambda: export.network(WIDTH, "relu"), IMAGES),
    "VGG-small, binary": (lambda: vgg("binary"), IMAGES),
    "VGG-small, binary, real ends": (lambda: vgg("binary", True), IMAGES),
    "VGG-small, ReLU": (lambda: vgg("relu"), IMAGES),
}


def measure(quick):
    """Measures all networks."""
    found = {}
    for name, (create, batches) in NETWORKS.items():
        found[name] = _network(name, create(), batches, quick)
        keras.backend.clear_session()
    variants = products.variants()
    return {"kernels": variants[0] if variants else "NumPy", "networks": found}


def _network(name, model, batches, quick):
    rng = np.random.default_rng(0)
    _randomize(model, rng)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.kq")
        kq.export.packed(model, path)
        found = {
            "float": 4 * model.count_params(),
            "packed": path.stat().st_size,
            "batches": {},
        }
        predictor = kq.inference.Predictor(path)
        yardstick = _onnx_runner(model, pathlib.Path(folder, "float.onnx"))
    model.compile()
    functions = {"predictor": predictor, "keras": model.predict_on_batch}
    for batch in batches:
        # Integers, so that rounding errors do not change signs.
        x = rng.integers(-8, 9, (batch, *model.input_shape[1:]))
        x = x.astype("float32")
        expected = yardstick(x)
        for function in functions.values():
            np.testing.assert_allclose(
                function(x), expected, rtol=1e-4, atol=1e-3
            )
        base, sides = timing.compare(
            _side(yardstick, x, quick),
            {side: _side(f, x, quick) for side, f in functions.items()},
            show=lambda text: show_status(f"{name}: {text}"),
        )
        found["batches"][batch] = {
            "yardstick": dataclasses.asdict(base),
            "sides": {k: dataclasses.asdict(t) for k, t in sides.items()},
        }
    return found


def _randomize(model, rng):
    """Sets biases and batch normalizations such that no sum is exactly zero."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            gamma, beta, mean = rng.normal(size=(3, layer.gamma.shape[0]))
            variance = rng.uniform(0.5, 2.0, len(mean))
            layer.set_weights([gamma, beta, mean, variance])
        elif getattr(layer, "use_bias", False):
            layer.bias.assign(rng.normal(scale=0.1, size=layer.bias.shape))
        if type(layer) is keras.layers.Conv2D:  # its sums are then exact
            layer.kernel.assign(np.round(layer.kernel.numpy() * 256) / 256)


def _onnx_runner(model, path):
    """Returns the predictions of the float network, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    stock = kq.export.inference_model(model)
    stock.export(str(path), format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"]
    )
    (name,) = (each.name for each in session.get_inputs())
    return lambda x: session.run(None, {name: x})[0]


def _side(function, x, quick):
    """Returns blocks of about `SECONDS` each."""
    function(x)
    start = time.perf_counter()
    function(x)
    seconds = time.perf_counter() - start
    steps = max(1, round(SECONDS / seconds))
    low, high = BLOCKS
    blocks = max(low, min(high, round(TOTAL / (steps * seconds))))

    def block():
        for _ in range(steps):
            function(x)

    return timing.Side(
        block, steps=steps, blocks=QUICK_BLOCKS if quick else blocks
    )


# The table of the documentation


def rows(result):
    """Returns the ratios of CPU times by network and side."""
    return {
        f"{name}, batch {batch}": {
            LABELS[side]: times["cpu_ratios"]
            for side, times in found["sides"].items()
        }
        for name, network in result["networks"].items()
        for batch, found in network["batches"].items()
    }


def blocks(result):
    """Returns the block `inference`."""
    head = ["network", "time of `Predictor`"]
    head += [f"{label} / ONNX Runtime" for label in LABELS.values()]
    head += ["float32 weights", "packed file"]
    lines = []
    for name, network in result["networks"].items():
        for batch, found in network["batches"].items():
            sides = found["sides"]
            seconds = sides["predictor"]["cpu"]
            ratios = [timing.text(sides[s]["cpu_ratios"]) for s in LABELS]
            size = [f"{network[k] / 1000:,.0f} kB" for k in ("float", "packed")]
            lines.append(
                [
                    f"{name}, batch {batch}",
                    f"{1000 * seconds:,.2f} ms",
                    *ratios,
                    *size,
                ]
            )
    return {
        "inference": f"{tables.markdown_table(head, lines)}\n\n"
        "CPU times of a call on one thread. The ratios are the median, with "
        f"the range. C kernels: {result['kernels']}."
    }
