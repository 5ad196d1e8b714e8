"""LiteRT files with 2 or 4 bits per quantized weight.

A kernel of levels times scales is stored as integers with one scale for each
entry of an axis. An operator `DEQUANTIZE` turns them into floats, so the
products are those of float32:

    bits of the kernel  stored type   integer       scale        added
    1                   INT2          level         scales       -
    2                   INT2          (level-1)/2   2 * scales   scales
    3                   INT4          level         scales       -
    4                   INT4          (level-1)/2   2 * scales   scales
"""

import contextlib
import pathlib
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

from keras_qpsbgd import bits
from keras_qpsbgd import disk
from keras_qpsbgd import grids
from keras_qpsbgd._messages import reason
from keras_qpsbgd.export import stock
from keras_qpsbgd.quantization import targets

# Numbers in the LiteRT schema. Older versions of TensorFlow lack the names.
INT4, INT2 = 17, 19
DEQUANTIZE_VERSION = 6
# Smaller kernels would not shrink.
MIN_WEIGHTS = 256


def litert(model: Any, path: Any) -> None:
    """Writes a model as a LiteRT file, with 2 or 4 bits per quantized weight.

    LiteRT was formerly called TensorFlow Lite. Kernels of binary layers and
    kernels that `quantize` has rounded are stored with 2 bits per weight for 1
    or 2 bits, and with 4 bits per weight for 3 or 4 bits. The runtime converts
    them to float32, so the outputs are the same up to rounding. It must support
    2-bit integers, as ai-edge-litert 2.3 and TensorFlow 2.21 do. For older
    runtimes, convert the folder of `saved_model` with TensorFlow, which keeps
    the floats.

    Args:
        model: Keras model that `inference_model` supports.
        path: Path of the file, usually with the suffix `.tflite`. Missing
            folders are created, and `~` is expanded.

    Raises:
        ValueError: If a layer is not supported, such as an `LSTM` without
            `unroll=True`, or if `path` is a folder. The message names such
            layers.

    Example:
        ```python
        from ai_edge_litert.interpreter import Interpreter

        kq.export.litert(model, "digits.tflite")
        interpreter = Interpreter("digits.tflite")
        ```
    """
    floats_model = stock.inference_model(model)
    path = disk.file_path(path)
    try:
        content = _converted(floats_model)
    except Exception as error:  # the converter may raise anything
        names = ", ".join(_failing_layers(floats_model)) or reason(error)
        raise ValueError(
            "`model` must only have layers that the converter of LiteRT "
            "supports. Recurrent layers need `unroll=True`. "
            f"Received: {names}"
        ) from error
    disk.write(path, _compressed(content))


