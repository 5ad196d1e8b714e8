"""The suite `step` on a GPU: a training step relative to a step of Adam.

As on a CPU, the networks train with `model.fit` and the same binary layers, and
all sides of a comparison take turns (see `timing.py`). `fit` compiles the step
with XLA if Keras does so by default, as Keras 3 does on a GPU. The networks are
those of the page `docs/guides/gpu.md`.

Only wall time is reported, because the CPU of the host mostly waits. It
includes the time that TensorFlow and `fit` need to start a step, which is often
longer than the step itself takes on the GPU.
"""

import tensorflow as tf
from joblib import cpu_count as cores
from tensorflow import keras

from research.bench.steps import fit_steps
from research.bench.steps.fit_steps import DEFAULT
from research.bench.steps.fit_steps import GPU_NETWORKS

HELP = "time of a training step on a GPU relative to Adam"
THREADS = (cores(),)

SOLVERS = list(fit_steps.SOLVERS)
# Maximum ratio of wall times, on all networks.
TARGET = 1.5


def names():
    """Returns the names that `--only` accepts."""
    return [*GPU_NETWORKS, *SOLVERS]


def measure(options):
    """Measures the ratios and the times of the yardsticks."""
    solvers = options.wanted(SOLVERS)
    results = {"device": _device_name(), "default": DEFAULT, "networks": {}}
    for name in options.wanted(GPU_NETWORKS):
        results["networks"][name] = fit_steps.measure(
            name, GPU_NETWORKS[name], solvers, options
        )
        keras.backend.clear_session()
    return results


def _device_name():
    device = tf.config.list_physical_devices("GPU")[0]
    details = tf.config.experimental.get_device_details(device)
    return details.get("device_name", "GPU")


def table(results):
    """Returns the ratios of wall time by network and solver."""
    return "\n\n".join(
        fit_steps.table(
            result["networks"],
            "wall",
            f"wall time of a step relative to Adam, {result['device']}",
        )
        for result in results.values()
    )


def verdicts(results):
    """Checks the target of the default preset."""
    found = []
    for result in results.values():
        for name, row in result["networks"].items():
            if DEFAULT not in row["sides"]:
                continue
            ratio = row["sides"][DEFAULT]["wall_ratio"]
            text = f"step / Adam, {name}, {DEFAULT}, wall time on the GPU"
            text = f"{text}: {ratio:.2f} (<= {TARGET:g})"
            found.append((ratio <= TARGET, text))
    return found
