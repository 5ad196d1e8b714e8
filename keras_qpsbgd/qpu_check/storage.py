"""Writes the outcomes of a check to a folder, without pickles."""

from __future__ import annotations

import datetime
import importlib.metadata
import io
import json
import pathlib
import platform
from typing import Any

import numpy as np

from keras_qpsbgd import disk
from keras_qpsbgd.backends.dwave.connection import solver_name
from keras_qpsbgd.backends.dwave.cost import timing_source
from keras_qpsbgd.qpu_check import page

PACKAGES = (
    "keras_qpsbgd",
    "dwave-system",
    "dwave-cloud-client",
    "dwave-samplers",
    "dimod",
    "minorminer",
    "numpy",
    "tensorflow",
    "keras",
)
# Properties of the solver that the outcomes depend on. None of them is secret.
PROPERTIES = (
    "chip_id",
    "topology",
    "h_range",
    "j_range",
    "extended_j_range",
    "per_qubit_coupling_range",
    "per_group_coupling_range",
    "num_reads_range",
    "annealing_time_range",
    "default_annealing_time",
    "problem_run_duration_range",
    "problem_timing_data",
)


def describe(sampler: Any) -> dict[str, Any]:
    """Describes the solver and the installed packages."""
    properties = sampler.properties
    graph = getattr(getattr(sampler, "solver", None), "graph_id", None)
    return {
        "solver": solver_name(sampler),
        "graph_id": graph or "",
        "num_qubits": len(sampler.nodelist),
        "num_couplers": len(sampler.edgelist),
        "timing_data": timing_source(sampler),
        "properties": {k: properties[k] for k in PROPERTIES if k in properties},
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(
            timespec="seconds"
        ),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def save(
    folder: Any, outcomes: list, facts: dict[str, Any], is_mock: bool
) -> pathlib.Path:
    """Writes the files of a check.

    - `report.md`: the page.
    - `summary.json`: what the page shows, and the timings of all calls.
    - `NAME.npz` for each check with calls: problems and raw reads on the qubits
      (`call0_reads`, ...), and QUBOs and reads of the layers
      (`layer0_samples`, ...).

    Args:
        folder: Path of the folder. It is created if needed.
        outcomes: List of `Outcome`.
        facts: Dictionary. Result of `describe`.
        is_mock: Boolean. Whether the chip is simulated.

    Returns:
        The path of the page.
    """
    folder = pathlib.Path(folder)
    for outcome in outcomes:
        arrays = _arrays(outcome)
        if arrays:
            file = io.BytesIO()
            np.savez_compressed(file, allow_pickle=False, **arrays)
            disk.write(folder / f"{outcome.check.name}.npz", file.getvalue())
    summary = {
        "mock": is_mock,
        **facts,
        "checks": [_summary(outcome) for outcome in outcomes],
    }
    disk.write(
        folder / "summary.json", json.dumps(summary, indent=1, default=_plain)
    )
    disk.write(folder / "report.md", page.render(outcomes, facts, is_mock))
    return folder / "report.md"


def _arrays(outcome):
    arrays = {}
    for kind, parts in (
        ("call", [call.arrays() for call in outcome.calls]),
        ("layer", outcome.layers),
    ):
        for k, part in enumerate(parts):
            for name, array in part.items():
                arrays[f"{kind}{k}_{name}"] = np.asarray(array)
    return arrays


def _summary(outcome):
    return {
        "name": outcome.check.name,
        "title": outcome.check.title,
        "status": outcome.status,
        "findings": outcome.findings,
        "skipped": outcome.skipped,
        "error": outcome.error,
        "estimated_seconds": outcome.estimated,
        "charged_seconds": outcome.charged,
        "wall_seconds": outcome.seconds,
        "gaps": outcome.gaps,
        "chain_breaks": outcome.chain_breaks,
        "problem_ids": outcome.problem_ids,
        "timings": [
            (call.found.info or {}).get("timing")
            for call in outcome.calls
            if call.found is not None
        ],
    }


def _plain(value):
    """Converts what JSON does not know."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
