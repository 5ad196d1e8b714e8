"""What must be the same for all runs of a folder."""

import json

import numpy as np

from keras_qpsbgd import disk
from keras_qpsbgd.compare import records

FILE = "settings.json"
# Outputs of a network agree to this on another machine.
TOLERANCE = 1e-3


def of(data, model, outputs, **numbers):
    """The settings of a comparison.

    Args:
        data: a `Data`.
        model: a model with the first weights of some seed.
        outputs: what it returns for some rows. They tell apart networks with
            weights of the same shapes.
        **numbers: everything else.
    """
    return {
        "data": data.fingerprint(),
        "weights": [list(weight.shape) for weight in model.weights],
        "outputs": [float(f"{v:.6g}") for v in np.ravel(outputs)[:10]],
        **numbers,
    }


def check(folder, settings):
    """Refuses a folder whose runs were made with other settings.

    Raises:
        ValueError: it holds such runs.
    """
    path = folder / FILE
    if not path.exists():
        return
    present = records.read_json(path)
    differ = [
        name
        for name in settings
        if not _are_equal(name, present.get(name), settings[name])
    ]
    if differ:
        shown = [
            f"{name}={settings[name]} instead of {present.get(name)}"
            if isinstance(settings[name], (int, str)) and name != "data"
            else f"other {name}"
            for name in differ
        ]
        raise ValueError(
            f"`out` must be a new folder, or one of the same comparison: "
            f"{folder} contains runs with other settings. "
            f"Received: {', '.join(shown)}"
        )


def write(folder, settings):
    """Writes them beside the runs."""
    disk.write(folder / FILE, json.dumps(settings, indent=1) + "\n")


def _are_equal(name, before, now):
    if name != "outputs":
        return before == now
    if before is None or len(before) != len(now):
        return False
    return np.allclose(before, now, rtol=TOLERANCE, atol=TOLERANCE)
