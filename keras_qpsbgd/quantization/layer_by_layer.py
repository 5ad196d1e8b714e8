"""Quantizes the layers of a model one after the other."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from typing import Any

import numpy as np

from keras_qpsbgd import backends
from keras_qpsbgd._tables import WIDTH
from keras_qpsbgd._tables import shorten
from keras_qpsbgd.bits import max_level
from keras_qpsbgd.layers import BinaryLayer
from keras_qpsbgd.model_summary import stored
from keras_qpsbgd.quantization import arguments
from keras_qpsbgd.quantization import batch_norm
from keras_qpsbgd.quantization import model_copy
from keras_qpsbgd.quantization.calibration import Calibration
from keras_qpsbgd.quantization.finished_layers import FinishedLayers
from keras_qpsbgd.quantization.forward import ForwardPass
from keras_qpsbgd.quantization.numerics import grid
from keras_qpsbgd.quantization.numerics.layer import quantize_layer
from keras_qpsbgd.quantization.numerics.output_error import Statistics
from keras_qpsbgd.quantization.numerics.output_error import held_out_error
from keras_qpsbgd.quantization.quantization_report import LayerQuantization
from keras_qpsbgd.quantization.targets import Target
from keras_qpsbgd.quantization.targets import is_frozen

# A layer uses at most about this many rows, chosen at random: the larger of
# `MIN_ROWS` and `ROWS_PER_INPUT` times the number of inputs. More rows hardly
# change the statistics, but take time in convolutions of large images.
MIN_ROWS, ROWS_PER_INPUT = 2**14, 32


class LayerByLayer:
    """Quantizes layers in the order in which the model calls them.

    Args:
        model: The given model, after folding.
        targets: List of `Target`. The layers to quantize.
        data: `Calibration`.

    Attributes:
        targets: List of `Target`. Those that the model calls, in the order of
            the calls.
        not_called: List of tuples `(name, layer, reason)` for the others.
        few_rows: List of tuples `(name, rows, inputs)`, the quantized layers
            with fewer rows than inputs.
    """

    def __init__(
        self, model: Any, targets: list[Target], data: Calibration
    ) -> None:
        self._model = model
        self._batches = data.batches + data.held_out
        self._num_used = len(data.batches)
        # The float copy and the copy whose layers are quantized one by one.
        first, second = (
            model_copy.copy_model(model, self._batches[0])[1] for _ in range(2)
        )
        self._copies = (first, second)
        self._forward = ForwardPass(model, self._copies, self._batches)
        self._correction = batch_norm.Correction(
            self._forward, self._copies, self._num_used
        )
        order = [id(layer) for layer in self._forward.layers()]
        self.targets = sorted(
            (target for target in targets if id(target.owner) in order),
            key=lambda target: order.index(id(target.owner)),
        )
        self.not_called = [
            (target.name, target.layer, "not called")
            for target in targets
            if id(target.owner) not in order
        ]
        self.few_rows: list[tuple[str, int, int]] = []

    def quantize(
        self,
        method: str,
        solver: Any,
        seed: int | None,
        damping: float,
        out: Any,
        verbose: Any,
    ) -> tuple[Any, list[LayerQuantization]]:
        """Quantizes all layers.

        Args:
            method: String, as in `quantize`.
            solver: A `Backend`, or `None` if the method uses none.
            seed: Integer, or `None` to draw one.
            damping: Float. See `OutputError`.
            out: Path of the folder for finished layers, or `None`.
            verbose: Whether to show the current layer, as in `quantize`.

        Returns:
            A tuple `(quantized_model, rows)` with the rows of the report.
        """
        config = None if out is None else arguments.stored_config(solver)
        content = {
            "method": method,
            "backend": config,
            "solver": None if solver is None else solver.name,
            "seed": seed,
            "damping": damping,
            "num_used": self._num_used,
        }
        finished = FinishedLayers(out, content, self._model, self._batches)
        settings = {"method": method, "backend": solver, "damping": damping}
        count = len(self.targets)
        seeds = np.random.SeedSequence(seed).generate_state(count or 1)
        results, seconds = [], []
        for number, target in enumerate(self.targets, 1):
            start = time.perf_counter()
            result = finished.read(target.name, target.bits)
            stored = "" if result is None else " (stored)"
            text = f"{number}/{count} {target.name}{stored}"
            _show(text, verbose)
            if result is None:
                result = self._solve(
                    target, seed=int(seeds[number - 1]), **settings
                )
                finished.write(target.name, result)
            _write_floats(target, target.find(self._copies[1]), result)
            self._forward.mark_changed(target)
            results.append(result)
            seconds.append(time.perf_counter() - start)
        _show("", verbose)
        quantized, found = model_copy.quantized_copy(
            self._model, self._batches[0], self.targets
        )
        rows = []
        for target, result, time_of in zip(self.targets, results, seconds):
            layer = target.find(found)
            _write(target, layer, result)
            rows.append(self._row(target, layer, result, method, time_of))
        self._correction.finish(found)
        return quantized, rows

    def _solve(self, target, seed, **settings):
        """Returns the `LayerResult` of a layer."""
        self._correction.advance_to(target.owner)
        statistics, held_out = self._gather(target, seed)
        num_inputs = statistics.kernel.shape[1]
        if statistics.count < num_inputs:
            self.few_rows.append((target.name, statistics.count, num_inputs))
        try:
            result = quantize_layer(
                statistics, bits=target.bits, seed=seed, **settings
            )
        except (backends.SolverError, backends.BackendUnavailable) as error:
            named = type(error)(f"Layer `{target.name}`: {error}")
            named.info = error.info
            raise named from error
        if not held_out:
            return result
        kernel = target.kind.kernel(target.layer)
        error = held_out_error(
            kernel, result.kernel, result.bias_change, held_out
        )
        return dataclasses.replace(result, held_out=error)

    def _gather(self, target, seed):
        """Returns the `Statistics` of a layer and its held-out rows.

        Held-out rows are pairs, from the float copy and from the quantized
        copy.
        """
        kernel = target.kind.kernel(target.layer)
        statistics = Statistics(kernel, target.kind.has_bias(target.layer))
        wanted = max(MIN_ROWS, ROWS_PER_INPUT * kernel.shape[-2])
        count = -(-wanted // self._num_used)
        held_out = []
        for call in self._forward.calls(target.owner, target.part):
            for pair in self._both_rows(target, call, count, seed):
                if call.batch < self._num_used:
                    statistics.add(*pair)
                else:
                    held_out.append(pair)
        return statistics, held_out

    def _both_rows(self, target, call, count, seed):
        """Yields pieces of the rows of a call in both copies."""
        first, second = (
            target.kind.rows(
                target.find(copied), *inputs, count, [seed, call.batch]
            )
            for copied, inputs in zip(
                self._copies, (call.given, call.quantized)
            )
        )
        is_same = call.quantized is call.given
        for rows in first:
            pair = rows, rows if is_same else next(second)
            for which, values in zip(("given", "quantized"), pair):
                if not np.isfinite(values).all():
                    raise ValueError(
                        "`calibration` must give finite activations. Received: "
                        "nan or inf in the input of the layer "
                        f"`{target.name}` of the {which} model"
                    )
            yield pair

    def _row(self, target, layer, result, method, seconds):
        """Returns the row of a layer of the quantized model in the report."""
        groups, n, m = result.levels.shape
        m *= groups
        weights = target.kind.weights(target.layer)
        new_weights = target.kind.weights(layer)
        errors = {name: float(error) for name, error in result.errors.items()}
        return LayerQuantization(
            name=target.name,
            type=type(target.layer).__name__,
            num_inputs=n,
            num_outputs=m,
            bits=target.bits,
            errors=errors,
            error=errors[method],
            held_out=result.held_out,
            improved=result.improved,
            proven=result.proven,
            frozen=is_frozen(target, self.targets),
            packed_bytes=sum(stored(each).num_bytes for each in new_weights),
            float32_bytes=4 * sum(math.prod(each.shape) for each in weights),
            calls=int(result.solver.get("calls", 0)),
            seconds=float(seconds),
            qpu_seconds=float(result.solver.get("qpu_seconds", 0.0)),
        )


def _write_floats(target, layer, result):
    """Writes the quantized weights to a float layer."""
    shape = target.kind.kernel(target.layer).shape
    target.kind.set_kernel(layer, result.kernel.reshape(shape))
    target.kind.change_bias(layer, result.bias_change)


def _write(target, layer, result):
    """Writes the weights of a layer of the quantized model."""
    if not isinstance(layer, BinaryLayer):
        _write_floats(target, layer, result)
        return
    kernel = target.kind.kernel(target.layer)
    latent = grid.latent_kernel(
        kernel[None], result.levels, result.scales, target.bits
    )
    target.kind.set_kernel(layer, latent[0])
    layer.scale.assign(result.scales.ravel() * max_level(target.bits))
    bias = getattr(target.layer, "bias", None)
    if bias is not None:
        layer.bias.assign(bias.numpy())
        target.kind.change_bias(layer, result.bias_change)


def _show(text, verbose):
    """Shows the current layer. In a terminal, it replaces the previous one."""
    if verbose in (0, False):
        return
    if sys.stdout.isatty():
        line = shorten(f"Quantizing {text}" if text else "", WIDTH - 1)
        print(f"\r{line:<{WIDTH - 1}}\r", end="", flush=True)
    elif text:
        print(f"Quantizing {text}", flush=True)
