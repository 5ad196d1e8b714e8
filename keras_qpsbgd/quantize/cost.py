"""Checks the solver and the cost of all layers before the first call."""

from __future__ import annotations

from typing import Any

from keras_qpsbgd import backends
from keras_qpsbgd.backends.base import Backend


def check(backend: Backend, sizes: list[tuple[int, int]]) -> None:
    """Raises if a backend cannot solve all layers within its budget.

    Args:
        backend: The backend.
        sizes: List of tuples `(num_inputs, num_outputs)`, one per layer.

    Raises:
        BackendUnavailable: If the backend cannot run or a layer is too wide.
        BudgetExceeded: If the estimated QPU time of all layers exceeds what is
            left of `qpu_budget_seconds`.
    """
    for num_inputs, num_outputs in sizes:
        backend.check(num_inputs, num_outputs)
    budget: Any = getattr(backend, "budget", None)
    if budget is None or budget.seconds is None:
        return
    # A solver on the host or a QPU solves each layer once, one after the other.
    seconds = sum(backend.step_cost([size]).seconds for size in sizes)
    if budget.charged + seconds > budget.seconds:
        raise backends.BudgetExceeded(
            "Quantizing all layers could exceed `qpu_budget_seconds`: "
            f"{budget.charged:.4g} s are spent, and {len(sizes)} layers would "
            f"take up to {seconds:.4g} s. Nothing was sent to the QPU. Choose "
            "fewer `layers`, or a larger budget. "
            f"Received: qpu_budget_seconds={budget.seconds:g}"
        )
