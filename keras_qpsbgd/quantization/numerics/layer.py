"""Quantizes one layer, given the statistics of its inputs."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any
from typing import Optional

import numpy as np

from keras_qpsbgd.quantization.numerics import grid
from keras_qpsbgd.quantization.numerics import heuristics
from keras_qpsbgd.quantization.numerics import qubo
from keras_qpsbgd.quantization.numerics.output_error import best_of
from keras_qpsbgd.quantization.numerics.output_error import fit_scales

# Every method includes the methods before it.
METHODS = ("nearest", "gptq", "descent", "qubo")


@dataclasses.dataclass(frozen=True)
class LayerResult:
    """The quantized kernel of a layer.

    Attributes:
        levels: int8 array of shape (n, m). Odd integers.
        scales: Array of shape (m,). The kernel is `levels * scales`.
        bias_change: Array of shape (m,). The correction of the bias.
        errors: Dictionary that maps each method that was run to its relative
            output error.
        proven: Number of columns whose QUBO was solved to a proven optimum, or
            `None` if the backend proves nothing.
        solver: Dictionary with the totals of the solver: `calls`, `seconds`,
            and `qpu_seconds`.
    """

    levels: np.ndarray
    scales: np.ndarray
    bias_change: np.ndarray
    errors: dict[str, float]
    proven: Optional[int]
    solver: dict[str, Any]


def quantize_layer(
    statistics: Any,
    bits: int,
    method: str,
    backend: Any,
    scale: str = "column",
    seed: int = 0,
    damping: float = 0.01,
    advance: Callable[[], None] = lambda: None,
    release: bool = False,
) -> LayerResult:
    """Quantizes the kernel of one layer.

    Args:
        statistics: `Statistics` of the calibration rows.
        bits: Integer from 1 to 4.
        method: String, one of `METHODS`.
        backend: A `Backend`, used by the method `"qubo"`.
        scale: `"column"` or `"layer"`. Defaults to `"column"`.
        seed: Integer. Defaults to `0`.
        damping: Float. See `OutputError`. Defaults to `0.01`.
        advance: Function that is called after each method (optional).
        release: Boolean. Whether `statistics` may release its memory. Defaults
            to `False`.

    Returns:
        A `LayerResult`.
    """
    problem = statistics.problem(damping, release)
    weight_scales = grid.weight_scales(problem.kernel, bits)
    if scale == "layer":
        weight_scales = np.full_like(weight_scales, weight_scales.mean())
    steps = METHODS[: METHODS.index(method) + 1]
    scaled = grid.divide(problem.kernel, weight_scales)
    levels = grid.nearest_levels(scaled, bits)
    found = {"nearest": fit_scales(problem, levels, scale)}
    advance()
    info: Any = None
    seconds = 0.0
    if "gptq" in steps:
        gptq = heuristics.Gptq(problem)
        levels = gptq.levels(weight_scales, bits)
        found["gptq"] = fit_scales(problem, levels, scale)
        advance()
    if "descent" in steps:
        found["descent"] = heuristics.descend(
            problem, found["gptq"], bits, scale
        )
        advance()
    if "qubo" in steps:
        others = list(found.values())
        start = qubo.search_scales(
            problem, gptq, found["gptq"], weight_scales, bits, scale
        )
        del gptq  # as large as the couplings
        begin = time.monotonic()
        solved, info = qubo.solve(
            problem, start, others, bits, scale, backend, seed
        )
        seconds = time.monotonic() - begin
        # The damping may have preferred a column with a larger output error.
        found["qubo"] = best_of([solved, *others], scale, by="errors")
        advance()
    result = found[method]
    calls = 0 if info is None else info.get("calls", 1)
    info = info or {}
    proven = info.get("proven_optimal")
    kernel = result.levels * result.scales
    return LayerResult(
        levels=result.levels.astype(np.int8),
        scales=result.scales,
        bias_change=statistics.bias_change(kernel),
        errors={
            name: problem.relative(candidate.errors)
            for name, candidate in found.items()
        },
        proven=None if proven is None else int(np.sum(proven)),
        solver={
            "calls": calls,
            "seconds": seconds,
            "qpu_seconds": 1e-6 * info.get("qpu_access_time", 0.0),
        },
    )
