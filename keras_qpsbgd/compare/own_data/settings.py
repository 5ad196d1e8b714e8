"""Settings that must be the same for all runs in a folder."""

import json

import numpy as np

from keras_qpsbgd import disk
from keras_qpsbgd.compare import records

FILE = "settings.json"
# On different machines, the outputs of a network agree to this accuracy.
TOLERANCE = 1e-3


def of(data, model, outputs, **numbers):
    """Returns the settings of a comparison.

    Args:
        data: a `Data`.
        model: a model with the initial weights of some seed.
        outputs: its outputs for some rows. They distinguish networks whose
            weights have the same shapes.
        **numbers: all other settings.
    """
    return {
        "data": data.fingerprint(),
        "weights": [list(weight.shape) for weight in model.weights],
        "outputs": [float(f"{v:.6g}") for v in np.ravel(outputs)[:10]],
        **numbers,
    }


def check(folder, settings):
    """Checks that the runs in a folder were made with the same settings.

    Raises:
        ValueError: If they were not.
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
            else f"different {name}"
            for name in differ
        ]
        raise ValueError(
            "`out` must be a new folder or one with runs of the same "
            f"comparison, but {folder} contains runs with different settings. "
            f"Received: {', '.join(shown)}"
        )


def write(folder, settings):
    """Writes the settings to a file in the folder."""
    disk.write(folder / FILE, json.dumps(settings, indent=1) + "\n")


def _are_equal(name, before, now):
    if name != "outputs":
        return before == now
    if before is None or len(before) != len(now):
        return False
    return np.allclose(before, now, rtol=TOLERANCE, atol=TOLERANCE)
