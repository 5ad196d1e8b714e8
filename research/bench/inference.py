"""Time of a prediction with `kq.inference.Predictor`.

The network 784-1024-1024-10 with random weights of 1 bit predicts batches of 1
and 256 samples, with binary and with real activations (`hard_tanh`), on one
thread. The times of the others are divided by that of `Predictor`, with which
they take turns (see `timing.py`):

- `keras`: `model.predict_on_batch` of the same model, compiled,
- `keras-xla`: the same with `jit_compile=True`,
- `onnxruntime`: the same network with float32 weights in ONNX Runtime,
- `numpy`: `Predictor(kernels="numpy")`.

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
from research.bench import timing
from research.engine import tables

HELP = "time of predictions on a CPU (1 minute)"
ACTIVATIONS = ("binary", "hard_tanh")
LABELS = {
    "keras": "Keras",
    "keras-xla": "Keras with XLA",
    "onnxruntime": "ONNX Runtime",
    "numpy": "NumPy kernels",
}
BATCHES = (1, 256)
SIZES = (784, 1024, 1024, 10)
SECONDS, BLOCKS, QUICK_BLOCKS = 0.02, 25, 6


def measure(quick):
    """Measures all networks."""
    return {
        activation: _network(activation, quick) for activation in ACTIVATIONS
    }


def _network(activation, quick):
    model = keras.Sequential([keras.layers.InputLayer(SIZES[:1])])
    for units in SIZES[1:]:
        is_last = units == SIZES[-1]
        model.add(
            kq.layers.BinaryDense(
                units,
                activation=None if is_last else activation,
                # No sum is then exactly zero.
                bias_initializer=keras.initializers.RandomNormal(stddev=0.1),
            )
        )
    predictor = kq.inference.Predictor(model)
    floats = sum(weight.nbytes for weight in model.get_weights())
    found = {
        "kernels": predictor.kernels,
        "memory": floats / predictor.weight_bytes,
        "batches": {},
    }
    functions = {name: _function(name, model) for name in LABELS}
    functions = {name: f for name, f in functions.items() if f is not None}
    # Integers, so that rounding errors do not change signs.
    rng = np.random.default_rng(0)
    for batch in BATCHES:
        x = rng.integers(0, 256, (batch, SIZES[0])).astype("float32")
        expected = predictor(x)
        for function in functions.values():
            np.testing.assert_allclose(
                function(x), expected, rtol=1e-4, atol=1e-3
            )
        blocks = QUICK_BLOCKS if quick else BLOCKS
        base, sides = timing.compare(
            _side(predictor, x, blocks),
            {name: _side(f, x, blocks) for name, f in functions.items()},
            show=lambda text: show_status(f"{activation}: {text}"),
        )
        found["batches"][batch] = {
            "yardstick": dataclasses.asdict(base),
            "sides": {k: dataclasses.asdict(t) for k, t in sides.items()},
        }
    return found


def _function(name, model):
    """Returns the predictions of a side, or `None` if it is not installed."""
    if name == "numpy":
        return kq.inference.Predictor(model, kernels="numpy")
    if name == "onnxruntime":
        try:
            return _onnx_runner(model)
        except ImportError:
            return None
    copied = keras.models.clone_model(model)
    copied.set_weights(model.get_weights())
    copied.compile(jit_compile=name == "keras-xla")
    return copied.predict_on_batch


def _onnx_runner(model):
    """Returns the predictions of the float network, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder, "float.onnx"))
        stock = kq.export.inference_model(model)
        stock.export(path, format="onnx", verbose=False)
        session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
    (name,) = (each.name for each in session.get_inputs())
    return lambda x: session.run(None, {name: x})[0]


def _side(function, x, blocks):
    """Returns blocks of about `SECONDS` each."""
    function(x)
    start = time.perf_counter()
    function(x)
    steps = max(1, round(SECONDS / (time.perf_counter() - start)))

    def block():
        for _ in range(steps):
            function(x)

    return timing.Side(block, steps=steps, blocks=blocks)


# The table of the documentation


def rows(result):
    """Returns the ratios of CPU times by network and side."""
    return {
        f"{activation}, batch {batch}": {
            LABELS[side]: times["cpu_ratios"]
            for side, times in found["sides"].items()
        }
        for activation, network in result.items()
        for batch, found in network["batches"].items()
    }


def blocks(result):
    """Returns the block `inference`."""
    found = rows(result)
    head = ["activation", *LABELS.values()]
    lines = [
        [
            name,
            *(
                timing.text(row[side]) if side in row else "-"
                for side in LABELS.values()
            ),
        ]
        for name, row in found.items()
    ]
    memory = {network["memory"] for network in result.values()}
    return {
        "inference": f"{tables.markdown_table(head, lines)}\n\n"
        "CPU time / CPU time of `Predictor`, median and range. The weights "
        f"need {min(memory):.0f} times less memory than in float32."
    }
