"""Estimates the QPU time of a training run."""

from __future__ import annotations

import dataclasses
import logging
import math
import numbers
import textwrap
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any
from typing import Optional

from keras_qpsbgd.backends import GraphBackend
from keras_qpsbgd.layers import statistics

_logger = logging.getLogger("keras_qpsbgd")


@dataclasses.dataclass
class QpuEstimate:
    """The estimated QPU time of a training run. `print` shows a table.

    Attributes:
        steps: Integer. Number of training steps.
        updates: Integer. Number of steps that call the solver: all of them, or
            one in `gradient_accumulation_steps`.
        calls_per_update: Integer. Number of QPU calls of such a step.
        seconds_per_update: Float. QPU access time of such a step.
        seconds: Float. QPU access time of all steps.
        budget_seconds: Float. The part of `qpu_budget_seconds` that is left, or
            `None` without a budget.
        fits: Boolean. Whether the budget covers all steps.
        affordable_steps: Integer. Number of steps that the budget covers, at
            most `steps`.
        note: String. The source of the timing data, or why the estimate is
            zero.
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
        if self.calls_per_update and not self.seconds_per_update:
            per_step = whole = "unknown"
        rows = [
            ("steps", f"{self.steps:,}"),
            ("QPU calls per step", f"{self.calls_per_update:,}"),
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


def estimate_model(
    backend: Any,
    model: Any,
    steps: int,
    accumulation: int,
    sizes_of: Callable[[Iterable[Any]], list[tuple[int, int]]],
) -> QpuEstimate:
    """Estimates the QPU time of training a model. See `QPSBGD.estimate`.

    Args:
        backend: A `Backend`.
        model: A built `keras.Model` with binary layers.
        steps: Integer. Number of training steps.
        accumulation: Integer. Number of steps per update.
        sizes_of: Function of several `BinaryKernel`. Returns the numbers of
            inputs and outputs of their QUBOs.

    Raises:
        ValueError: If an argument is invalid.
    """
    if not isinstance(steps, numbers.Integral) or steps < 1:
        raise ValueError(
            "`steps` must be an integer of at least 1. Received: "
            f"steps={steps!r}"
        )
    if not hasattr(model, "built"):
        raise ValueError(
            f"`model` must be a Keras model. Received: model={model!r}"
        )
    # Legacy Keras has no variables before the model is built.
    variables = model.trainable_variables if model.built else []
    marks = filter(None, map(statistics.mark_of, variables))
    sizes = sizes_of(marks)
    if not sizes:
        raise ValueError(
            "`model` must be built and have trainable binary layers that are "
            "not routed to `real_optimizer` (see `max_variables`). "
            f"Received: model={model.name}"
        )
    steps = int(steps)
    cost = backend.step_cost(sizes)
    updates = steps // accumulation
    seconds = updates * cost.seconds
    budget = backend.budget
    left = None
    if budget is not None and budget.seconds is not None:
        left = max(0.0, budget.remaining())
    affordable = updates
    if left is not None and cost.seconds > 0:
        # Tolerates rounding errors of a budget for exactly these steps.
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


def log_start(backend: Any, sizes: list[tuple[int, int]]) -> None:
    """Logs what to expect from the first update, before it starts.

    Args:
        backend: A `Backend`.
        sizes: List of tuples `(num_inputs, num_outputs)`, one per layer.
    """
    if isinstance(backend, GraphBackend):
        _logger.info(
            "The search of `%s` is compiled in the first training step, once "
            "for each layer shape. This can take several seconds.",
            backend.name,
        )
        return
    cost = backend.step_cost(sizes)
    if not cost.calls:
        return
    left = None if backend.budget is None else backend.budget.remaining()
    lasts = ""
    if left is not None and cost.seconds > 0:
        updates = math.floor(left / cost.seconds + 1e-9)
        lasts = f" The budget of {left:.4g} s lasts for {updates:,} updates."
    _logger.info(
        "An update takes %d QPU call%s and about %.1f ms of QPU time.%s %s",
        cost.calls,
        "" if cost.calls == 1 else "s",
        1e3 * cost.seconds,
        lasts,
        cost.note,
    )
