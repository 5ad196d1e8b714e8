"""Quantizes a network by one method.

The methods are those of `kq.quantize`, Keras's own, and baselines that round
each weight to the nearest level: AWQ, and `nearest+scales` and `awq+scales`,
which search the scales of the outputs as `gptq+scales` does. With one bit, the
levels do not depend on the scales, so there is nothing to search.

AWQ multiplies input i of a kernel by \\(s_i = m_i^a\\), where \\(m_i\\) is the
mean absolute value of the input, rounds the product to the nearest levels, and
divides by \\(s_i\\) again. One \\(a\\) per layer is chosen on a grid by the
output error. In `awq+scales`, the search of the output scales comes after
that. It is AWQ's search of a range to which weights are clipped, with a range
for each output. AWQ has one number per input more than the other methods.

Reference: Lin et al., 2024, https://arxiv.org/abs/2306.00978
"""

import functools
import importlib
import time
import warnings
from unittest import mock

import numpy as np
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.quantization import model_copy
from keras_qpsbgd.quantization.numerics import grid
from keras_qpsbgd.quantization.numerics import heuristics
from keras_qpsbgd.quantization.numerics.layer import METHODS as OWN
from keras_qpsbgd.quantization.numerics.layer import LayerResult
from keras_qpsbgd.quantization.numerics.output_error import Statistics
from keras_qpsbgd.quantization.numerics.output_error import best_of
from keras_qpsbgd.quantization.numerics.output_error import fit_scales
from research.quantization import batch_norm

_loop = importlib.import_module("keras_qpsbgd.quantization.layer_by_layer")

FLOAT, AWQ, KERAS_INT4 = "float", "awq", "Keras int4"
NEAREST = "nearest"
# Baselines whose scales are searched.
NEAREST_SCALES, AWQ_SCALES = "nearest+scales", "awq+scales"
METHODS = (NEAREST, NEAREST_SCALES, AWQ, AWQ_SCALES, *OWN[1:])
# Rounding without folded or corrected batch normalizations, which cost it
# accuracy. A baseline gets the better of both.
UNFOLDED = {
    f"{name}, not folded": name
    for name in (NEAREST, NEAREST_SCALES, AWQ, AWQ_SCALES)
}
EXPONENTS = np.linspace(0.0, 1.0, 11)


def methods_of(bits, names=METHODS):
    """Returns the names of the methods that differ with so many bits."""
    searched = NEAREST_SCALES, AWQ_SCALES
    return [name for name in names if bits > 1 or not name.startswith(searched)]


def quantize(model, calibration, bits, method, seed):
    """Quantizes a model.

    Args:
        model: The float model.
        calibration: Inputs.
        bits: Integer.
        method: One of `METHODS` or `UNFOLDED`, or `KERAS_INT4`.
        seed: Integer.

    Returns:
        A tuple `(quantized, values)`. `values` are those of a record: the CPU
        seconds, and the output errors of the layers.
    """
    start = time.process_time()
    if method == KERAS_INT4:
        quantized = keras.models.clone_model(model)
        quantized.set_weights(model.get_weights())
        quantized.quantize("int4")
        return quantized, {"cpu": time.process_time() - start}
    settings = {"bits": bits, "seed": seed}
    setting = "neither" if method in UNFOLDED else "both"
    method = UNFOLDED.get(method, method)
    with warnings.catch_warnings(), batch_norm.only(setting):
        # The records have the errors on held-out data.
        warnings.filterwarnings("ignore", "`calibration` is small")
        if method in BASELINES:
            quantized, report = with_floats(
                model, calibration, *BASELINES[method], **settings
            )
        else:
            quantized, report = kq.quantize(
                model, calibration, method=method, verbose=0, **settings
            )
    values = {
        "cpu": time.process_time() - start,
        "compression": report.compression,
        "layers": [
            {
                "name": layer.name,
                "inputs": layer.num_inputs,
                "outputs": layer.num_outputs,
                "errors": layer.errors,
                "held_out": layer.held_out,
                "improved": layer.improved,
            }
            for layer in report.layers
        ],
    }
    return quantized, values


