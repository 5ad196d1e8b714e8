"""The process that measures the memory of training.

    python -m research.bench.steps.peak_memory INPUTS UNITS BATCH OPTIMIZER

Trains the network inputs-units-10 for three steps with `qpsbgd` or `adam`, and
prints the peak growth of the process memory in bytes since before the model was
created.
"""

import pathlib
import subprocess
import sys

from keras_qpsbgd.optimizers import QPSBGD
from research.bench.steps import step_networks

STEPS = 3


def measure(inputs, units, batch, optimizer):
    """Returns the bytes measured in a separate process."""
    command = [sys.executable, "-m", "research.bench.steps.peak_memory"]
    command += [str(inputs), str(units), str(batch), optimizer]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1])


def main(inputs, units, batch, optimizer):
    before = _resident("VmRSS")
    network = step_networks.Network(
        lambda: step_networks.normalized_mlp(int(inputs), int(units), 10),
        batch=int(batch),
        steps=STEPS,
    )
    if optimizer == "qpsbgd":
        optimizer = QPSBGD(network.rate, seed=0)
    step_networks.Training(network, optimizer).side(STEPS, 1).block()
    print(_resident("VmHWM") - before)


def _resident(field):
    """Returns the current (`VmRSS`) or peak (`VmHWM`) memory in bytes."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith(field):
                return 1024 * int(line.split()[1])
    # Not on Linux, where it would include the memory of the parent process.
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main(*sys.argv[1:])
