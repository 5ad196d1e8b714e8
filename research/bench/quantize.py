"""CPU time of `kq.quantize`: networks of Keras, methods, and a wide layer.

- `ResNet50` and others: networks of `keras.applications` with random weights
  and inputs of 64 x 64 pixels. The CPU time of the forward passes of
  `kq.quantize`, and of whole calls with several methods, is divided by that of
  `model.predict` on the same images.
- `wide`: CPU time and peak memory of a layer of 4,608 x 512 weights, a
  3 x 3 convolution from 512 to 512 channels.

    python -m research.bench.quantize NETWORK IMAGES METHOD
    python -m research.bench.quantize wide INPUTS OUTPUTS ROWS METHOD

are the processes of the first and the last part. They print JSON.
"""

import json
import resource
import subprocess
import sys
import time
import warnings

import numpy as np
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.quantization.forward import ForwardPass
from research.engine import tables

HELP = "time and memory of kq.quantize (12 minutes)"
NETWORKS = ("MobileNetV2", "ResNet50")
NETWORK_METHODS = ("nearest", "gptq", "qubo")
WIDE_METHODS = ("gptq+scales", "descent+scales", "qubo")
SIZE, IMAGES, QUICK_IMAGES = 64, 256, 4
WIDE, QUICK_WIDE = (4608, 512, 10_000), (512, 64, 1_000)
FACTORS = 64


def measure(quick):
    """Measures all parts."""
    results = {}
    for part in (*NETWORKS, "wide"):
        show_status(part)
        if part == "wide":
            size = QUICK_WIDE if quick else WIDE
            results[part] = {
                "size": size,
                "methods": {
                    method: _process("wide", *size, method)
                    for method in WIDE_METHODS
                },
            }
        else:
            count = QUICK_IMAGES if quick else IMAGES
            methods = NETWORK_METHODS[:2] if quick else NETWORK_METHODS
            results[part] = {
                "images": count,
                "methods": {
                    method: _process(part, count, method) for method in methods
                },
            }
    return results


# The tables of the documentation


def blocks(result):
    """Returns the blocks `quantize` and `quantize-wide`."""
    head = ["network", "method", "forward passes", "whole call", "memory"]
    lines = [
        [
            name,
            f"`{method}`",
            f"{found['forward'] / found['predict']:.1f}",
            f"{found['cpu'] / found['predict']:.0f}",
            f"{found['peak'] / 2**30:.1f} GiB",
        ]
        for name in NETWORKS
        for method, found in result[name]["methods"].items()
    ]
    wide = result["wide"]["methods"]
    base = wide[WIDE_METHODS[0]]["cpu"]
    wide_head = ["method", "output error", f"CPU time / `{WIDE_METHODS[0]}`"]
    wide_head += ["memory / H"]
    wide_lines = [
        [
            f"`{method}`",
            f"{found['error']:.4f}",
            f"{found['cpu'] / base:.1f}",
            f"{found['memory']:.1f}",
        ]
        for method, found in wide.items()
    ]
    return {
        "quantize": tables.markdown_table(head, lines),
        "quantize-wide": tables.markdown_table(wide_head, wide_lines),
    }


# The processes


def _process(*arguments):
    """Returns what a separate process measures."""
    command = [sys.executable, "-m", "research.bench.quantize"]
    command += map(str, arguments)
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout.splitlines()[-1])


def network(name, count, method):
    """Quantizes a network of `keras.applications`.

    Args:
        name: String. The name of the network.
        count: Integer. Number of images.
        method: String. See `kq.quantize`.

    Returns:
        Dictionary of CPU seconds: of `predict`, of the forward passes, and of
        the whole call (`cpu`). Also the memory, see `_memory`, and the
        compression.
    """
    keras.utils.set_random_seed(0)
    build = getattr(keras.applications, name)
    shape = (SIZE, SIZE, 3)
    model = build(weights=None, input_shape=shape, classes=10)
    x = np.random.default_rng(0).normal(size=(count, *shape)).astype("float32")
    model.predict(x, verbose=0)  # compiles
    start = time.process_time()
    model.predict(x, verbose=0)
    predict = time.process_time() - start

    forward = 0.0
    advance = ForwardPass.advance_to

    def timed(self, layer):
        nonlocal forward
        start = time.process_time()
        advance(self, layer)
        forward += time.process_time() - start

    ForwardPass.advance_to = timed
    before = _peak()
    start = time.process_time()
    with warnings.catch_warnings():
        # Random images give fewer rows than some layers have inputs.
        warnings.simplefilter("ignore")
        _, report = kq.quantize(model, x, method=method, seed=0, verbose=0)
    return {
        "predict": predict,
        "forward": forward,
        "cpu": time.process_time() - start,
        **_memory(before, report),
        "compression": report.compression,
    }


def calibration_rows(inputs, rows, seed=0):
    """Returns rows as after ReLU, correlated by a few common factors."""
    random = np.random.default_rng(seed)
    common = random.normal(size=(rows, FACTORS)).astype("float32")
    common = common @ random.normal(size=(FACTORS, inputs)).astype("float32")
    own = random.normal(size=(rows, inputs)).astype("float32")
    return np.maximum(common / FACTORS**0.5 + own, 0.0)


def wide(inputs, outputs, rows, method):
    """Quantizes a wide layer. Returns its error, CPU time and peak memory."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.layers.InputLayer((inputs,)), keras.layers.Dense(outputs)]
    )
    x = calibration_rows(inputs, rows)
    before = _peak()
    start = time.process_time()
    _, report = kq.quantize(model, x, method=method, seed=0, verbose=0)
    return {
        "cpu": time.process_time() - start,
        **_memory(before, report),
        "error": report.layers[0].error,
    }


def _memory(before, report):
    """Returns the peak memory of the process in bytes.

    `memory` is what `kq.quantize` added, divided by the size of the largest
    matrix H of a layer in float64.
    """
    peak = _peak()
    largest = 8 * max(layer.num_inputs for layer in report.layers) ** 2
    return {"peak": peak, "memory": (peak - before) / largest}


def _peak():
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)


def main(name, *arguments):
    """Measures in this process and prints the result."""
    *numbers, method = arguments
    numbers = [int(number) for number in numbers]
    if name == "wide":
        found = wide(*numbers, method)
    else:
        found = network(name, *numbers, method)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
