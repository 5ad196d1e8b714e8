"""Checks the arguments of `kq.quantize` and the cost of the solver."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_qpsbgd import _keras
from keras_qpsbgd import backends
from keras_qpsbgd.backends.base import Backend
from keras_qpsbgd.quantization.numerics.layer import METHODS
from keras_qpsbgd.quantization.targets import Target
from keras_qpsbgd.quantization.targets import walk

# `quantize` solves every problem only once.
ONCE = {"name": "native", "preset": "once"}


def solver(backend: Any, targets: list[Target], verbose: Any) -> Backend:
    """Returns the `Backend` of the argument, after checking its cost."""
    found = backends.get(ONCE if backend == "native" else backend)
    kernels = [target.kind.kernel(target.layer) for target in targets]
    seconds = check_cost(found, [kernel.shape[-2:] for kernel in kernels])
    if seconds is not None and verbose not in (0, False):
        print(f"Estimated QPU time: {seconds:.3g} s", flush=True)
    return found


def check_cost(backend: Backend, sizes: list[tuple[int, int]]) -> float | None:
    """Checks that a backend can solve all layers within its budget.

    Args:
        backend: The backend.
        sizes: List of tuples `(num_inputs, num_outputs)`, one per layer.

    Returns:
        The estimated QPU time of all layers in seconds, or `None` if the
        backend uses no QPU.

    Raises:
        BackendUnavailable: If the backend cannot run or a layer is too wide.
        BudgetExceeded: If the estimated QPU time of all layers exceeds what is
            left of `qpu_budget_seconds`.
    """
    for num_inputs, num_outputs in sizes:
        backend.check(num_inputs, num_outputs)
    budget: Any = getattr(backend, "budget", None)
    if budget is None:
        return None
    # A solver on the host or a QPU solves each layer once, one after the other.
    seconds = sum(backend.step_cost([size]).seconds for size in sizes)
    if budget.seconds is not None and budget.charged + seconds > budget.seconds:
        raise backends.BudgetExceeded(
            "Quantizing all layers could exceed `qpu_budget_seconds`: "
            f"{budget.charged:.4g} s are already spent, and {len(sizes)} "
            f"layers could take up to {seconds:.4g} s. Nothing was sent to the "
            "QPU. Choose fewer `layers` or a larger budget. "
            f"Received: qpu_budget_seconds={budget.seconds:g}"
        )
    return seconds


def stored_config(backend: Backend | None) -> dict[str, Any] | None:
    """Returns the configuration that stored layers depend on.

    Raises:
        ValueError: If the backend has no configuration, for example a
            `dimod.Sampler`.
    """
    try:
        return None if backend is None else backend.get_config()
    except ValueError as error:
        raise ValueError(
            "`out` requires a backend with a configuration, because stored "
            "layers are only reused with the same backend. A `dimod.Sampler` "
            "has no configuration. "
            f"Received: backend={backend!r}"
        ) from error


def check_model(model: Any) -> None:
    """Checks that the argument `model` can be copied layer by layer.

    Raises:
        ValueError: If `model` is not a Sequential or functional model, or is
            not built.
    """
    _keras.check_is_model(model)
    if not _keras.is_graph_of_layers(model):
        raise ValueError(
            "`model` must be a Sequential or functional Keras model. The "
            "layers of a subclassed model cannot be replaced. Build a "
            "functional model from its layers. "
            f"Received: a model of type {type(model).__name__}"
        )
    # A Sequential model that has not been built has no attribute `inputs`.
    if not model.built or not getattr(model, "inputs", None):
        raise ValueError(
            "`model` must be a Keras model that has been built. Call it on a "
            "batch first, or start it with a `keras.layers.InputLayer`. "
            f"Received: model={model.name!r}, which is not built"
        )


def check(method, seed, damping, validation_split, verbose):
    """Checks the arguments of `quantize` that do not depend on the model.

    Raises:
        ValueError: If an argument is invalid.
    """
    if method not in METHODS:
        raise ValueError(
            f"`method` must be one of {METHODS}. Received: method={method!r}"
        )
    if seed is not None and (not _is_integer(seed) or seed < 0):
        raise ValueError(
            "`seed` must be a non-negative integer or None. "
            f"Received: seed={seed!r}"
        )
    backends.errors.check_number("damping", damping, above=0)
    backends.errors.check_number(
        "validation_split", validation_split, at_least=0
    )
    if validation_split >= 1:
        raise ValueError(
            "`validation_split` must be less than 1. "
            f"Received: validation_split={validation_split!r}"
        )
    if verbose not in ("auto", 0, 1, 2):
        raise ValueError(
            f'`verbose` must be "auto", 0 or 1. Received: verbose={verbose!r}'
        )


def _is_integer(value):
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_weights(model):
    """Checks that all weights are finite.

    Raises:
        ValueError: If a weight is not finite.
    """
    for name, layer in walk(model):
        for weight in layer.get_weights():
            if weight.dtype.kind == "f" and not np.isfinite(weight).all():
                raise ValueError(
                    "`model` must have finite weights. Received: nan or inf in "
                    f"the layer `{name}`"
                )
