"""The report of a quantized network: errors, memory and solver calls."""

from __future__ import annotations

import dataclasses
import html
import math
import textwrap
from typing import Any
from typing import NamedTuple
from typing import Optional

from keras_qpsbgd import _tables
from keras_qpsbgd._tables import WIDTH
from keras_qpsbgd._tables import memory_text
from keras_qpsbgd._tables import shorten
from keras_qpsbgd.analysis import common

# Output errors below this value are printed as if they were zero.
_SMALLEST = 1e-12
# Colors and markers in a plot.
_STYLES = {
    "nearest": (common.GRAY, "X"),
    "gptq": (common.COLORS[4], "v"),
    "gptq+scales": (common.COLORS[1], "s"),
    "descent+scales": (common.COLORS[2], "^"),
    "qubo": (common.COLORS[0], "o"),
}
# Widths of the columns of the table of the memory.
_MEMORY = (11, 11, 8, 9, 8)
_TOTALS = (
    *("unchanged_bytes", "compression"),
    *("calls", "seconds", "qpu_seconds"),
)
FROZEN = (
    "* Frozen layer (`trainable = False`). It computes with floats, and "
    "`export` stores them with few bits."
)


@dataclasses.dataclass(frozen=True)
class LayerQuantization:
    """The results for one quantized layer.

    The output error is the sum of the squared differences between the products
    of the quantized layer and those of the float layer on the calibration data,
    relative to the sum of the squared float products. An error of 0 is perfect.
    The inputs of the quantized layer come from the quantized layers before it.

    Attributes:
        name: String. Name of the layer, after the names of the models that
            contain it.
        type: String. Name of its class in the given model.
        num_inputs: Integer. Number of inputs n of the kernel.
        num_outputs: Integer. Number of outputs m of the kernel.
        bits: Integer. Number of bits per weight.
        errors: Dictionary. Maps the method, and the simpler methods that always
            run before it, to their output errors.
        error: Float. Output error of the quantized layer.
        held_out: Float. Output error on held-out data, or `None` if there is
            none.
        improved: Integer. Number of outputs whose error the solver lowered, or
            `None` if no solver ran.
        proven: Integer. Number of outputs whose weights are proven optimal for
            their scale, or `None` if the solver proves nothing.
        frozen: Boolean. Whether the layer keeps its type and is frozen.
        packed_bytes: Integer. Size in bytes in a file of `export.packed`, with
            at most `bits` bits per weight and 32 bits per scale and bias.
        float32_bytes: Integer. Size in bytes with 32 bits per weight and bias.
        calls: Integer. Number of solver calls.
        seconds: Float. Time in seconds to quantize this layer, including the
            forward passes.
        qpu_seconds: Float. QPU access time in seconds, as reported by the
            solver.
    """

    name: str
    type: str
    num_inputs: int
    num_outputs: int
    bits: int
    errors: dict[str, float]
    error: float
    held_out: Optional[float]
    improved: Optional[int]
    proven: Optional[int]
    frozen: bool
    packed_bytes: int
    float32_bytes: int
    calls: int = 0
    seconds: float = 0.0
    qpu_seconds: float = 0.0


class UnchangedLayer(NamedTuple):
    """A layer with weights that was not quantized.

    Attributes:
        name: String. Name of the layer, after the names of the models that
            contain it.
        type: String. Name of its class.
        reason: String. Why it was not quantized.
    """

    name: str
    type: str
    reason: str


