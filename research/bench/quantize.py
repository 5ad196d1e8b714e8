"""CPU time of `kq.quantize` by method, and a wide layer.

- `network`: 784-512-512-10 with random weights is quantized to 1 bit with
  5,000 MNIST images. The time of every method is divided by that of `gptq`. The
  methods take turns (see `timing.py`).
- `wide`: CPU time and peak memory of a layer of 4,608 x 512 weights, a
  3 x 3 convolution from 512 to 512 channels, in a separate process.

    python -m research.bench.quantize INPUTS OUTPUTS ROWS

is this process. It prints JSON: the CPU and wall seconds of `kq.quantize` with
1 bit, the peak memory of the process in bytes, and the output errors.
"""

import dataclasses
import json
import resource
import subprocess
import sys
import time

import numpy as np
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.comparison.task import random
from research.bench import timing
from research.experiments.tasks.mnist import images

HELP = "time and memory of kq.quantize (10 minutes)"
THREADS = (1,)

PARTS = ("network", "wide")
METHODS = ("nearest", "descent", "qubo")
YARDSTICK = "gptq"
UNITS = (512, 512)
ROWS, QUICK_ROWS = 5_000, 500
WIDE, QUICK_WIDE = (4608, 512, 10_000), (512, 64, 1_000)
ONCE = {"name": "native", "preset": "once"}
FACTORS = 64


def names():
    """Returns the names that `--only` accepts."""
    return [*PARTS, *METHODS]


def measure(options):
    """Measures both parts."""
    results = {}
    for part in options.wanted(PARTS):
        if part == "wide":
            show_status("a wide layer")
            size = QUICK_WIDE if options.quick else WIDE
            results[part] = {"size": size, **measure_wide(*size)}
        else:
            results[part] = _network(options)
    return results


def _network(options):
    (x, _), _ = images(options.data_dir, random(0, 2))
    x = x[: QUICK_ROWS if options.quick else ROWS]
    model = keras.Sequential([keras.layers.InputLayer(x.shape[1:])])
    for units in UNITS:
        model.add(keras.layers.Dense(units, "relu"))
    model.add(keras.layers.Dense(10))

    def side(method):
        def block():
            kq.quantize(
                model, x, backend=ONCE, method=method, seed=0, verbose=0
            )

        return timing.Side(block, steps=1, blocks=2 if options.quick else 5)

    base, found = timing.compare(
        side(YARDSTICK),
        {method: side(method) for method in options.wanted(METHODS)},
        show=show_status,
    )
    return {
        "yardstick": dataclasses.asdict(base),
        "sides": {name: dataclasses.asdict(t) for name, t in found.items()},
    }


def table(results):
    """Returns the CPU times and ratios, and the wide layer."""
    parts = []
    for result in results.values():
        if "network" in result:
            base = result["network"]["yardstick"]
            lines = [
                "Quantization of 784-512-512-10, 1 bit",
                f"{'method':<10}{'CPU s':>9}{'/ gptq':>9}",
                "-" * 28,
                f"{YARDSTICK:<10}{base['cpu']:>9.2f}{1:>9.2f}",
            ]
            lines += [
                f"{name:<10}{times['cpu']:>9.2f}{times['cpu_ratio']:>9.2f}"
                for name, times in result["network"]["sides"].items()
            ]
            parts.append("\n".join(lines))
        if "wide" in result:
            found = result["wide"]
            inputs, outputs, rows = found["size"]
            errors = ", ".join(
                f"{name} {error:.4f}" for name, error in found["errors"].items()
            )
            parts.append(
                f"Layer {inputs} x {outputs}, {rows:,} rows, 1 bit: "
                f"{found['cpu'] / 60:.1f} CPU minutes, "
                f"{found['peak'] / 2**30:.2f} GiB\n(output error: {errors})"
            )
    return "\n\n".join(parts)


# A wide layer


def measure_wide(inputs, outputs, rows):
    """Returns what a separate process measures."""
    command = [sys.executable, "-m", "research.bench.quantize"]
    command += map(str, (inputs, outputs, rows))
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout.splitlines()[-1])


def calibration_rows(inputs, rows, seed=0):
    """Returns rows as after ReLU, correlated by a few common factors."""
    random = np.random.default_rng(seed)
    common = random.normal(size=(rows, FACTORS)).astype("float32")
    common = common @ random.normal(size=(FACTORS, inputs)).astype("float32")
    own = random.normal(size=(rows, inputs)).astype("float32")
    return np.maximum(common / FACTORS**0.5 + own, 0.0)


def main(inputs, outputs, rows):
    """Quantizes a wide layer in this process and prints the result."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.layers.InputLayer((inputs,)), keras.layers.Dense(outputs)]
    )
    x = calibration_rows(inputs, rows)
    wall, cpu = time.perf_counter(), time.process_time()
    _, report = kq.quantize(model, x, backend=ONCE, seed=0, verbose=0)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak *= 1 if sys.platform == "darwin" else 1024
    errors = report.layers[0].errors
    print(
        json.dumps({"cpu": cpu, "wall": wall, "peak": peak, "errors": errors})
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
