"""The function `kq.quantize`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from keras_qpsbgd.model_summary import summary
from keras_qpsbgd.quantization import arguments
from keras_qpsbgd.quantization import batch_norm
from keras_qpsbgd.quantization.calibration import Calibration
from keras_qpsbgd.quantization.calibration import is_zero
from keras_qpsbgd.quantization.layer_by_layer import LayerByLayer
from keras_qpsbgd.quantization.quantization_report import QuantizationReport
from keras_qpsbgd.quantization.quantization_report import UnchangedLayer
from keras_qpsbgd.quantization.targets import choose_layers
from keras_qpsbgd.quantization.targets import has_graph_layers

# A layer overfits if its error on held-out data is larger than this multiple of
# its error on the calibration data.
OVERFITTING, SMALL_ERROR = 1.5, 1e-3


def quantize(
    model: Any,
    calibration: Any,
    bits: int | dict[str, int | None] = 1,
    backend: Any = "native",
    method: str = "qubo",
    layers: str | list[str] | Callable[[Any], bool] | None = None,
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
    floats. `export.packed`, `onnx` and `litert` store them with few bits. Their
    `trainable` is `False`, because training would move the weights off the
    grid. Two more cases are frozen: an `EinsumDense` whose equation
    `BinaryEinsumDense` does not support, and an attention layer if only some of
    its projections are chosen or if their numbers of bits differ.

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
            should receive about four times as many rows as it has inputs. With
            too few rows, a warning names a layer. Arrays are read in batches of
            128, or as a single batch if the model has graph layers.
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
        SolverError: If the backend fails to solve a layer.
        BudgetExceeded: If the estimated QPU time of all layers exceeds
            `qpu_budget_seconds` of the backend. Nothing is sent to the QPU.

    Example:
        ```python
        quantized, report = kq.quantize(model, x_train[:2000], bits=2)
        print(report)
        quantized.save("quantized.keras")
        ```

    Reference:
        - [Frantar et al., 2023](https://arxiv.org/abs/2210.17323) (GPTQ)
    """
    arguments.check_model(model)
    arguments.check(method, seed, damping, validation_split, verbose)
    is_graph = has_graph_layers(model)
    data = Calibration(model, calibration, is_graph, validation_split)
    if is_zero(data.batches):
        warnings.warn(
            "`calibration` contains only zeros. Such samples carry no "
            "information on the inputs, so the errors in the report say "
            "nothing about other data. Pass typical samples.",
            stacklevel=2,
        )
    targets, unchanged = choose_layers(model, layers, bits)
    arguments.check_weights(model)
    folded = batch_norm.fold(model, data.batches[0], targets)
    work = LayerByLayer(folded.model, folded.targets, data)
    solver = None
    if method == "qubo" and work.targets:
        solver = arguments.solver(backend, work.targets, verbose)
    quantized, rows = work.quantize(method, solver, seed, damping, out, verbose)
    _warn_about_few_rows(work.few_rows, rows, is_graph)
    unchanged = [row for row in unchanged if id(row[1]) not in folded.norms]
    unchanged += work.not_called
    sizes = summary(quantized, print_fn=None)
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
        packed_bytes=sizes.packed_bytes,
        float32_bytes=sizes.float32_bytes,
    )
    return quantized, report


def _warn_about_few_rows(few, rows, is_graph):
    """Warns about overfitting, with the numbers of the worst layer.

    Args:
        few: List of tuples `(name, rows, inputs)`, the layers with fewer rows
            than inputs.
        rows: List of `LayerQuantization`.
        is_graph: Boolean. Whether the rows are the nodes of a graph.
    """
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
