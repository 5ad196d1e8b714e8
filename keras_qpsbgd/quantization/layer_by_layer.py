"""`kq.quantize`: quantizes the layers of a trained network."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_qpsbgd import backends
from keras_qpsbgd._tables import WIDTH
from keras_qpsbgd._tables import shorten
from keras_qpsbgd.layers import BinaryLayer
from keras_qpsbgd.quantization import arguments
from keras_qpsbgd.quantization import batch_norm
from keras_qpsbgd.quantization import network
from keras_qpsbgd.quantization import targets as targets_module
from keras_qpsbgd.quantization.calibration import Calibration
from keras_qpsbgd.quantization.finished_layers import FinishedLayers
from keras_qpsbgd.quantization.forward import ForwardPass
from keras_qpsbgd.quantization.numerics import grid
from keras_qpsbgd.quantization.numerics.layer import quantize_layer
from keras_qpsbgd.quantization.numerics.output_error import HeldOutError
from keras_qpsbgd.quantization.numerics.output_error import Statistics
from keras_qpsbgd.quantization.quantization_report import LayerQuantization
from keras_qpsbgd.quantization.quantization_report import QuantizationReport
from keras_qpsbgd.quantization.quantization_report import UnchangedLayer
from keras_qpsbgd.qubo.ops import max_level

# At most this many rows of a layer are used, chosen at random. More rows hardly
# change its statistics, but take time in convolutions of large images.
MIN_ROWS, ROWS_PER_INPUT = 2**14, 32
# A layer overfits if its error on held-out data is larger than this multiple of
# its error on the calibration data.
OVERFITTING, SMALL_ERROR = 1.5, 1e-3
ONCE = {"name": "native", "preset": "once"}


def quantize(
    model: Any,
    calibration: Any,
    bits: int | dict[str, int | None] = 1,
    backend: Any = "native",
    method: str = "qubo",
    layers: str | list[str] | Callable[[Any], bool] | None = None,
    scale: str = "column",
    seed: int | None = None,
    damping: float = 0.01,
    validation_split: float = 0.1,
    out: Any = None,
    verbose: int | str = "auto",
) -> tuple[Any, QuantizationReport]:
    r"""Quantizes a trained network to a few bits per weight.

    The layers are quantized one after the other, in the order of the forward
    pass. The quantized weights of a layer minimize the squared difference
    between its outputs in the quantized network and in the given network, on
    the calibration data. In the quantized network, the inputs of a layer come
    from layers that are already quantized, so each layer corrects part of the
    error of the layers before it. This needs neither labels nor training.

    A `BatchNormalization` that directly follows a `Dense` layer or a
    convolution is folded into its kernel and bias, and a linear `Activation`
    with the same name takes its place. The moving statistics of all other batch
    normalizations are adapted to the quantized layers before them.

    | layer | becomes |
    |---|---|
    | `Dense` | `BinaryDense` |
    | `Conv2D` with `groups=1` | `BinaryConv2D` |
    | other convolutions, also separable and transposed | same type, frozen |
    | `GCNConv` of Spektral | `BinaryGraphConv` |
    | `EinsumDense` without batch axes in its kernel | `BinaryEinsumDense` |
    | `MultiHeadAttention` | `BinaryMultiHeadAttention` |
    | `SimpleRNN`, `LSTM`, `GRU`, also in `Bidirectional` | same type, frozen |
    | `TimeDistributed` around one of these layers | same type, frozen |

    All other layers, including subclasses of these layers, are copied without
    changes. Frozen layers keep their type and hold the quantized weights as
    floats, also in files. Their `trainable` is `False`, because training would
    move the weights off the grid. Two more cases are frozen: an `EinsumDense`
    whose equation `BinaryEinsumDense` does not support, and an attention layer
    if only some of its projections are chosen or if their numbers of bits
    differ.

    Separable convolutions and recurrent layers have two kernels. The report
    lists them as two layers, such as `"lstm/kernel"` and `"lstm/recurrent"`.
    Stateful recurrent layers and the recurrent kernel of a `GRU` without
    `reset_after` keep their weights. `report.unchanged` lists all layers that
    were not quantized, with the reasons.

    Args:
        model: Trained Keras model, Sequential or functional. It may contain
            nested models and layers that are called several times. It is not
            changed.
        calibration: Inputs of typical samples, without targets: an array, a
            list or dictionary of arrays for a model with several inputs, or a
            `tf.data.Dataset` or `keras.utils.PyDataset` of batches of `x`,
            `(x, y)` or `(x, y, weights)`, of which only `x` is used. Each layer
            should receive more rows than it has inputs. Otherwise, a warning
            names the layer. Arrays are read in batches of 128, or as a single
            batch if the model has graph layers.
        bits: Integer from 1 to 4, or a dictionary. Number of bits per weight.
            The keys of a dictionary are names of layers, or regular expressions
            to search for in the names. Its values are numbers of bits, or
            `None` for float weights. Names take precedence over regular
            expressions, and earlier expressions over later ones. Layers that
            match no key keep their float weights. Defaults to `1`.
        backend: Name of a backend, a configuration, a `Backend` or a
            `dimod.Sampler`. The solver for `method="qubo"`; other methods
            ignore it. Here, the name `"native"` selects its preset `"once"`,
            for problems that are solved only once. Defaults to `"native"`.
        method: `"nearest"`, `"gptq"`, `"gptq+scales"`, `"descent+scales"` or
            `"qubo"`. How to choose the quantized weights. Each method also runs
            those before it in this list. Defaults to `"qubo"`.
        layers: Which of the supported layers to quantize (optional). A regular
            expression to search for in the names of the layers, a list of
            names, or a function that takes a layer and returns a boolean. The
            name of a layer in a nested model is `"model/layer"`, that of a
            projection is `"attention/query"`, and that of a kernel is
            `"lstm/recurrent"` or `"separable/pointwise"`. Defaults to `None`,
            which quantizes all supported layers.
        scale: Removed. Every output has its own scale.
        seed: Integer (optional). Random seed. Defaults to `None`, which draws
            one.
        damping: Float > 0. Weight of the distance to the float kernel,
            relative to the mean square of the inputs. It determines the weights
            of inputs that are zero in all samples. Defaults to `0.01`.
        validation_split: Float in [0, 1). Fraction of the calibration data to
            hold out, for measuring the output errors on other data: the last
            samples of arrays, or every n-th batch of a dataset. The nodes of a
            graph are never split. Defaults to `0.1`.
        out: Path of a folder (optional) in which the result of each layer is
            stored. If a call is interrupted, repeat it with the same data in
            the same order to continue after the last finished layer. Defaults
            to `None`, which stores nothing.
        verbose: `"auto"`, `0` or `1`. `0` shows nothing. All other values show
            the name of the current layer, and the estimated QPU time before the
            first call to an annealer. Defaults to `"auto"`.

    Returns:
        A tuple `(quantized_model, report)` of a new, uncompiled model and a
        `QuantizationReport`.

    Raises:
        ValueError: If an argument is invalid, or if the weights or activations
            of the model are not finite.
        BackendUnavailable: If the backend cannot run or cannot solve a layer.
        BudgetExceeded: If the estimated QPU time of all layers exceeds
            `qpu_budget_seconds` of the backend. Nothing is sent to the QPU.

    Example:
        ```python
        quantized, report = kq.quantize(model, x_train[:512], bits=2)
        print(report)
        quantized.save("quantized.keras")
        ```

    Reference:
        - [Frantar et al., 2023](https://arxiv.org/abs/2210.17323) (GPTQ)
    """
    arguments.check_model(model)
    arguments.check(method, scale, seed, damping, validation_split, verbose)
    is_graph = targets_module.has_graph_layers(model)
    data = Calibration(model, calibration, is_graph, validation_split)
    targets, unchanged = targets_module.choose_layers(model, layers, bits)
    arguments.check_weights(model)
    batches = data.batches + data.held_out
    num_used = len(data.batches)
    model, targets, folded = batch_norm.fold(model, batches[0], targets)
    unchanged = [row for row in unchanged if id(row[1]) not in folded]

    # The float copy and the copy whose layers are quantized one by one.
    given = network.copy_model(model, batches[0])[1]
    copies = (given, network.copy_model(model, batches[0])[1])
    forward = ForwardPass(model, copies, batches)
    correction = batch_norm.Correction(forward, copies, num_used)
    called = {id(layer): place for place, layer in enumerate(forward.layers())}
    for target in targets:
        if id(target.owner) not in called:
            unchanged.append((target.name, target.layer, "not called"))
    targets = [target for target in targets if id(target.owner) in called]
    targets.sort(key=lambda target: called[id(target.owner)])

    solver = None
    if method == "qubo" and targets:
        solver = backends.get(ONCE if backend == "native" else backend)
        kernels = [target.kind.kernel(target.layer) for target in targets]
        sizes = [kernel.shape[-2:] for kernel in kernels]
        seconds = arguments.check_cost(solver, sizes)
        if seconds is not None and verbose not in (0, False):
            print(f"Estimated QPU time: {seconds:.3g} s", flush=True)
    settings = {
        "method": method,
        "backend": None if out is None else arguments.stored_config(solver),
        "solver": None if solver is None else solver.name,
        "seed": seed,
        "damping": damping,
        "num_used": num_used,
    }
    finished = FinishedLayers(out, settings, model, batches)

    seeds = np.random.SeedSequence(seed).generate_state(max(1, len(targets)))
    results = {}
    rows, few = [], []
    for number, target in enumerate(targets):
        start = time.perf_counter()
        both = tuple(target.find(found) for found in copies)
        result = finished.read(target.name, target.bits)
        stored = "" if result is None else " (stored)"
        _show(f"{number + 1}/{len(targets)} {target.name}{stored}", verbose)
        if result is None:
            correction.advance_to(target.owner)
            statistics, held_out = _gather(
                target, both, forward, num_used, int(seeds[number])
            )
            n = statistics.kernel.shape[1]
            if statistics.count < n:
                few.append((target.name, statistics.count, n))
            with _naming(target.name):
                result = quantize_layer(
                    statistics,
                    bits=target.bits,
                    method=method,
                    backend=solver,
                    seed=int(seeds[number]),
                    damping=damping,
                )
            if held_out is not None:
                result = dataclasses.replace(result, held_out=held_out(result))
            finished.write(target.name, result)
        _write_floats(target, both[1], result)
        forward.mark_changed(target)
        results[target.name] = result
        rows.append(
            _layer_report(
                target,
                result,
                method,
                time.perf_counter() - start,
                targets_module.is_frozen(target, targets),
            )
        )
    _show("", verbose)
    _warn_about_few_rows(few, rows, is_graph)
    quantized, found = network.quantized_copy(model, batches[0], targets)
    for target in targets:
        _write(target, target.find(found), results[target.name])
    correction.finish(found)
    done = sum(row.float32_bytes for row in rows)
    report = QuantizationReport(
        name=model.name,
        bits=rows[0].bits if len({row.bits for row in rows}) == 1 else None,
        method=method,
        backend=None if solver is None else solver.name,
        layers=rows,
        unchanged=[
            UnchangedLayer(name, type(layer).__name__, reason)
            for name, layer, reason in unchanged
        ],
        unchanged_bytes=4 * model.count_params() - done,
    )
    return quantized, report


@contextlib.contextmanager
def _naming(layer):
    """Adds the name of a layer to the errors of its solver."""
    try:
        yield
    except (backends.SolverError, backends.BackendUnavailable) as error:
        named = type(error)(f"Layer `{layer}`: {error}")
        named.info = error.info
        raise named from error


def _gather(target, layers, forward, num_used, seed):
    """Returns the statistics of a layer over the calibration data.

    Args:
        target: The layer.
        layers: Tuple of the layer in the float and in the quantized copy.
        forward: `ForwardPass`.
        num_used: Integer. Number of batches that are not held out. They come
            first.
        seed: Integer. Seed for the choice of rows.

    Returns:
        A tuple `(statistics, held_out)`. `held_out` is a function that takes a
        `LayerResult` and returns its output error on the held-out batches, or
        `None` if there are no such batches.
    """
    kernel = target.kind.kernel(target.layer)
    statistics = Statistics(kernel, target.kind.has_bias(target.layer))
    wanted = max(MIN_ROWS, ROWS_PER_INPUT * kernel.shape[-2])
    count = -(-wanted // num_used)
    held_out: list[tuple] = []
    for call in forward.calls(target.owner, target.part):
        for pair in _both_rows(target, layers, call, count, seed):
            if call.batch < num_used:
                statistics.add(*pair)
            else:
                held_out.append(pair)

    def error(result):
        measured = HeldOutError(
            kernel,
            result.kernel.reshape(kernel.shape),
            result.bias_change,
        )
        for pair in held_out:
            measured.add(*pair)
        return measured.relative()

    return statistics, error if held_out else None


def _both_rows(target, layers, call, count, seed):
    """Yields pieces of the rows of a call in both copies."""
    seed = [seed, call.batch]
    given = target.kind.rows(layers[0], *call.given, count, seed)
    quantized = given
    if call.quantized is not call.given:
        quantized = target.kind.rows(layers[1], *call.quantized, count, seed)
    for rows in given:
        pair = {"given": rows}
        pair["quantized"] = rows if quantized is given else next(quantized)
        for which, values in pair.items():
            if not np.isfinite(values).all():
                raise ValueError(
                    "`calibration` must give finite activations. Received: nan "
                    f"or inf in the input of the layer `{target.name}` of the "
                    f"{which} model"
                )
        yield pair["given"], pair["quantized"]


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


def _layer_report(target, result, method, seconds, frozen):
    groups, n, m = result.levels.shape
    m *= groups
    kernel = target.kind.variable(target.layer)
    others = sum(
        int(np.prod(weight.shape))
        for weight in target.kind.weights(target.layer)
        if weight is not kernel
    )
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
        frozen=frozen,
        packed_bytes=-(-n * m * target.bits // 8) + 4 * (m + others),
        float32_bytes=4 * (n * m + others),
        calls=int(result.solver.get("calls", 0)),
        seconds=float(seconds),
        qpu_seconds=float(result.solver.get("qpu_seconds", 0.0)),
    )


def _show(text, verbose):
    """Shows the current layer. In a terminal, it replaces the previous one."""
    if verbose in (0, False):
        return
    if sys.stdout.isatty():
        line = shorten(f"Quantizing {text}" if text else "", WIDTH - 1)
        print(f"\r{line:<{WIDTH - 1}}\r", end="", flush=True)
    elif text:
        print(f"Quantizing {text}", flush=True)


def _warn_about_few_rows(few, rows, is_graph):
    """Warns about overfitting, with the numbers of the worst layer."""
    overfit = [
        row
        for row in rows
        if row.held_out is not None
        and row.held_out > OVERFITTING * row.error + SMALL_ERROR
    ]
    advice = (
        "Use more bits, or leave the layer out."
        if is_graph
        else "Pass more samples."
    )
    if overfit:
        worst = max(overfit, key=lambda row: row.held_out / (row.error + 1e-9))
        warnings.warn(
            f"`calibration` is too small for {len(overfit)} of {len(rows)} "
            f"layers. The layer `{worst.name}` has an output error of "
            f"{worst.error:.3g} on the calibration data, but "
            f"{worst.held_out:.3g} on held-out data. {advice}",
            stacklevel=3,
        )
    elif few:
        name, count, n = few[0]
        warnings.warn(
            f"`calibration` is too small for {len(few)} of {len(rows)} layers. "
            f"The layer `{name}` has {n} inputs but receives only {count} "
            f"rows, so its output error will be larger on other data. {advice}",
            stacklevel=3,
        )
