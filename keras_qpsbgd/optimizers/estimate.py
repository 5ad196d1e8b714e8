"""Solver reports and QPU time estimates of `QPSBGD`."""

from __future__ import annotations

import dataclasses
import math
import numbers
import textwrap
from typing import Any
from typing import Optional

from keras_qpsbgd import _keras
from keras_qpsbgd import backends
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.backends.host.solver_report import SolverReport
from keras_qpsbgd.layers import statistics


@dataclasses.dataclass
class QpuEstimate:
    """The estimated QPU time of a training run. `print` shows a table.

    Attributes:
        steps: Integer. Number of training steps.
        updates: Integer. Number of steps that call the solver: all of them, or
            one in `gradient_accumulation_steps`.
        calls_per_update: Integer. Number of QPU calls of such a step.
        seconds_per_update: Float. QPU access time of such a step. NaN if it is
            unknown, as for a `dimod.Sampler`.
        seconds: Float. QPU access time of all steps, or NaN.
        budget_seconds: Float. The part of `qpu_budget_seconds` that is left, or
            `None` without a budget.
        fits: Boolean. Whether the budget covers all steps.
        affordable_steps: Integer. Number of steps that the budget covers, at
            most `steps`.
        note: String. The source of the timing data, or why the estimate is
            zero or unknown.
    """

    steps: int
    updates: int
    calls_per_update: int
    seconds_per_update: float
    seconds: float
    budget_seconds: Optional[float]
    fits: bool
    affordable_steps: int
    note: str

    def __str__(self):
        budget = "none"
        if self.budget_seconds is not None:
            verdict = "enough"
            if not self.fits:
                verdict = f"used up after {self.affordable_steps:,} steps"
            budget = f"{_in_seconds(self.budget_seconds)} left, {verdict}"
        per_step = f"{1e3 * self.seconds_per_update:,.1f} ms"
        whole = _in_seconds(self.seconds)
        calls = f"{self.calls_per_update:,}"
        if math.isnan(self.seconds):
            calls = per_step = whole = "unknown"
        elif self.calls_per_update and not self.seconds_per_update:
            per_step = whole = "unknown"
        rows = [
            ("steps", f"{self.steps:,}"),
            ("QPU calls per step", calls),
            ("QPU time per step", per_step),
            ("QPU time", whole),
            ("QPU budget", budget),
        ]
        if self.updates != self.steps:
            rows.insert(1, ("steps with a solve", f"{self.updates:,}"))
        lines = [f"{name:<20} {value}" for name, value in rows]
        return "\n".join(
            [*lines, *textwrap.wrap(self.note, 79, break_on_hyphens=False)]
        )

    __repr__ = __str__


def _in_seconds(seconds):
    # Budgets below a second need more digits.
    text = f"{seconds:.3g}" if 0 < seconds < 1 else f"{seconds:,.2f}"
    return f"{text} s"


class SolverInfo:
    """The public methods and properties of `QPSBGD` about its solver."""

    _solver: Any
    _accumulation: Any
    _skipping: Any
    _sizes: Any

    @property
    def backend(self) -> backends.Backend:
        """The solver of the QUBOs."""
        return self._solver.backend

    @property
    def on_failure(self) -> BackendLike:
        """What to do if a solve fails."""
        return self._solver.on_failure

    @property
    def last_error(self) -> Exception | None:
        """The latest exception of the solver, or `None`."""
        return self._solver.last_error

    @property
    def skipped_updates(self) -> int:
        """Number of updates that were skipped because of a non-finite value."""
        return self._skipping.count

    def solver_report(self) -> SolverReport:
        """Reports the calls, time and failures of the host solver.

        The attribute `layers` of the report maps the name of each layer to its
        figures, and `total` sums them. Print the report to see a table. It is
        empty for backends that solve in the graph.

        If several layers have the same name, the report uses their paths, such
        as `encoder/dense`. If several have the same path, it adds a number,
        such as `dense#2`.

        Returns:
            A copy of the current `SolverReport`.

        Example:
            ```python
            print(model.optimizer.solver_report())
            ```
        """
        return self._solver.report.copy()

    def estimate(self, model: Any, steps: int) -> QpuEstimate:
        """Estimates the QPU time of training a model.

        This method connects to the solver if necessary, but submits no problem.
        If the backend uses no QPU time, the estimate is zero, and its `note`
        says why. If the QPU time is unknown, as for a `dimod.Sampler`, the
        estimate is NaN. `callbacks.SolverProgress` logs this estimate when
        `fit` starts, and warns if it exceeds the budget.

        Args:
            model: A built `keras.Model` with binary layers.
            steps: Integer. Number of training steps, which is the number of
                batches of all epochs.

        Returns:
            A `QpuEstimate`. Print it to see a table.

        Raises:
            ValueError: If `steps` is not positive, or the model has no
                trainable binary layer or is not built.
            BackendUnavailable: If the solver cannot be reached.

        Example:
            ```python
            print(optimizer.estimate(model, steps=1000))
            ```
        """
        if not isinstance(steps, numbers.Integral) or steps < 1:
            raise ValueError(
                "`steps` must be an integer of at least 1. Received: "
                f"steps={steps!r}"
            )
        _keras.check_is_model(model)
        # Legacy Keras has no variables before the model is built.
        variables = model.trainable_variables if model.built else []
        marks = filter(None, map(statistics.mark_of, variables))
        sizes = self.update_rule.sizes(filter(self.is_binary, marks))
        if not sizes:
            raise ValueError(
                "`model` must be built and have trainable binary layers that "
                "are not routed to `real_optimizer` (see `max_variables`). "
                f"Received: model={model.name}"
            )
        steps = int(steps)
        cost = self.backend.step_cost(sizes)
        accumulation = self._accumulation.steps or 1
        updates = steps // accumulation
        seconds = updates * cost.seconds
        budget = self.backend.budget
        left = None
        if budget is not None and budget.seconds is not None:
            left = max(0.0, budget.remaining())
        affordable = updates
        if left is not None and cost.seconds > 0:
            # The small tolerance absorbs rounding errors if the budget covers
            # exactly these steps.
            affordable = min(updates, math.floor(left / cost.seconds + 1e-9))
        fits = affordable == updates
        return QpuEstimate(
            steps,
            updates,
            cost.calls,
            cost.seconds,
            seconds,
            left,
            fits,
            steps if fits else affordable * accumulation,
            cost.note,
        )
