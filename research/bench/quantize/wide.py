"""The process that quantizes a wide layer.

    python -m research.bench.quantize.wide INPUTS OUTPUTS ROWS

Prints JSON: the CPU and wall seconds of `kq.quantize` with 1 bit, the peak
memory of the process in bytes, and the output errors.
"""

import json
import resource
import subprocess
import sys
import time

import numpy as np
from tensorflow import keras

import keras_qpsbgd as kq

ONCE = {"name": "native", "preset": "once"}
FACTORS = 64


def measure(inputs, outputs, rows):
    """Returns what a separate process measures."""
    command = [sys.executable, "-m", "research.bench.quantize.wide"]
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