def _converted(model):
    """Returns the content of a LiteRT file with float kernels."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(pathlib.Path(temporary, "model"))
        stock.export_folder(model, folder)
        return tf.lite.TFLiteConverter.from_saved_model(folder).convert()


def _failing_layers(model):
    """Returns the layers of a type that the converter does not support.

    The errors of the converter do not always name a layer, so the first layer
    of each type is converted alone.
    """
    failed: dict[Any, bool] = {}
    found = []
    for name, layer in targets.walk(model):
        kind = type(layer)
        if kind not in failed:
            failed[kind] = False
            with contextlib.suppress(TypeError, ValueError, AttributeError):
                inputs = stock.copied_inputs(layer)
                part = keras.Model(inputs, layer(inputs))
                failed[kind] = not _can_convert(part)
        if failed[kind]:
            found.append(f"{name} ({kind.__name__})")
    return found


def _can_convert(model):
    try:
        _converted(model)
    except Exception:  # the converter has errors of several types
        return False
    return True


def _compressed(content):
    model = flatbuffer_utils.convert_bytearray_to_object(content)
    changed = False
    for subgraph in model.subgraphs:
        graph = _Graph(model, subgraph)
        for index, tensor in enumerate(list(subgraph.tensors)):
            found = _match(model.buffers[tensor.buffer].data, tensor)
            if found is not None:
                _replace(graph, index, found)
                changed = True
        subgraph.operators[:0] = graph.first
    if not changed:
        return content
    used = {
        tensor.buffer for graph in model.subgraphs for tensor in graph.tensors
    }
    used |= {each.buffer for each in model.metadata or ()}
    for number, buffer in enumerate(model.buffers):
        if number not in used:
            buffer.data = None
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


def _match(data, tensor):
    """Returns the `Grid` in a constant tensor, or `None`."""
    if tensor.type != schema.TensorType.FLOAT32 or data is None:
        return None
    array = np.asarray(data, np.uint8).view("<f4")
    if array.size < MIN_WEIGHTS or array.size != np.prod(tensor.shape):
        return None
    axes = [(axis,) for axis in range(len(tensor.shape))]
    shape = tuple(tensor.shape)
    return grids.find(array.reshape(shape), grids.TOLERANCE, axes)


def _replace(graph, index, found):
    """Replaces a constant tensor with integers and operators."""
    tensor = graph.tensors[index]
    tensor.buffer = 0
    halved = found.bits in (2, 4)  # all stored integers are used
    stored = 2 if found.bits <= 2 else 4
    numbers = (found.levels - 1) // 2 if halved else found.levels
    codes = numbers.view(np.uint8)  # two's complement
    place = graph.add(
        tensor.name + b"_bits", tensor.shape, bits.pack(codes, stored)
    )
    integers = graph.tensors[place]
    integers.type = INT2 if stored == 2 else INT4
    integers.quantization = schema.QuantizationParametersT()
    # LiteRT does not allow a scale of 0. The outputs are negligible anyway.
    scales = found.scales.ravel()
    integers.quantization.scale = np.maximum(
        scales * (2 if halved else 1), np.finfo(np.float32).tiny
    )
    integers.quantization.zeroPoint = np.zeros(len(scales), np.int64)
    integers.quantization.quantizedDimension = found.axes[0]
    code = schema.BuiltinOperator.DEQUANTIZE
    if not halved:
        graph.run(code, DEQUANTIZE_VERSION, [place], index)
        return
    added = graph.add(tensor.name + b"_added", found.scales.shape, scales)
    levels = graph.add(tensor.name + b"_levels", tensor.shape)
    graph.run(code, DEQUANTIZE_VERSION, [place], levels)
    add = graph.run(schema.BuiltinOperator.ADD, 1, [levels, added], index)
    add.builtinOptionsType = schema.BuiltinOptions.AddOptions
    add.builtinOptions = schema.AddOptionsT()


class _Graph:
    """A graph to which tensors and operators are added.

    Args:
        model: `ModelT` of the LiteRT schema.
        graph: `SubGraphT` of the model.

    Attributes:
        tensors: List of the tensors of the graph.
        first: List of the new operators, which run before the others.
    """

    def __init__(self, model, graph):
        self._model = model
        self.tensors = graph.tensors
        self.first = []

    def add(self, name, shape, data=None):
        """Adds a float32 tensor, a constant if there are data.

        Returns:
            The index of the tensor.
        """
        new = schema.TensorT()
        new.name, new.shape = name, np.array(shape, np.int32)
        new.type, new.hasRank, new.buffer = schema.TensorType.FLOAT32, True, 0
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = data.view(np.uint8)
            new.buffer = len(self._model.buffers)
            self._model.buffers.append(buffer)
        self.tensors.append(new)
        return len(self.tensors) - 1

    def run(self, code, version, inputs, output):
        """Adds an operator and returns it."""
        codes = self._model.operatorCodes
        known = [each.builtinCode for each in codes]
        if code not in known:
            entry = schema.OperatorCodeT()
            entry.builtinCode = entry.deprecatedBuiltinCode = code
            codes.append(entry)
            known.append(code)
        number = known.index(code)
        # The version must be high enough for all operators with this code.
        codes[number].version = max(codes[number].version, version)
        operator = schema.OperatorT()
        operator.opcodeIndex = number
        operator.inputs = np.array(inputs, np.int32)
        operator.outputs = np.array([output], np.int32)
        self.first.append(operator)
        return operator
