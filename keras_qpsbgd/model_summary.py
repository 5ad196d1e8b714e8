"""A summary of a model with binary layers: parameters, memory, QUBO sizes.

With data, also the size of the inputs of each binary layer.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
import warnings
from collections.abc import Callable
from typing import Any
from typing import Optional

import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd.backends.dwave.cliques import LARGEST
from keras_qpsbgd.backends.host.gurobi import PIP_LICENSE
from keras_qpsbgd.layers import BinaryLayer
from keras_qpsbgd.layers import statistics
from keras_qpsbgd.optimizers.averaged_rule import Averaged
from keras_qpsbgd.qubo import blocks

# Number of variables that a solver can solve as a whole.
LIMITS = {**LARGEST, "Gurobi pip": PIP_LICENSE}

# Columns of a table in a terminal.
WIDTH = 80

# Inputs with a larger root mean square were not scaled. Raw pixels have at most
# 255, and batch normalization can correct that.
MAX_INPUT = 300.0


@dataclasses.dataclass(frozen=True)
class LayerSummary:
    """The numbers of one layer.

    Attributes:
        name: Name of the layer.
        type: Name of its class.
        binary_params: Number of binary weights, which have `bits` bits.
        real_params: Number of all other weights, such as biases and the
            `scale` of `output_scale="channel"`.
        num_variables: Number of variables per column, which is the number of
            inputs of the layer. `None` for a layer without binary weights.
        num_columns: Number of columns, which is the number of outputs of the
            layer, or `None`.
        bits: Number of bits of a binary weight. `None` for a layer without
            binary weights.
        frozen: Whether the layer has a float kernel and is not trainable.
            `quantize` may have rounded its weights to a few bits, but they are
            stored as floats and count as real weights.
        fits: Dictionary that maps `"Pegasus P16"`, `"Zephyr Z12"`,
            `"Zephyr Z15"`, and `"Gurobi pip"` to whether they can solve a QUBO
            of the layer as a whole. Empty for a layer without binary weights.
        num_qubos: Number of QUBOs per column. If a layer has more than 144
            inputs, `QPSBGD` divides them into blocks and solves one QUBO per
            block. `rule="paper"` and `fit_columns` use one QUBO. `None` for a
            layer without binary weights.
        qubo_variables: Number of variables of each of these QUBOs, or `None`.
    """

    name: str
    type: str
    binary_params: int
    real_params: int
    num_variables: Optional[int] = None
    num_columns: Optional[int] = None
    bits: Optional[int] = None
    frozen: bool = False

    @property
    def params(self) -> int:
        """Number of all weights."""
        return self.binary_params + self.real_params

    @property
    def bits_per_weight(self) -> float:
        """Mean number of bits: `bits` per binary weight, 32 per real one."""
        return self.total_bits / self.params if self.params else 0.0

    @property
    def total_bits(self) -> int:
        """Number of bits of all weights."""
        return (self.bits or 1) * self.binary_params + 32 * self.real_params

    @property
    def packed_bytes(self) -> int:
        """Memory with `bits` per binary weight and 32 bits per real weight."""
        return -(-self.total_bits // 8)

    @property
    def float32_bytes(self) -> int:
        """Memory with 32 bits per weight."""
        return 4 * self.params

    @property
    def fits(self) -> dict[str, bool]:
        if self.qubo_variables is None:
            return {}
        return {k: self.qubo_variables <= limit for k, limit in LIMITS.items()}

    @property
    def num_qubos(self) -> Optional[int]:
        return self._blocks[0]

    @property
    def qubo_variables(self) -> Optional[int]:
        return self._blocks[1]

    @property
    def _blocks(self):
        if self.num_variables is None:
            return None, None
        return blocks.block_shape(self.num_variables, Averaged.widest)


@dataclasses.dataclass(frozen=True, repr=False)
class ModelSummary:
    """The numbers of a model. `print(summary)` shows them as tables.

    Attributes:
        name: Name of the model.
        layers: List of `LayerSummary`, one for each layer with weights.
        binary_params: Number of binary weights.
        real_params: Number of all other weights.
        bits_per_weight: Mean number of bits per weight.
        packed_bytes: Memory with the bits of each binary weight and 32 bits per
            real weight. Each layer takes a whole number of bytes.
        float32_bytes: Memory with 32 bits per weight.
        compression: Ratio of `float32_bytes` to `packed_bytes`.
        input_sizes: Dictionary that maps the name of each trainable binary
            layer to the root mean square of its inputs. Empty without `x`.
    """

    name: str
    layers: list[LayerSummary]
    input_sizes: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def binary_params(self) -> int:
        return sum(layer.binary_params for layer in self.layers)

    @property
    def real_params(self) -> int:
        return sum(layer.real_params for layer in self.layers)

    @property
    def bits_per_weight(self) -> float:
        params = self.binary_params + self.real_params
        bits = sum(layer.total_bits for layer in self.layers)
        return bits / params if params else 0.0

    @property
    def packed_bytes(self) -> int:
        return sum(layer.packed_bytes for layer in self.layers)

    @property
    def float32_bytes(self) -> int:
        return sum(layer.float32_bytes for layer in self.layers)

    @property
    def compression(self) -> float:
        return self.float32_bytes / self.packed_bytes if self.layers else 1.0

    def __repr__(self):
        return (
            f"ModelSummary(name={self.name!r}, {len(self.layers)} layers, "
            f"binary_params={self.binary_params}, "
            f"real_params={self.real_params}, "
            f"compression={self.compression:.1f})"
        )

    def __str__(self):
        lines = [*_memory_lines(self), *_qubo_lines(self)]
        return "\n".join(lines + _input_lines(self))


def summary(
    model: Any, print_fn: Callable[[str], Any] | None = print, x: Any = None
) -> ModelSummary:
    """Prints the parameters, memory and QUBO size of each layer.

    The function complements `model.summary()`. It lists all layers with
    weights, including those of nested models. Layers and weights that are used
    more than once are counted once. A convolution has kernel height x kernel
    width x channels variables. Layers that `quantize` has frozen store floats,
    so they count as 32 bits per weight.

    The QUBOs are those of `QPSBGD`. A layer with more than 144 inputs has
    several per column: "6 x 131" means six QUBOs with 131 variables each. A
    QUBO that does not fit on a chip is solved in parts. The limits are those of
    chips without defects.

    If you pass inputs `x`, the function also shows how large the inputs of the
    binary layers are in training. It warns if they are hundreds of times too
    large, because activations such as `hard_tanh` then saturate, and the
    network barely learns.

    Args:
        model: A built Keras model. It does not need to have binary layers.
        print_fn: Function that receives the text (optional). `None` prints
            nothing. Defaults to `print`.
        x: Array, tensor, or a list or dictionary of them (optional). Some
            inputs of the model, for example 256 samples. No variable of the
            model changes. Defaults to `None`.

    Returns:
        A `ModelSummary` with the numbers.

    Raises:
        ValueError: If `model` is not a Keras model, or is not built.

    Example:
        ```python
        from tensorflow import keras

        import keras_qpsbgd as kq

        model = keras.Sequential(
            [
                keras.layers.InputLayer((784,)),
                kq.layers.BinaryDense(128, activation="hard_tanh"),
                kq.layers.BinaryDense(10),
            ]
        )
        found = kq.summary(model)
        print(found.compression)  # about 30
        print(found.layers[0].fits["Pegasus P16"])  # True
        ```
    """
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"`model` must be a Keras model. Received: model={model!r}"
        )
    if not model.built:
        raise ValueError(
            "`model` must be built. Call it on data, call `model.build`, or "
            "start it with a `keras.layers.InputLayer`. Received: "
            f"model={model.name!r}, which is not built"
        )
    layers: list[LayerSummary] = []
    _collect(model, set(), layers)
    sizes = {} if x is None else _input_sizes(model, x)
    found = ModelSummary(model.name, layers, sizes)
    if print_fn is not None:
        print_fn(str(found))
    _warn_if_too_large(sizes)
    return found


def _collect(layer, counted, found):
    """Adds the summaries of a layer and of the layers that it contains."""
    for part in _parts(layer):
        if id(part) not in counted:
            counted.add(id(part))
            _collect(part, counted, found)
    if isinstance(layer, BinaryLayer) and not layer.built:
        raise ValueError(
            "All layers of `model` must be built. Received: the binary layer "
            f"{layer.name!r}, which is not built"
        )
    weights = [weight for weight in layer.weights if id(weight) not in counted]
    counted.update(map(id, weights))
    if weights:
        found.append(_layer_summary(layer, weights))


def _parts(layer):
    """Returns the layers that get lines of their own.

    A layer such as an LSTM is one line, although it contains a cell.
    """
    if isinstance(layer, keras.Model):
        return layer.layers
    parts = _keras.all_layers(layer)
    inside = any(isinstance(part, BinaryLayer) for part in parts)
    return parts if inside else []


def _layer_summary(layer, weights):
    sizes = {id(weight): math.prod(weight.shape) for weight in weights}
    # A layer after `use_real_kernel` computes with real weights.
    is_real = getattr(layer, "has_real_kernel", False)
    marked = [] if is_real else [w for w in weights if statistics.mark_of(w)]
    binary = sum(sizes[id(weight)] for weight in marked)
    mark = statistics.mark_of(marked[0]) if marked else None
    return LayerSummary(
        layer.name,
        type(layer).__name__,
        binary,
        sum(sizes.values()) - binary,
        mark and mark.num_variables,
        mark and mark.num_columns,
        mark and mark.bits,
        not marked
        and not layer.trainable
        and any(len(weight.shape) > 1 for weight in weights),
    )


# The inputs of binary layers


class _InputSize(statistics.Observer):
    """Observes the root mean square of the rows of a binary kernel."""

    max_rows = statistics.MAX_ROWS
    value = None

    def add(self, rows):
        rows = tf.cast(rows, tf.float32)
        self.value = float(tf.sqrt(tf.reduce_mean(tf.square(rows))))


def _input_sizes(model, x):
    """Returns the root mean square of the inputs of binary layers, by name."""
    x = tf.nest.map_structure(
        lambda part: part if tf.is_tensor(part) else tf.convert_to_tensor(part),
        x,
    )
    marks = [statistics.mark_of(v) for v in model.trainable_variables]
    observers = {mark: _InputSize() for mark in marks if mark is not None}
    with _keras.unchanged(model), statistics.observing(observers):
        model(x, training=True)  # layers observe their inputs in training
    return {
        mark.name: observer.value
        for mark, observer in observers.items()
        if observer.value is not None
    }


def _warn_if_too_large(sizes):
    """Warns once, because large inputs of one layer reach the next."""
    for name, size in sizes.items():
        if size > MAX_INPUT:
            warnings.warn(
                f"The inputs of the layer `{name}` have a root mean square of "
                f"{size:,.0f}. Scale the inputs of the network to about -1 to "
                "1. Otherwise activations such as `hard_tanh` saturate, and "
                "the network barely learns.",
                stacklevel=3,
            )
            return


# The tables


def _memory_lines(found):
    rule = "_" * WIDTH
    lines = [
        f'Model: "{found.name}"'[:WIDTH],
        rule,
        _memory_row(
            "Layer (type)", "Binary", "Real", "Bits", "Packed", "Float32"
        ),
        "=" * WIDTH,
    ]
    for layer in found.layers:
        mark = "*" if layer.frozen else ""
        lines.append(_counts(f"{mark}{layer.name} ({layer.type})", layer))
    lines += [rule, _counts("Total", found)]
    lines.append(
        f"Compression: {found.compression:.1f}x ({_bits(found)} per binary "
        "weight, 32 per real weight)"
    )
    if any(layer.frozen for layer in found.layers):
        lines += [
            "* frozen and counted with 32 bits per weight, because it holds "
            "floats. If",
            "`quantize` gave it fewer bits, its report counts these.",
        ]
    return lines


def _bits(found):
    bits = sorted({layer.bits for layer in found.layers if layer.bits})
    if len(bits) > 1:
        return f"{bits[0]} to {bits[-1]} bits"
    return f"{bits[0]} bits" if bits and bits[0] > 1 else "1 bit"


def _counts(name, counted):
    return _memory_row(
        name,
        f"{counted.binary_params:,}",
        f"{counted.real_params:,}",
        f"{counted.bits_per_weight:.1f}",
        memory_text(counted.packed_bytes),
        memory_text(counted.float32_bytes),
    )


def _memory_row(name, binary, real, bits, packed, plain):
    right = f"{binary:>11}{real:>11}{bits:>6}{packed:>11}{plain:>11}"
    return table_row(name, right)


def _qubo_lines(found):
    binary = [layer for layer in found.layers if layer.fits]
    if not binary:
        return ["", "The model has no binary layers."]
    heads = [
        name.split()[-1] if "pip" not in name else "Gurobi" for name in LIMITS
    ]
    lines = [
        "",
        _qubo_row("QUBO of layer", "Variables", "Columns", heads),
        "=" * WIDTH,
    ]
    for layer in binary:
        fits = ["fits" if fit else "no" for fit in layer.fits.values()]
        variables = f"{layer.qubo_variables:,}"
        if layer.num_qubos > 1:
            variables = f"{layer.num_qubos} x {variables}"
        lines.append(
            _qubo_row(layer.name, variables, f"{layer.num_columns:,}", fits)
        )
    chips = ", ".join(f"{name} {limit}" for name, limit in LARGEST.items())
    lines += [
        "_" * WIDTH,
        f"Limits in variables: {chips} (without",
        f"defects), Gurobi's pip license {PIP_LICENSE}. Larger QUBOs need "
        "blocks (`block_size`).",
    ]
    return lines


def _input_lines(found):
    if not found.input_sizes:
        return []
    sizes = [
        f"{name} {size:,.0f}" if size >= 100 else f"{name} {size:.3g}"
        for name, size in found.input_sizes.items()
    ]
    text = f"Root mean square of the inputs: {', '.join(sizes)}"
    return ["", *textwrap.wrap(text, WIDTH)]


def _qubo_row(name, variables, columns, fits):
    right = f"{variables:>11}{columns:>10}"
    return table_row(name, right + "".join(f"{fit:>8}" for fit in fits))


def table_row(name, right):
    """Returns a row of a table: the name, shortened if necessary, and the rest.

    Args:
        name: String.
        right: String. Cells of a fixed width. Long ones take their space from
            the name.
    """
    width = max(WIDTH - len(right), 8)
    return f"{shorten(name, width - 1):<{width}}{right}"


def shorten(name, width):
    """Returns a name with at most `width` characters."""
    return name if len(name) <= width else f"{name[: width - 3]}..."


def memory_text(size):
    """Returns a number of bytes in the units of `model.summary()`."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KB", "MB", "GB"):
        value /= 1024
        if value < 1024 or unit == "GB":
            break
    return f"{value:,.2f} {unit}"
