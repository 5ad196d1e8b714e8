"""How the `info` of several calls becomes that of one solution."""

import numpy as np

SUMMED = (
    "calls",
    "retries",
    "qpu_access_time",
    "work",
    "run_time",
    "charge_time",
)


def over_columns(parts):
    """Calls for different columns: their arrays are joined."""
    return _merge(parts, lambda arrays: np.concatenate(arrays, axis=-1))


def over_blocks(parts):
    """Calls for the same columns: their arrays are averaged.

    What is proven for blocks is not proven for the whole, and the energies of
    blocks are not those of the whole.
    """
    parts = [
        {
            name: value
            for name, value in part.items()
            if name not in ("energies", "proven_optimal")
        }
        for part in parts
    ]
    return _merge(parts, lambda arrays: np.mean(arrays, axis=0))


def _merge(parts, join):
    merged = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part[name] for part in parts if name in part]
        if isinstance(values[0], np.ndarray) and values[0].ndim:
            merged[name] = join(values)
        elif name in SUMMED:
            merged[name] = sum(values)
        else:
            merged[name] = values[0]
    return merged
