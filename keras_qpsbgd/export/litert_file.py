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
    stock.check(model)
    path = disk.file_path(path)
    with tempfile.TemporaryDirectory() as temporary:
        floats = str(pathlib.Path(temporary, "model"))
        stock.export_folder(stock.inference_model(model), floats)
        content = tf.lite.TFLiteConverter.from_saved_model(floats).convert()
    disk.write(path, _compressed(content, binary_kernels.kernels_of(model)))


def _compressed(content, binary):
    from tensorflow.lite.python import schema_py_generated as schema
    from tensorflow.lite.tools import flatbuffer_utils

    model = flatbuffer_utils.convert_bytearray_to_object(content)
    changed = False
    for graph in model.subgraphs:
        for index, tensor in enumerate(list(graph.tensors)):
            found = _match(model, schema, tensor, binary)
            if found is not None:
                _replace(model, schema, graph, index, found)
                changed = True
    if not changed:
        return content
    used = {
        tensor.buffer for graph in model.subgraphs for tensor in graph.tensors
    }
    for number, buffer in enumerate(model.buffers):
        if number not in used and number not in _metadata(model):
            buffer.data = None
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


def _metadata(model):
    return {each.buffer for each in model.metadata or ()}


def _match(model, schema, tensor, binary):
    data = model.buffers[tensor.buffer].data
    if tensor.type != schema.TensorType.FLOAT32 or data is None:
        return None
    array = np.asarray(data, np.uint8).view("<f4")
    if array.size < MIN_WEIGHTS or array.size != np.prod(tensor.shape):
        return None
    return binary_kernels.find(array.reshape(tuple(tensor.shape)), binary)


def _replace(model, schema, graph, index, found):
    """Makes a graph compute a constant tensor from integers, at its start."""
    tensor = graph.tensors[index]
    halved = found.bits in (2, 4)  # all numbers of these bits are used
    stored = 2 if found.bits <= 2 else 4
    numbers = (found.levels - 1) // 2 if halved else found.levels
    codes = numbers.view(np.uint8)  # two's complement
    scales = found.scales * (2 if halved else 1)
    tensor.buffer = 0
    integers = _tensor(schema, tensor, bits.pack(codes, stored), model)
    integers.name = tensor.name + b"_bits"
    integers.type = INT2 if stored == 2 else INT4
    integers.quantization = schema.QuantizationParametersT()
    # A scale of 0 is not allowed. Its outputs are tiny in any case.
    tiny = np.finfo(np.float32).tiny
    integers.quantization.scale = np.maximum(scales, tiny)
    integers.quantization.zeroPoint = np.zeros(len(scales), np.int64)
    integers.quantization.quantizedDimension = found.axis
    graph.tensors.append(integers)
    result = index
    operators = []
    if halved:
        shape = [1] * len(tensor.shape)
        shape[found.axis] = len(found.scales)
        added = _tensor(schema, tensor, found.scales.view(np.uint8), model)
        added.name = tensor.name + b"_added"
        added.shape = np.array(shape, np.int32)
        levels = _tensor(schema, tensor, None, model)
        levels.name = tensor.name + b"_levels"
        graph.tensors += [added, levels]
        result = len(graph.tensors) - 1
        operators.append(
            _operator(
                model,
                schema,
                schema.BuiltinOperator.ADD,
                1,
                [result, result - 1],
                index,
            )
        )
        operators[0].builtinOptionsType = schema.BuiltinOptions.AddOptions
        operators[0].builtinOptions = schema.AddOptionsT()
    operators.insert(
        0,
        _operator(
            model,
            schema,
            schema.BuiltinOperator.DEQUANTIZE,
            DEQUANTIZE_VERSION,
            [graph.tensors.index(integers)],
            result,
        ),
    )
    graph.operators[:0] = operators


def _tensor(schema, like, data, model):
    new = schema.TensorT()
    new.shape, new.type, new.hasRank = like.shape, like.type, True
    new.buffer = 0
    if data is not None:
        buffer = schema.BufferT()
        buffer.data = data
        model.buffers.append(buffer)
        new.buffer = len(model.buffers) - 1
    return new


def _operator(model, schema, code, version, inputs, output):
    known = [each.builtinCode for each in model.operatorCodes]
    if code not in known:
        new = schema.OperatorCodeT()
        new.builtinCode = new.deprecatedBuiltinCode = code
        new.version = version
        model.operatorCodes.append(new)
        known.append(code)
    number = known.index(code)
    # The version is the lowest that all operators of the code need.
    entry = model.operatorCodes[number]
    entry.version = max(entry.version, version)
    operator = schema.OperatorT()
    operator.opcodeIndex = number
    operator.inputs = np.array(inputs, np.int32)
    operator.outputs = np.array([output], np.int32)
    return operator
