"""Numbers of recorded updates that only the report page shows.

All others are computed by `analysis`.
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
# The logs of `callbacks.QuboRecorder` that count something in an epoch.
COUNTS = (
    "solver_calls",
    "solver_retries",
    "solver_failures",
    "solver_fallbacks",
)
QPU_SECONDS = "solver_qpu_s"
SUMS = (*COUNTS, QPU_SECONDS)
CHAIN_BREAKS = "solver_chain_breaks"
BUDGET_LEFT = "solver_budget_s"


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
    """Returns at most `MAX_POINTS` indices, including both ends."""
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


def solver_means(updates: list[Update]) -> dict[str, Optional[float]]:
    """Averages what the backend reported over recorded updates of a layer.

    Means do not depend on how many updates were recorded. Updates that the
    backend did not solve are left out.

    Returns:
        A dictionary of means per update: the number of solver `"calls"`, of
        `"reads"` and of `"retries"`, the QPU access time `"qpu_seconds"`, and
        the fraction of broken chains `"chain_breaks"`. A value is `None` if the
        backend does not report it.
    """
    updates = [u for u in updates if not {"error", "fallback"} & set(u.info)]
    microseconds = _values(updates, "qpu_access_time")
    reads = _values(updates, "reads") or [
        float(len(u.samples)) for u in updates if u.samples is not None
    ]
    found = {
        "calls": _values(updates, "calls"),
        "reads": reads,
        "retries": _values(updates, "retries"),
        "qpu_seconds": [1e-6 * value for value in microseconds],
        "chain_breaks": _values(updates, "chain_break_fraction"),
    }
    return {
        name: float(np.mean(values)) if values else None
        for name, values in found.items()
    }


def totals(logs: dict[str, np.ndarray]) -> dict[str, float]:
    """Adds up the figures of the solver in the logs, which cover all updates.

    Args:
        logs: Dictionary that maps names of logs to values, NaN if missing.

    Returns:
        A dictionary that maps the names of the logged figures to their sums
        over the epochs, and `"solver_chain_breaks"` to its mean.
    """
    logs = {k: v[np.isfinite(v)] for k, v in logs.items()}
    found = {name: float(logs[name].sum()) for name in SUMS if name in logs}
    if CHAIN_BREAKS in logs:
        found[CHAIN_BREAKS] = float(logs[CHAIN_BREAKS].mean())
    return found


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
    return bool(_backend(settings).get("mock"))


def budget_seconds(settings: dict[str, Any]) -> Optional[float]:
    """Returns the QPU budget of the run, or `None` if it had none."""
    value = _backend(settings).get("qpu_budget_seconds")
    is_number = isinstance(value, (int, float))  # a file may contain anything
    return float(value) if is_number else None


def _backend(settings):
    value: Any = settings
    for name in ("optimizer", "backend"):
        value = value.get(name)
        if not isinstance(value, dict):  # a file may contain anything
            return {}
    return value


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
