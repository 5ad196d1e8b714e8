"""The suites by name."""

from research.bench.annealer import packing
from research.bench.annealer import shared_calls
from research.bench.export import suite as export
from research.bench.inference import suite as inference
from research.bench.quantize import suite as quantize
from research.bench.solvers import solver
from research.bench.steps import gpu_step
from research.bench.steps import recording
from research.bench.steps import scaling
from research.bench.steps import step
from research.bench.training import accuracy
from research.bench.training import quality

SUITES = {
    "step": step,
    "solver": solver,
    "scaling": scaling,
    "recording": recording,
    "packing": packing,
    "quantize": quantize,
    "export": export,
    "inference": inference,
    "shared-calls": shared_calls,
    "accuracy-per-second": accuracy,
    "quality": quality,
}
# The same for `--device gpu`.
GPU_SUITES = {"step": gpu_step}


def on_device(device):
    """Returns the suites that measure on a device, `"cpu"` or `"gpu"`."""
    return GPU_SUITES if device == "gpu" else SUITES
