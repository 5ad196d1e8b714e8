"""A summary of a model: parameters, memory, QUBO sizes, sizes of inputs."""

from __future__ import annotations

import dataclasses
import math
import textwrap
import warnings
from collections.abc import Callable
from typing import Any
from typing import NamedTuple
from typing import Optional

import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd import grids
from keras_qpsbgd._tables import WIDTH
from keras_qpsbgd._tables import memory_text
from keras_qpsbgd._tables import row
from keras_qpsbgd.bits import num_bytes
from keras_qpsbgd.layers import BinaryLayer
from keras_qpsbgd.layers import statistics
from keras_qpsbgd.optimizers.averaged_rule import Averaged
from keras_qpsbgd.qubo import blocks

# Widths of the cells of both tables.
MEMORY = (11, 11, 6, 11, 11)
QUBOS = (11, 11)


@dataclasses.dataclass(frozen=True)
class LayerSummary:
    """The numbers of one layer.

    Attributes:
        name: Name of the layer. Binary layers with the same name have the names
            of `QPSBGD.solver_report()`.
        type: Name of its class.
        binary_params: Number of weights with 1 to 4 bits.
        real_params: Number of all other weights, such as biases and the
            `scale` of `output_scale="channel"`.
        packed_bytes: Size of the weights in a file of `export.packed`.
        float32_bytes: Memory with 32 bits per weight, without the `scale`.
        num_variables: Number of variables per column, the inputs of the layer.
            This and the following attributes are `None` for a layer without
            binary weights.
        num_columns: Number of columns, the outputs of the layer.
        bits: Number of bits of a binary weight.
        num_qubos: Number of QUBOs per column. If a layer has more than 144
            inputs, `QPSBGD` divides them into blocks and solves one QUBO per
            block. `rule="paper"` and `fit_columns` use one QUBO.
        qubo_variables: Number of variables of each of these QUBOs.
    """

    name: str
    type: str
    binary_params: int
    real_params: int
    packed_bytes: int
    float32_bytes: int
    num_variables: Optional[int] = None
    num_columns: Optional[int] = None
    bits: Optional[int] = None

    @property
    def params(self) -> int:
        """Number of all weights."""
        return self.binary_params + self.real_params

    @property
    def bits_per_weight(self) -> float:
        """Mean number of bits per weight in `packed_bytes`."""
        return 8 * self.packed_bytes / self.params if self.params else 0.0

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
        binary_params: Number of weights with 1 to 4 bits.
        real_params: Number of all other weights.
        bits_per_weight: Mean number of bits per weight in `packed_bytes`.
        packed_bytes: Size of the weights in a file of `export.packed`. The
            file also has the configuration of the model.
        float32_bytes: Memory with 32 bits per weight, without the scales of
            binary layers, which a float network does not have.
        compression: Ratio of `float32_bytes` to `packed_bytes`.
        input_sizes: Dictionary that maps the name of each trainable binary
            layer to the root mean square of its inputs. Empty without `x`.
    """

    name: str
    layers: list[LayerSummary]
    input_sizes: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def binary_params(self) -> int:
        return self._sum("binary_params")

    @property
    def real_params(self) -> int:
        return self._sum("real_params")

    @property
    def bits_per_weight(self) -> float:
        params = self._sum("params")
        return 8 * self.packed_bytes / params if params else 0.0

    @property
    def packed_bytes(self) -> int:
        return self._sum("packed_bytes")

    @property
    def float32_bytes(self) -> int:
        return self._sum("float32_bytes")

    @property
    def compression(self) -> float:
        return self.float32_bytes / self.packed_bytes if self.layers else 1.0

    def _sum(self, name):
        return sum(getattr(layer, name) for layer in self.layers)

    def __repr__(self):
        layers = f"{len(self.layers)} layers"
        return f"<ModelSummary of {self.name!r} with {layers}>"

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
    width x channels variables.

    "Packed" is the size of the weights in a file of `export.packed`: 1 to 4
    bits for each weight of a binary layer, and of a kernel that `quantize` has
    rounded. A rounded kernel also needs 32 bits for each of its scales.

    The QUBOs are those of `QPSBGD`. A layer with more than 144 inputs has
    several per column: "6 x 131" means six QUBOs with 131 variables each.

    If you pass inputs `x`, the function also shows how large the inputs of the
    binary layers are in training. It warns if those of the first one are not
    scaled, such as pixels from 0 to 255.

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
        layer = kq.layers.BinaryDense(128)
        model = keras.Sequential([keras.layers.InputLayer((784,)), layer])
        found = kq.summary(model)
        print(found.compression)  # about 30
        print(found.layers[0].num_qubos)  # 6
        ```
    """
    _keras.check_is_model(model)
    if not model.built:
        raise ValueError(
            "`model` must be built. Call it on data, call `model.build`, or "
            "start it with a `keras.layers.InputLayer`. Received: "
            f"model={model.name!r}, which is not built"
        )
    layers: list[LayerSummary] = []
    marks = [statistics.mark_of(variable) for variable in model.variables]
    names = statistics.names_of([mark for mark in marks if mark is not None])
    _collect(model, set(), names, layers)
    sizes = {} if x is None else _input_sizes(model, x)
    found = ModelSummary(model.name, layers, sizes)
    if print_fn is not None:
        print_fn(str(found))
    _warn_if_too_large(sizes)
    return found


