"""LiteRT files with 2 or 4 bits per binary weight.

A kernel of binary weights, `levels * scales`, is stored as integers with one
scale per output. An operator `DEQUANTIZE` turns them into floats, so the
products are those of float32:

    bits of the layer   stored type   integer       scale        added
    1                   INT2          level         scales       -
    2                   INT2          (level-1)/2   2 * scales   scales
    3                   INT4          level         scales       -
    4                   INT4          (level-1)/2   2 * scales   scales
"""

import pathlib
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

from keras_qpsbgd import bits
from keras_qpsbgd import disk
from keras_qpsbgd.export import binary_kernels
from keras_qpsbgd.export import stock

# Numbers in the LiteRT schema. Older versions of TensorFlow lack the names.
INT4, INT2 = 17, 19
DEQUANTIZE_VERSION = 6
# Smaller kernels would not shrink.
MIN_WEIGHTS = 256


def litert(model: Any, path: Any) -> None:
    """Writes a model as a LiteRT file, with 2 or 4 bits per binary weight.

    LiteRT was formerly called TensorFlow Lite. The kernels of layers with 1 or
    2 bits are stored with 2 bits per weight, and those of layers with 3 or 4
    bits with 4 bits per weight. The runtime converts them to float32, so the
    outputs are the same up to rounding. It must support 2-bit integers, as
    ai-edge-litert 2.3 and TensorFlow 2.21 do. For older runtimes, pass
    `inference_model(model)`, which has float kernels.

    Args:
        model: Keras model that `inference_model` supports.
        path: Path of the file, usually with the suffix `.tflite`. Missing
            folders are created, and `~` is expanded.

    Raises:
        ValueError: If a layer is not supported, or if `path` is a folder.

    Example:
        ```python
        from ai_edge_litert.interpreter import Interpreter

        kq.export.litert(model, "digits.tflite")
        interpreter = Interpreter("digits.tflite")
        ```
    """
    floats_model = stock.inference_model(model)
    path = disk.file_path(path)
    with tempfile.TemporaryDirectory() as temporary:
        floats = str(pathlib.Path(temporary, "model"))
        stock.export_folder(floats_model, floats)
        content = tf.lite.TFLiteConverter.from_saved_model(floats).convert()
    disk.write(path, _compressed(content, binary_kernels.kernels_of(model)))


def _compressed(content, binary):
    model = flatbuffer_utils.convert_bytearray_to_object(content)
    changed = False
    for subgraph in model.subgraphs:
        graph = _Graph(model, subgraph)
        for index, tensor in enumerate(list(subgraph.tensors)):
            found = _match(model.buffers[tensor.buffer].data, tensor, binary)
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


def _match(data, tensor, binary):
    """Returns the `Kernel` in a constant tensor, or `None`."""
    if tensor.type != schema.TensorType.FLOAT32 or data is None:
        return None
    array = np.asarray(data, np.uint8).view("<f4")
    if array.size < MIN_WEIGHTS or array.size != np.prod(tensor.shape):
        return None
    return binary_kernels.find(array.reshape(tuple(tensor.shape)), binary)


def _replace(graph, index, found):
    """Makes a graph compute a constant tensor from integers, at its start."""
    tensor = graph.tensors[index]
    tensor.buffer = 0
    halved = found.bits in (2, 4)  # all numbers of these bits are used
    stored = 2 if found.bits <= 2 else 4
    numbers = (found.levels - 1) // 2 if halved else found.levels
    codes = numbers.view(np.uint8)  # two's complement
    place = graph.add(
        tensor.name + b"_bits", tensor.shape, bits.pack(codes, stored)
    )
    integers = graph.tensors[place]
    integers.type = INT2 if stored == 2 else INT4
    integers.quantization = schema.QuantizationParametersT()
    # A scale of 0 is not allowed. Its outputs are tiny in any case.
    integers.quantization.scale = np.maximum(
        found.scales * (2 if halved else 1), np.finfo(np.float32).tiny
    )
    integers.quantization.zeroPoint = np.zeros(len(found.scales), np.int64)
    integers.quantization.quantizedDimension = found.axis
    code = schema.BuiltinOperator.DEQUANTIZE
    if not halved:
        graph.run(code, DEQUANTIZE_VERSION, [place], index)
        return
    shape = [1] * len(tensor.shape)
    shape[found.axis] = len(found.scales)
    added = graph.add(tensor.name + b"_added", shape, found.scales)
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
        # The version is the lowest that all operators of the code need.
        codes[number].version = max(codes[number].version, version)
        operator = schema.OperatorT()
        operator.opcodeIndex = number
        operator.inputs = np.array(inputs, np.int32)
        operator.outputs = np.array([output], np.int32)
        self.first.append(operator)
        return operator
