"""The numbers that only the report page shows, from recorded updates.

Those that `analysis` has are computed there.
"""

from __future__ import annotations

from typing import Any
from typing import Optional

import numpy as np

from keras_qpsbgd.analysis.run import Update
from keras_qpsbgd.analysis.samples import reads_of
from keras_qpsbgd.analysis.samples import sample_similarity

MAX_POINTS = 200
NUM_BEST = 10
MAX_IDS = 5


def applied_states(updates: list[Update]) -> dict[str, np.ndarray]:
    """Returns the numbers of the applied states of some updates of a layer.

    Returns:
        A dictionary of arrays with one entry per update: the mean `"energy"`
        over the columns, the `"lowest"` and `"highest"` energy of a column, the
        mean energy of `"random"` states, and the share of entries that were
        `"held"`.
    """
    names = ("energy", "lowest", "highest", "random", "held")
    rows = []
    # A diverged run has values that are not finite.
    with np.errstate(invalid="ignore", over="ignore"):
        for update in updates:
            energies = update.energies
            rows.append(
                (
                    energies.mean(),
                    energies.min(),
                    energies.max(),
                    update.qubo.random_energy().mean(),
                    (update.states == 0).mean(),
                )
            )
    return dict(zip(names, np.array(rows, dtype=float).T))


def thin(count: int) -> np.ndarray:
    """Returns at most `MAX_POINTS` indices with the first and the last one."""
    drawn = min(count, MAX_POINTS)
    return np.unique(np.linspace(0, count - 1, drawn).round().astype(int))


def last_with_reads(updates: list[Update]) -> Optional[Update]:
    """Returns the last update with several reads, or `None`."""
    for update in reversed(updates):
        if update.samples is not None and len(update.samples) > 1:
            return update
    return None


def read_energies(update: Update) -> np.ndarray:
    """Returns the energies of all reads above the best read of their column."""
    columns = range(update.qubo.num_columns)
    energies = [reads_of(update, column)[1] for column in columns]
    return np.concatenate([values - values.min() for values in energies])


def similarity(update: Update, num_best: int = NUM_BEST) -> np.ndarray:
    """Returns the similarities (k, k) of the best reads.

    The result is the mean of `analysis.sample_similarity` over the columns.
    """
    columns = range(update.qubo.num_columns)
    matrices = [sample_similarity(update, num_best, j).matrix for j in columns]
    return np.mean(matrices, axis=0)


def solver_totals(updates: list[Update]) -> dict[str, Optional[float]]:
    """Adds up what the backend reported over the updates of one layer.

    Returns:
        A dictionary: the number of solver `"calls"`, the mean number of
        `"reads"`, the number of `"retries"`, the QPU access time
        `"qpu_seconds"`, and the mean fraction of broken chains
        `"chain_breaks"`. A value is `None` if the backend does not report it.
    """
    microseconds = _values(updates, "qpu_access_time")
    calls = _values(updates, "calls")
    retries = _values(updates, "retries")
    reads = _values(updates, "reads") or [
        float(len(u.samples)) for u in updates if u.samples is not None
    ]
    breaks = _values(updates, "chain_break_fraction")
    return {
        "calls": sum(calls) if calls else None,
        "reads": float(np.mean(reads)) if reads else None,
        "retries": sum(retries) if retries else None,
        "qpu_seconds": 1e-6 * sum(microseconds) if microseconds else None,
        "chain_breaks": float(np.mean(breaks)) if breaks else None,
    }


def num_calls(updates: list[Update]) -> Optional[float]:
    """Returns the number of solver calls, or `None` if not reported.

    A call that several layers share counts once.
    """
    steps: dict[int, list[Update]] = {}
    for update in updates:
        steps.setdefault(update.step, []).append(update)
    total = None
    for group in steps.values():
        calls = _values(group, "calls")
        if calls:
            own = sum(calls) - sum(_values(group, "shared_calls"))
            # The layer that counts a shared call may not be recorded.
            total = (total or 0.0) + max(own, *calls)
    return total


def problem_ids(updates: list[Update]) -> list[str]:
    """Returns the identifiers of the latest calls."""
    found: dict[str, None] = {}
    for update in updates[-MAX_IDS:]:
        ids = update.info.get("problem_id")
        if isinstance(ids, (list, tuple)):  # a file may contain anything
            found.update(dict.fromkeys(map(str, ids)))
    return list(found)[-MAX_IDS:]


def has_mock_qpu(settings: dict[str, Any]) -> bool:
    """Returns whether a mock QPU ran, whose times are only estimates."""
    value: Any = settings
    for name in ("optimizer", "backend"):
        value = value.get(name)
        if not isinstance(value, dict):  # a file may contain anything
            return False
    return bool(value.get("mock"))


def _values(updates, name):
    """Returns the values of an entry of `info`, arrays by their means."""
    found = []
    for update in updates:
        try:
            value = float(np.mean(np.asarray(update.info[name], dtype=float)))
        except (KeyError, TypeError, ValueError):
            continue
        if np.isfinite(value):
            found.append(value)
    return found