def with_floats(
    model, calibration, quantize_layer, statistics=Statistics, **settings
):
    """Runs `kq.quantize` with another method for a layer.

    The layers of the result stay float layers.

    Args:
        model: The float model.
        calibration: Inputs.
        quantize_layer: Function with the arguments of
            `numerics.layer.quantize_layer`. The errors of its result need the
            key `"nearest"`.
        statistics: Class that gathers the statistics of a layer.
        **settings: Arguments of `kq.quantize`.
    """

    def float_copy(model, example, targets):
        # Binary layers have one scale per output.
        del targets
        return model_copy.copy_model(model, example)

    with (
        mock.patch.object(_loop, "Statistics", statistics),
        mock.patch.object(_loop, "quantize_layer", quantize_layer),
        mock.patch.object(model_copy, "quantized_copy", float_copy),
    ):
        return kq.quantize(
            model, calibration, method="nearest", verbose=0, **settings
        )


class WithMagnitudes(Statistics):
    """Statistics with the sum of the absolute values of each input."""

    magnitudes = 0.0

    def add(self, rows, quantized_rows):
        super().add(rows, quantized_rows)
        total = np.abs(np.asarray(quantized_rows, float)).sum(axis=0)
        groups, n, _ = self.kernel.shape
        self.magnitudes = self.magnitudes + total.reshape(groups, n, 1)


def nearest_layer(statistics, bits, damping=0.01, **ignored):
    """Rounds each weight with the best of several scales.

    See `quantize_layer`.
    """
    del ignored
    problem = statistics.problem(damping)
    found = _rounded(problem, bits, _factors(bits))
    return _result(statistics, problem, found)


def awq_layer(statistics, bits, damping=0.01, searched=False, **ignored):
    """Quantizes a layer with AWQ. See `quantize_layer`.

    The `levels` of the result are divided by the scales of the inputs. If
    `searched`, each output has the best of several scales.
    """
    del ignored
    problem = statistics.problem(damping)
    sizes = np.broadcast_to(
        statistics.magnitudes / max(1, statistics.count),
        (*problem.kernel.shape[:2], 1),
    )
    is_active = sizes > 0
    lowest = sizes[is_active].min() if is_active.any() else 1.0
    sizes = np.maximum(sizes, lowest)
    exponent = min(
        EXPONENTS,
        key=lambda a: _rounded(problem, bits, [1.0], sizes**a).errors.sum(),
    )
    factors = _factors(bits) if searched else [1.0]
    found = _rounded(problem, bits, factors, sizes**exponent)
    return _result(statistics, problem, found)


def _factors(bits):
    """Returns the scales of `gptq+scales`, relative to those of the weights."""
    if bits == 1:
        return [1.0]
    return [1.0, *heuristics.SCALES[min(bits, 2)]]


def _rounded(problem, bits, factors, sizes=1.0):
    """Returns the best of several scales for each output, as a `Candidate`.

    Args:
        problem: An `OutputError`.
        bits: Integer.
        factors: List of scales, relative to those of the weights.
        sizes: Array of shape `(groups, n, 1)`. Multiplies the kernel before it
            is rounded, and divides its levels. Defaults to `1.0`.
    """
    scaled = problem.kernel * sizes
    scales = grid.weight_scales(scaled, bits)
    return best_of(
        [
            fit_scales(
                problem,
                grid.nearest_levels(grid.divide(scaled, factor * scales), bits)
                / sizes,
            )
            for factor in factors
        ],
        by="errors",
    )


def _result(statistics, problem, found):
    return LayerResult(
        levels=found.levels,
        scales=found.scales,
        bias_change=statistics.bias_change(found.levels * found.scales),
        errors={"nearest": problem.relative(found.errors)},
        improved=None,
        proven=None,
        solver={},
    )


# Functions for a layer, and what gathers its statistics.
BASELINES = {
    NEAREST_SCALES: (nearest_layer, Statistics),
    AWQ: (awq_layer, WithMagnitudes),
    AWQ_SCALES: (functools.partial(awq_layer, searched=True), WithMagnitudes),
}
