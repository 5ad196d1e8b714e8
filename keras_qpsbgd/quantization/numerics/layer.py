"""Quantizes one layer, given the statistics of its inputs."""

import dataclasses
import time
from typing import Any
from typing import Optional

import numpy as np

from keras_qpsbgd.quantization.numerics import encodings
from keras_qpsbgd.quantization.numerics import grid
from keras_qpsbgd.quantization.numerics import heuristics
from keras_qpsbgd.quantization.numerics.output_error import best_of
from keras_qpsbgd.quantization.numerics.output_error import fit_scales

# Every method includes the methods before it.
METHODS = ("nearest", "gptq", "gptq+scales", "descent+scales", "qubo")


@dataclasses.dataclass(frozen=True)
class LayerResult:
    """The quantized kernel of a layer.

    Attributes:
        levels: int8 array of shape (groups, n, m). Odd integers.
        scales: Array of shape (groups, 1, m), float32 numbers in float64. The
            kernel is `levels * scales`.
        bias_change: Array of shape (groups, m). The correction of the bias.
        errors: Dictionary that maps each method that was run to its relative
            output error.
        improved: Number of outputs whose error the solver lowered, or
            `None` if no solver ran.
        proven: Number of outputs whose QUBO was solved to a proven optimum, or
            `None` if the backend proves nothing.
        solver: Dictionary with the totals of the solver: `calls`, `seconds`,
            and `qpu_seconds`.
        held_out: Relative output error on held-out rows, or `None`.
    """

    levels: np.ndarray
    scales: np.ndarray
    bias_change: np.ndarray
    errors: dict[str, float]
    improved: Optional[int]
    proven: Optional[int]
    solver: dict[str, Any]
    held_out: Optional[float] = None

    @property
    def kernel(self) -> np.ndarray:
        """The quantized kernel, an array of shape (groups, n, m)."""
        return self.levels * self.scales


def quantize_layer(
    statistics: Any,
    bits: int,
    method: str,
    backend: Any,
    seed: int = 0,
    damping: float = 0.01,
) -> LayerResult:
    """Quantizes the kernel of one layer.

    Args:
        statistics: `Statistics` of the calibration rows. They cannot be reused.
        bits: Integer from 1 to 4.
        method: String, one of `METHODS`.
        backend: A `Backend`, used by the method `"qubo"`.
        seed: Integer. Defaults to `0`.
        damping: Float. See `OutputError`. Defaults to `0.01`.

    Returns:
        A `LayerResult`.
    """
    problem = statistics.problem(damping)
    weight_scales = grid.weight_scales(problem.kernel, bits)
    steps = METHODS[: METHODS.index(method) + 1]
    scaled = grid.divide(problem.kernel, weight_scales)
    found = {"nearest": fit_scales(problem, grid.nearest_levels(scaled, bits))}
    info: Any = None
    improved: Optional[int] = None
    seconds = 0.0
    if "gptq" in steps:
        gptq = heuristics.Gptq(problem)
        levels = gptq.levels(weight_scales, bits)
        found["gptq"] = best = fit_scales(problem, levels)
    if "gptq+scales" in steps:
        for factor in heuristics.SCALES[min(bits, 2)]:
            levels = gptq.levels(factor * weight_scales, bits)
            best = best_of([best, fit_scales(problem, levels)])
        found["gptq+scales"] = best
        del gptq  # as large as the couplings
    if "descent+scales" in steps:
        found["descent+scales"] = heuristics.descend(
            problem, best_of(list(found.values())), bits
        )
    if "qubo" in steps:
        begin = time.monotonic()
        solved, info = encodings.solve(
            problem, best_of(list(found.values())), bits, backend, seed
        )
        seconds = time.monotonic() - begin
        # The damping may have preferred a column with a larger output error.
        before = best_of(list(found.values()), by="errors")
        found["qubo"] = best_of([before, solved], by="errors")
        if info is not None:
            lower = found["qubo"].errors < before.errors
            improved = int(lower.sum())
    result = found[method]
    calls = 0 if info is None else info.get("calls", 1)
    info = info or {}
    proven = info.get("proven_optimal")
    # Files store float32 scales. Their products with levels are exact here.
    scales = result.scales.astype(np.float32).astype(np.float64)
    return LayerResult(
        levels=result.levels.astype(np.int8),
        scales=scales,
        bias_change=statistics.bias_change(result.levels * scales),
        errors={
            name: problem.relative(candidate.errors)
            for name, candidate in found.items()
        },
        improved=improved,
        proven=None if proven is None else int(np.sum(proven)),
        solver={
            "calls": calls,
            "seconds": seconds,
            "qpu_seconds": 1e-6 * info.get("qpu_access_time", 0.0),
        },
    )
