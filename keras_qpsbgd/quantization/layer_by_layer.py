"""`kq.quantize`: quantizes the layers of a trained network."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd import backends
from keras_qpsbgd.backends.base import Backend
from keras_qpsbgd.layers import BinaryLayer
from keras_qpsbgd.ops import MAX_BITS
from keras_qpsbgd.ops import max_level
from keras_qpsbgd.quantization import network
from keras_qpsbgd.quantization import targets as targets_module
from keras_qpsbgd.quantization.calibration import Calibration
from keras_qpsbgd.quantization.forward import ForwardPass
from keras_qpsbgd.quantization.numerics import grid
from keras_qpsbgd.quantization.numerics.layer import METHODS
from keras_qpsbgd.quantization.numerics.layer import quantize_layer
from keras_qpsbgd.quantization.numerics.output_error import Statistics
from keras_qpsbgd.quantization.quantization_report import LayerQuantization
from keras_qpsbgd.quantization.quantization_report import QuantizationReport
from keras_qpsbgd.quantization.quantization_report import UnchangedLayer

# At most this many rows of a layer are used, chosen at random. More rows hardly
# change its statistics, but cost time in convolutions of large images.
MIN_ROWS, ROWS_PER_INPUT = 2**14, 32
ONCE = {"name": "native", "preset": "once"}


def quantize(
    model: Any,
    calibration: Any,
    bits: int = 1,
    backend: Any = "native",
    method: str = "qubo",
    layers: str | list[str] | Callable[[Any], bool] | None = None,
    scale: str = "column",
    seed: int | None = None,
    damping: float = 0.01,
    verbose: int | str = "auto",
) -> tuple[Any, QuantizationReport]:
    r"""Quantizes a trained network to a few bits per weight.

    The layers are quantized one after the other, in the order of the forward
    pass. The levels of a layer minimize the squared difference between its
    output in the quantized network and in the given network on the calibration
    data. Its inputs come from the layers that are already quantized, so each
    layer corrects part of the error of the layers before it. No labels and no
    training are needed.

    | layer | becomes |
    |---|---|
    | `Dense` | `BinaryDense` |
    | `Conv2D` with `groups=1` | `BinaryConv2D` |
    | `GCNConv` of Spektral | `BinaryGraphConv` |
    | `EinsumDense` without batch axes in its kernel | `BinaryEinsumDense` |
    | `MultiHeadAttention` | `BinaryMultiHeadAttention` |

    All other layers, and subclasses of these layers, are copied. An
    `EinsumDense` whose equation `BinaryEinsumDense` does not support, and an
    attention layer of which only some projections are chosen, keep their type
    and are frozen: they hold the quantized weights as floats, and `trainable`
    is `False`, because training would move the weights off the grid.

    Args:
        model: Trained Keras model, Sequential or functional. It may contain
            nested models and layers that are called several times. It is not
            changed.
        calibration: The inputs of typical samples, without targets. An array, a
            list or dictionary of arrays for a model with several inputs, or a
            `tf.data.Dataset` of batches of `x`, `(x, y)` or `(x, y, weights)`,
            of which only `x` is used. Each layer should get more rows than it
            has inputs; a warning names a layer that does not. Arrays
            are read in batches of 128, but in one batch for models with graph
            layers.
        bits: Integer from 1 to 4. Number of bits per weight. Defaults to `1`.
        backend: Name of a backend, a configuration, a `Backend` or a
            `dimod.Sampler`. The solver of `method="qubo"`; other methods ignore
            it. The name `"native"` stands for its preset `"once"`, for
            problems that are solved once. Defaults to `"native"`.
        method: `"nearest"`, `"gptq"`, `"descent"` or `"qubo"`. How the levels
            are chosen. Defaults to `"qubo"`.
        layers: Which of the supported layers to quantize (optional). A regular
            expression that is searched in the names of the layers, a list of
            names, or a function that receives a layer and returns a boolean.
            The name of a layer in a nested model is `"model/layer"`, and that
            of a projection is `"attention/query"`. Defaults to `None`, which
            quantizes all of them.
        scale: Removed. Every output has its own scale.
        seed: Integer (optional). Seed of the solver. Defaults to `None`, which
            uses a random seed.
        damping: Float > 0. Weight of the distance to the float kernel,
            relative to the mean square of the inputs. It decides the weights of
            inputs that are zero in all samples. Defaults to `0.01`.
        verbose: `"auto"`, `0` or `1`. `0` is silent, all other values show a
            progress bar with a few steps per layer. Defaults to `"auto"`.

    Returns:
        A tuple `(quantized_model, report)` of a new model, which is not
        compiled, and a `QuantizationReport`.

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
    _check_model(model)
    _check_arguments(bits, method, scale, seed, damping, verbose)
    data = Calibration(
        model, calibration, targets_module.has_graph_layers(model)
    )
    batches = list(data)
    targets, unchanged = targets_module.choose_layers(model, layers)
    _check_weights(model)

    # The float copy and the copy whose layers are quantized one by one.
    copies = [network.copy_model(model, batches[0])[1] for _ in range(2)]
    forward = ForwardPass(model, (copies[0], copies[1]), batches)
    called = {id(layer): place for place, layer in enumerate(forward.layers())}
    for target in targets:
        if id(target.owner) not in called:
            unchanged.append((target.name, target.layer, "not called"))
    targets = [target for target in targets if id(target.owner) in called]
    targets.sort(key=lambda target: called[id(target.owner)])

    solver = None
    if method == "qubo" and targets:
        solver = backends.get(ONCE if backend == "native" else backend)
        sizes = [
            target.kind.kernel(target.layer).shape[-2:] for target in targets
        ]
        check_cost(solver, sizes)

    advance = _progress_bar(len(targets), verbose)
    seeds = np.random.SeedSequence(seed).generate_state(max(1, len(targets)))
    results = {}
    rows, few = [], []
    for number, target in enumerate(targets):
        start = time.perf_counter()
        forward.advance_to(target.owner)
        both = tuple(target.find(found) for found in copies)
        statistics = _gather(
            target, both, forward, len(batches), int(seeds[number])
        )
        n = statistics.kernel.shape[1]
        if statistics.count < n:
            few.append((target.name, statistics.count, n))
        with _naming(target.name):
            result = quantize_layer(
                statistics,
                bits=bits,
                method=method,
                backend=solver,
                seed=int(seeds[number]),
                damping=damping,
            )
        _write_floats(target, both[1], result)
        forward.mark_changed(target)
        results[target.name] = result
        seconds = time.perf_counter() - start
        frozen = targets_module.is_frozen(target, targets)
        rows.append(
            _layer_report(target, result, bits, method, seconds, frozen)
        )
        advance()

    if few:
        name, count, n = few[0]
        warnings.warn(
            f"`calibration` is small for {len(few)} of {len(targets)} layers. "
            f"The layer `{name}` has {n} inputs and receives {count} rows. The "
            "reported errors are too low then, and the network may be poor on "
            "other data. Pass more samples.",
            stacklevel=2,
        )
    quantized, found = network.quantized_copy(model, batches[0], targets, bits)
    for target in targets:
        _write(target, target.find(found), results[target.name], bits)
    done = sum(row.float32_bytes for row in rows)
    report = QuantizationReport(
        name=model.name,
        bits=bits,
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


def _gather(target, layers, forward, num_batches, seed):
    """Returns the statistics of a layer over all calibration batches.

    Args:
        target: The layer.
        layers: Tuple of the layer in the float and in the quantized copy.
        forward: `ForwardPass`.
        num_batches: Integer.
        seed: Integer. Seed of the choice of rows.
    """
    kernel = target.kind.kernel(target.layer)
    statistics = Statistics(kernel, target.kind.has_bias(target.layer))
    wanted = max(MIN_ROWS, ROWS_PER_INPUT * kernel.shape[-2])
    count = -(-wanted // num_batches)
    for call in forward.calls(target):
        for rows, quantized_rows in _both_rows(
            target, layers, call, count, seed
        ):
            statistics.add(rows, quantized_rows)
    return statistics


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
    """Gives a float layer the quantized weights."""
    shape = target.kind.kernel(target.layer).shape
    target.kind.set_kernel(layer, result.kernel.reshape(shape))
    target.kind.change_bias(layer, result.bias_change)


def _write(target, layer, result, bits):
    """Gives the layer of the quantized model its weights."""
    if not isinstance(layer, BinaryLayer):
        _write_floats(target, layer, result)
        return
    kernel = target.kind.kernel(target.layer)
    latent = grid.latent_kernel(
        kernel[None], result.levels, result.scales, bits
    )
    target.kind.set_kernel(layer, latent[0])
    layer.scale.assign(result.scales.ravel() * max_level(bits))
    bias = getattr(target.layer, "bias", None)
    if bias is not None:
        layer.bias.assign(bias.numpy())
        target.kind.change_bias(layer, result.bias_change)


def _layer_report(target, result, bits, method, seconds, frozen):
    groups, n, m = result.levels.shape
    m *= groups
    kernel = target.kind.variable(target.layer)
    others = sum(
        int(np.prod(weight.shape))
        for weight in target.layer.weights
        if weight is not kernel
    )
    errors = {name: float(error) for name, error in result.errors.items()}
    return LayerQuantization(
        name=target.name,
        type=type(target.layer).__name__,
        num_inputs=n,
        num_outputs=m,
        bits=bits,
        errors=errors,
        error=errors[method],
        improved=result.improved,
        proven=result.proven,
        frozen=frozen,
        packed_bytes=-(-n * m * bits // 8) + 4 * (m + others),
        float32_bytes=4 * (n * m + others),
        calls=int(result.solver.get("calls", 0)),
        seconds=float(seconds),
        qpu_seconds=float(result.solver.get("qpu_seconds", 0.0)),
    )


def _progress_bar(total, verbose):
    """Returns a function that advances a progress bar by one step."""
    if verbose in (0, False) or not total:
        return lambda: None
    bar = keras.utils.Progbar(total)
    return lambda: bar.add(1)


# Checks of the arguments and the cost


def check_cost(backend: Backend, sizes: list[tuple[int, int]]) -> None:
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


def _check_model(model):
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"`model` must be a Keras model. Received: model={model!r}"
        )
    if not _keras.is_graph_of_layers(model):
        raise ValueError(
            "`model` must be a Sequential or functional model. The layers of a "
            "subclassed model cannot be replaced in a copy. Build it with "
            "`keras.Sequential` or `keras.Model(inputs, outputs)`. Received: "
            f"a model of type {type(model).__name__}"
        )
    if not model.built or not model.inputs:
        raise ValueError(
            "`model` must be built. Call it on data, or start it with a "
            f"`keras.layers.InputLayer`. Received: model={model.name!r}, which "
            "is not built"
        )


def _check_arguments(bits, method, scale, seed, damping, verbose):
    if not _is_integer(bits) or not 1 <= bits <= MAX_BITS:
        raise ValueError(
            f"`bits` must be an integer from 1 to {MAX_BITS}. "
            f"Received: bits={bits!r}"
        )
    if method not in METHODS:
        raise ValueError(
            f"`method` must be one of {METHODS}. Received: method={method!r}"
        )
    if scale != "column":
        raise ValueError(
            "`scale` was removed. Every output has its own scale, which costs "
            f"four bytes and lowers the error. Received: scale={scale!r}"
        )
    if seed is not None and (not _is_integer(seed) or seed < 0):
        raise ValueError(
            "`seed` must be a non-negative integer or None. "
            f"Received: seed={seed!r}"
        )
    backends.errors.check_number("damping", damping, above=0)
    if verbose not in ("auto", 0, 1, 2):
        raise ValueError(
            f'`verbose` must be "auto", 0 or 1. Received: verbose={verbose!r}'
        )


def _is_integer(value):
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _check_weights(model):
    for name, layer in targets_module.walk(model):
        for weight in layer.get_weights():
            if weight.dtype.kind == "f" and not np.isfinite(weight).all():
                raise ValueError(
                    "`model` must have finite weights. Received: nan or inf in "
                    f"the layer `{name}`"
                )
