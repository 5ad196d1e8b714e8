"""Counts the time, cost and failures of the solver for each layer."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any
from typing import Optional

import numpy as np

from keras_qpsbgd import _tables

# Maximum number of problem identifiers that the report keeps for each layer.
MAX_IDS = 5


@dataclasses.dataclass
class LayerReport:
    """Totals over the solves of one layer.

    Attributes:
        solves: Number of problems, one per update.
        columns: Number of columns for which states were found.
        calls: Number of calls of the solver that the layer took part in,
            including retries. A QPU is called for all layers together, a local
            solver once for each column.
        seconds: Time spent in the solves. If layers are solved in parallel,
            each layer counts its full time. The time of calls that layers share
            is divided equally among them.
        qpu_seconds: QPU access time that the answers report. The time of a call
            that layers share is divided in proportion to their numbers of
            qubits.
        retries: Number of repeated calls that the layer took part in.
        failures: Number of solves in which the backend failed.
        fallbacks: Number of failures after which the `on_failure` backend
            solved the problem.
        shared_calls: Number of `calls` that another layer already counts.
            `SolverReport.total` leaves them out, so that each call counts once.
        shared_retries: The same for `retries`.
        total_energy: Sum of the energies of all columns.
        total_chain_breaks: Sum of the mean fractions of broken chains.
        chain_solves: Number of solves in `total_chain_breaks`.
        problem_ids: Tuple of strings. The identifiers of the latest answered
            problems in Leap and dwave-inspector. Empty for solvers without
            identifiers.
    """

    solves: int = 0
    columns: int = 0
    calls: int = 0
    seconds: float = 0.0
    qpu_seconds: float = 0.0
    retries: int = 0
    failures: int = 0
    fallbacks: int = 0
    shared_calls: int = 0
    shared_retries: int = 0
    problem_ids: tuple[str, ...] = ()
    total_energy: float = 0.0
    total_chain_breaks: float = 0.0
    chain_solves: int = 0

    @property
    def mean_energy(self) -> float | None:
        """Mean energy of a column, or `None` if no states were found.

        It includes the states that the `on_failure` backend found.
        """
        return self.total_energy / self.columns if self.columns else None

    @property
    def mean_chain_breaks(self) -> float | None:
        """Mean fraction of broken chains over the solves, or `None`.

        It is `None` for backends without chains.
        """
        if not self.chain_solves:
            return None
        return self.total_chain_breaks / self.chain_solves


class SolverReport:
    """Solver report for each layer. `print(report)` shows a table.

    Attributes:
        layers: Dictionary that maps the name of a layer to its `LayerReport`.
        total: `LayerReport` over all layers, with each call counted once.
        steps: Integer. Number of training steps that called the solver.
        step_seconds: Float. Wall-clock time of the solver in these steps.
    """

    def __init__(self) -> None:
        self.layers: dict[str, LayerReport] = {}
        self.steps = 0
        self.step_seconds = 0.0
        self._lock = threading.Lock()

    def count_step(self, seconds: float) -> None:
        """Adds the wall-clock time that the solver took in one step."""
        with self._lock:
            self.steps += 1
            self.step_seconds += seconds

    def count(
        self,
        layer: str,
        seconds: float,
        info: dict[str, Any],
        failed: bool = False,
        fell_back: bool = False,
        energies: Optional[np.ndarray] = None,
    ) -> None:
        """Adds one solve to the report.

        Args:
            layer: String. Name of the layer.
            seconds: Float. Time spent in the solve.
            info: Dictionary. The `info` of the solution or of the error.
            failed: Boolean. True if the backend failed. Defaults to `False`.
            fell_back: Boolean. True if the fallback solved the problem.
                Defaults to `False`.
            energies: Array of shape (m,) (optional). The energies of the states
                that were found. Defaults to `None`.
        """
        # A failed solve may have had some answers, but they were not used.
        breaks = None if failed else info.get("chain_break_fraction")
        mean_breaks = None if breaks is None else float(np.mean(breaks))
        row = LayerReport(
            solves=1,
            columns=0 if energies is None else len(energies),
            calls=info.get("calls", 1),
            seconds=seconds,
            qpu_seconds=1e-6 * info.get("qpu_access_time", 0.0),
            retries=info.get("retries", 0),
            failures=int(failed),
            fallbacks=int(fell_back),
            shared_calls=info.get("shared_calls", 0),
            shared_retries=info.get("shared_retries", 0),
            problem_ids=_latest(info.get("problem_id", ())),
            total_energy=0.0 if energies is None else float(np.sum(energies)),
            total_chain_breaks=mean_breaks or 0.0,
            chain_solves=int(mean_breaks is not None),
        )
        with self._lock:
            before = self.layers.get(layer, LayerReport())
            self.layers[layer] = _combine(before, row)

    @property
    def total(self) -> LayerReport:
        total = LayerReport()
        for row in self.copy().layers.values():
            total = _combine(total, row)
        total.calls -= total.shared_calls
        total.retries -= total.shared_retries
        total.shared_calls = total.shared_retries = 0
        return total

    def copy(self) -> SolverReport:
        """Returns a snapshot of the report."""
        report = SolverReport()
        with self._lock:
            report.layers = dict(self.layers)
            report.steps, report.step_seconds = self.steps, self.step_seconds
        return report

    def since(self, earlier: SolverReport) -> SolverReport:
        """Returns what was added to the report after an earlier copy of it.

        Args:
            earlier: `SolverReport`. A copy of this report.

        Returns:
            A `SolverReport`.
        """
        report, earlier = self.copy(), earlier.copy()
        report.steps -= earlier.steps
        report.step_seconds -= earlier.step_seconds
        for layer, row in earlier.layers.items():
            report.layers[layer] = _combine(report.layers[layer], row, -1)
        return report

    def __str__(self):
        if not self.layers:
            return "No host solver has been called."
        rows = []
        for name, row in {**self.layers, "total": self.total}.items():
            breaks = row.mean_chain_breaks
            rows.append(
                (
                    name,
                    row.calls,
                    f"{row.seconds:.1f}",
                    f"{row.qpu_seconds:.3f}" if row.qpu_seconds else "-",
                    row.retries,
                    row.failures,
                    row.fallbacks,
                    "-" if breaks is None else f"{100 * breaks:.1f} %",
                )
            )
        head = ("layer", "calls", "seconds", "QPU s", "retries", "failures")
        head += ("fallbacks", "breaks")
        widths = (7, 9, 8, 9, 10, 11, 8)
        return "\n".join(_tables.table(head, rows, widths))

    __repr__ = __str__


def _latest(problem_ids):
    """Returns the last identifiers, each once."""
    if isinstance(problem_ids, str):  # a backend may return a single string
        problem_ids = [problem_ids]
    return tuple(dict.fromkeys(map(str, problem_ids)))[-MAX_IDS:]


def _combine(a, b, sign=1):
    """Adds two reports, or subtracts the second one if `sign` is -1."""
    combined = {
        field.name: getattr(a, field.name) + sign * getattr(b, field.name)
        for field in dataclasses.fields(LayerReport)
        if field.name != "problem_ids"
    }
    if sign > 0:
        ids = _latest([*a.problem_ids, *b.problem_ids])
    else:
        ids = tuple(i for i in a.problem_ids if i not in b.problem_ids)
    return LayerReport(**combined, problem_ids=ids)