@dataclasses.dataclass(frozen=True, repr=False)
class QuantizationReport:
    """The report of `kq.quantize`.

    `print(report)` and notebooks show it as text.

    Attributes:
        name: String. Name of the model.
        bits: Integer. Number of bits per weight, or `None` if it differs
            between layers.
        method: String. Name of the method.
        backend: String. Name of the backend, or `None` if the method uses none.
        layers: List of `LayerQuantization`, in the order of the forward pass.
        unchanged: List of `UnchangedLayer`, the other layers with weights.
        packed_bytes: Integer. Size in bytes of the weights of the quantized
            model in a file of `export.packed`. The file also has the
            configuration of the model.
        float32_bytes: Integer. Size in bytes of the given model with 32 bits
            per weight, without the batch normalizations that were folded.
        unchanged_bytes: Integer. The part of `packed_bytes` outside the
            quantized layers.
        compression: Float. Ratio of `float32_bytes` to `packed_bytes`. It is
            the `compression` of `kq.summary(quantized_model)`.
        calls: Integer. Number of solver calls.
        seconds: Float. Time of the quantization in seconds.
        qpu_seconds: Float. QPU access time in seconds, as reported by the
            solver.
    """

    name: str
    bits: Optional[int]
    method: str
    backend: Optional[str]
    layers: list[LayerQuantization]
    unchanged: list[UnchangedLayer]
    packed_bytes: int
    float32_bytes: int

    @property
    def unchanged_bytes(self) -> int:
        packed = sum(layer.packed_bytes for layer in self.layers)
        return self.packed_bytes - packed

    @property
    def compression(self) -> float:
        return self.float32_bytes / self.packed_bytes

    @property
    def calls(self) -> int:
        return sum(layer.calls for layer in self.layers)

    @property
    def seconds(self) -> float:
        return sum(layer.seconds for layer in self.layers)

    @property
    def qpu_seconds(self) -> float:
        return sum(layer.qpu_seconds for layer in self.layers)

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as plain dictionaries and lists, for JSON."""
        return {
            **dataclasses.asdict(self),
            "unchanged": [layer._asdict() for layer in self.unchanged],
            **{name: getattr(self, name) for name in _TOTALS},
        }

    def plot(self, ax: Any = None) -> Any:
        """Plots the output errors of all layers and methods.

        Args:
            ax: Matplotlib axes (optional). Defaults to `None`, which creates a
                new figure.

        Returns:
            The axes.

        Raises:
            ImportError: If Matplotlib is not installed.
        """
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise ImportError(
                "`QuantizationReport.plot` needs Matplotlib. Install it with "
                '`python -m pip install "keras_qpsbgd[plots]"`.'
            ) from error
        if ax is None:
            width = max(6.0, 2.5 + 0.9 * len(self.layers))
            _, ax = pyplot.subplots(figsize=(width, 3.4), layout="constrained")
        for method in _methods(self):
            color, marker = _STYLES[method]
            ax.plot(
                range(len(self.layers)),
                [layer.errors[method] for layer in self.layers],
                marker,
                label=method,
                color=color,
                clip_on=False,  # an error may be zero
                zorder=3,
            )
        held_out = [layer.held_out for layer in self.layers]
        if any(error is not None for error in held_out):
            ax.plot(
                range(len(held_out)),
                [math.nan if error is None else error for error in held_out],
                "_",
                markersize=14,
                label=f"{self.method}, held out",
                color=_STYLES[self.method][0],
            )
        ax.set_ylim(bottom=0.0)
        ax.set_xlim(-0.5, len(self.layers) - 0.5)
        names = [shorten(layer.name, 18) for layer in self.layers]
        ax.set_xticks(range(len(names)), names, rotation=30, ha="right")
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_ylabel("relative output error")
        ax.set_title(f"{self.name}, {_bits_text(self)} per weight")
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        return ax

    def __repr__(self):
        return (
            f"QuantizationReport(name={self.name!r}, bits={self.bits}, "
            f"method={self.method!r}, {len(self.layers)} layers, "
            f"compression={self.compression:.1f})"
        )

    def __str__(self):
        return "\n".join([*_error_lines(self), *_memory_lines(self)])

    def _repr_html_(self):
        """Returns the report for notebooks."""
        return f"<pre>{html.escape(str(self))}</pre>"


def _methods(report):
    """Returns the methods to show, in the order in which they ran."""
    errors = report.layers[0].errors if report.layers else {}
    return [name for name in errors if name != "gptq" or report.method == name]


# The tables


def _error_lines(report):
    methods = _methods(report)
    solver = f", backend {report.backend}" if report.backend else ""
    has_held_out = any(layer.held_out is not None for layer in report.layers)
    # "gptq+scales" takes two lines.
    names = [name.partition("+") for name in methods]
    names += [("held out", "", "")] * has_held_out
    lines = [
        f'Model: "{report.name}", {_bits_text(report)} per weight, '
        f"method {report.method}{solver}",
        "_" * WIDTH,
        _error_row("Output error", "Size", [first for first, _, _ in names]),
        _error_row("of layer", "", [sign + last for _, sign, last in names]),
        "=" * WIDTH,
    ]
    for layer in report.layers:
        errors = _errors(layer, methods)
        errors += [_number(layer.held_out)] * has_held_out
        lines.append(_error_row(layer.name, _size(layer), errors))
    notes = _solver_notes(report)
    return [*lines, "", *notes] if notes else lines


def _error_row(name, size, cells):
    return _row(name, [size, *cells], [12] + [9] * len(cells))


def _errors(layer, methods):
    return [_number(layer.errors[method]) for method in methods]


def _solver_notes(report):
    """Returns notes on what the solver achieved."""
    solved = [layer for layer in report.layers if layer.improved is not None]
    if not solved:
        return []
    improved = sum(layer.improved for layer in solved)
    outputs = sum(layer.num_outputs for layer in solved)
    notes = [f"Improved by the solver: {improved:,} of {outputs:,} outputs"]
    proven = [layer for layer in solved if layer.proven is not None]
    if proven:
        count = sum(layer.proven for layer in proven)
        notes.append(
            f"Proven optimal for their scale: {count:,} of {outputs:,} outputs"
        )
    return notes


def _size(layer):
    return f"{layer.num_inputs} x {layer.num_outputs}"


def _memory_lines(report):
    header = ["Packed", "Float32", "Calls", "Seconds", "QPU s"]
    lines = ["", _row("Layer (type)", header, _MEMORY), "=" * WIDTH]
    for layer in report.layers:
        lines.append(_counts(f"{_marked_name(layer)} ({layer.type})", layer))
    for name, kind, reason in report.unchanged:
        lines.append(_row(f"{name} ({kind})", [f" unchanged ({reason})"], [0]))
    lines += [
        "_" * WIDTH,
        _counts("Total", report),
        f"Compression: {report.compression:.1f}x "
        f"(weights in a packed file, {_bits_text(report)} in quantized layers)",
    ]
    if any(layer.frozen for layer in report.layers):
        lines += textwrap.wrap(FROZEN, WIDTH)
    return lines


def _marked_name(layer):
    return f"*{layer.name}" if layer.frozen else layer.name


def _counts(name, counted):
    qpu = f"{counted.qpu_seconds:.3f}" if counted.qpu_seconds else "-"
    cells = [
        memory_text(counted.packed_bytes),
        memory_text(counted.float32_bytes),
        f"{counted.calls:,}",
        f"{counted.seconds:.1f}",
        qpu,
    ]
    return _row(name, cells, _MEMORY)


def _row(name, cells, widths):
    return _tables.row((name, *cells), widths)


def _number(error):
    if error is None:
        return "-"
    return "0" if error < _SMALLEST else f"{error:.3g}"


def _bits_text(report):
    bits = sorted({layer.bits for layer in report.layers} or {report.bits})
    if len(bits) > 1:
        return f"{bits[0]} to {bits[-1]} bits"
    return "1 bit" if bits == [1] else f"{bits[0]} bits"