def _collect(layer, counted, names, found):
    """Adds the summaries of a layer and of the layers that it contains."""
    for part in _parts(layer):
        if id(part) not in counted:
            counted.add(id(part))
            _collect(part, counted, names, found)
    if isinstance(layer, BinaryLayer) and not layer.built:
        raise ValueError(
            "All layers of `model` must be built. Received: the binary layer "
            f"{layer.name!r}, which is not built"
        )
    weights = [weight for weight in layer.weights if id(weight) not in counted]
    counted.update(map(id, weights))
    if weights:
        found.append(_layer_summary(layer, weights, names))


def _parts(layer):
    """Returns the layers inside a layer that get their own lines.

    A layer such as an LSTM is one line, although it contains a cell.
    """
    if isinstance(layer, keras.Model):
        return layer.layers
    parts = _keras.all_layers(layer)
    inside = any(isinstance(part, BinaryLayer) for part in parts)
    return parts if inside else []


class Stored(NamedTuple):
    """A variable in a packed file.

    Attributes:
        num_bytes: Integer. The size of its data.
        is_packed: Boolean. Whether it has 1 to 4 bits per weight.
    """

    num_bytes: int
    is_packed: bool


def stored(variable: Any, is_real: bool = False) -> Stored:
    """Returns how `export.packed` stores a variable.

    Args:
        variable: Variable of a layer.
        is_real: Boolean. Whether a binary layer has a real kernel. Defaults to
            `False`.
    """
    mark = None if is_real else statistics.mark_of(variable)
    if mark is not None:
        count = math.prod(variable.shape)
        return Stored(num_bytes(count, mark.bits), True)
    array = variable.numpy()
    grid = grids.find(array)
    if grid is None:
        return Stored(array.nbytes, False)
    return Stored(grid.num_bytes, True)


def _layer_summary(layer, weights, names):
    # A layer after `use_real_kernel` computes with real weights.
    is_real = getattr(layer, "has_real_kernel", False)
    found = [stored(weight, is_real) for weight in weights]
    counts = [math.prod(weight.shape) for weight in weights]
    binary = sum(count for each, count in zip(found, counts) if each.is_packed)
    has_scale = getattr(layer, "output_scale", None) == "channel"
    scales = math.prod(layer.scale.shape) if has_scale and not is_real else 0
    marks = [statistics.mark_of(weight) for weight in weights]
    mark = None if is_real else next(filter(None, marks), None)
    return LayerSummary(
        names.get(mark, layer.name),
        type(layer).__name__,
        binary,
        sum(counts) - binary,
        sum(each.num_bytes for each in found),
        4 * (sum(counts) - scales),
        mark and mark.num_variables,
        mark and mark.num_columns,
        mark and mark.bits,
    )


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
    names = statistics.names_of(observers)
    return {
        names[mark]: observer.value
        for mark, observer in observers.items()
        if observer.value is not None
    }


def _warn_if_too_large(sizes):
    for name, size in list(sizes.items())[:1]:
        message = statistics.warning_of_size(name, size)
        if message:
            warnings.warn(message, stacklevel=3)


def _memory_lines(found):
    head = ("Layer (type)", "Binary", "Real", "Bits", "Packed", "Float32")
    lines = [
        f'Model: "{found.name}"'[:WIDTH],
        "_" * WIDTH,
        row(head, MEMORY),
        "=" * WIDTH,
    ]
    for layer in found.layers:
        lines.append(_counts(f"{layer.name} ({layer.type})", layer))
    return [
        *lines,
        "_" * WIDTH,
        _counts("Total", found),
        f"Compression: {found.compression:.1f}x",
    ]


def _counts(name, counted):
    cells = (
        f"{counted.binary_params:,}",
        f"{counted.real_params:,}",
        f"{counted.bits_per_weight:.1f}",
        memory_text(counted.packed_bytes),
        memory_text(counted.float32_bytes),
    )
    return row((name, *cells), MEMORY)


def _qubo_lines(found):
    binary = [layer for layer in found.layers if layer.num_qubos]
    if not binary:
        return ["", "The model has no binary layers."]
    head = ("QUBO of layer", "Variables", "Columns")
    lines = ["", row(head, QUBOS), "=" * WIDTH]
    for layer in binary:
        variables = f"{layer.qubo_variables:,}"
        if layer.num_qubos > 1:
            variables = f"{layer.num_qubos} x {variables}"
        cells = (layer.name, variables, f"{layer.num_columns:,}")
        lines.append(row(cells, QUBOS))
    return lines


def _input_lines(found):
    if not found.input_sizes:
        return []
    sizes = [
        f"{name} {size:{',.0f' if size >= 100 else '.3g'}}"
        for name, size in found.input_sizes.items()
    ]
    text = f"Root mean square of the inputs: {', '.join(sizes)}"
    return ["", *textwrap.wrap(text, WIDTH)]
