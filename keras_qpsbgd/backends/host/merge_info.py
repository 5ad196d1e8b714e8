"""Merges the `info` dictionaries of several solver calls into one."""

import functools
import operator

import numpy as np

SUMMED = (
    "calls",
    "retries",
    "shared_calls",
    "shared_retries",
    "problem_id",  # lists of strings
    "qpu_access_time",
    "work",
    "run_time",
    "charge_time",
)


def merge_columns(parts):
    """Merges calls for different columns; arrays are concatenated."""
    return _merge(parts, lambda arrays: np.concatenate(arrays, axis=-1))


def merge_blocks(parts):
    """Merges calls for different blocks of the same columns.

    Arrays are averaged. `energies` and `proven_optimal` are dropped, because
    the values of a block do not hold for the whole column.
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


def _merge(parts, merge_arrays):
    merged = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part[name] for part in parts if name in part]
        if name == "problem_id":  # a backend may return just one
            values = [[v] if isinstance(v, str) else list(v) for v in values]
        if isinstance(values[0], np.ndarray) and values[0].ndim:
            merged[name] = merge_arrays(values)
        elif name in SUMMED:
            merged[name] = functools.reduce(operator.add, values)
        else:
            merged[name] = values[0]
    return merged
