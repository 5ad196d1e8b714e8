"""ONNX files with 2 or 4 bits per binary weight.

ONNX Runtime multiplies by weights of 2 and 4 bits with its operator
`MatMulNBits`. A matrix of binary weights, `levels * scales`, is stored as
numbers `u` with `scale * (u - zero)`:

    bits of the layer   stored bits   u              zero   scale
    1                   2             level + 2      2      scales
    2                   2             (level+3)/2    1.5    2 * scales
    3                   4             level + 8      8      scales
    4                   4             (level+15)/2   7.5    2 * scales

Convolutions stay as they are, because ONNX Runtime has no such operator for
them.
"""

import pathlib
import tempfile
from typing import Any

import numpy as np

from keras_qpsbgd import _keras
from keras_qpsbgd import disk
from keras_qpsbgd.export import kernels
from keras_qpsbgd.export import stock
from keras_qpsbgd.ops import max_level

# Number of weights that share a scale. Longer blocks have fewer scales.
BLOCK = 256
DOMAIN = "com.microsoft"
# Smaller matrices would grow, because a block is never shorter.
MIN_INPUTS = 64


def onnx(model: Any, path: Any) -> None:
    """Writes a model as an ONNX file, with 2 or 4 bits per binary weight.

    Matrices of binary weights are stored for the operator `MatMulNBits` of ONNX
    Runtime: 2 bits per weight for layers with 1 or 2 bits, and 4 bits for 3 or
    4. For other runtimes, export the float kernels with
    `inference_model(model).export(path, format="onnx")`. Requires the extra
    `deploy` and Keras 3.

    Args:
        model: Keras model, as for `inference_model`.
        path: Path of the file. Missing folders are created, and `~` is
            expanded.

    Raises:
        ImportError: If `onnx` or `tf2onnx` is not installed.
        ValueError: If a layer is not supported, or if `path` is a folder.

    Example:
        ```python
        import onnxruntime

        kq.export.onnx(model, "digits.onnx")
        session = onnxruntime.InferenceSession("digits.onnx")
        session.run(None, {session.get_inputs()[0].name: x})
        ```
    """
    stock.check(model)
    path = disk.file_path(path)
    if not _keras.KERAS_3:
        raise ValueError(
            "`onnx` requires Keras 3. Legacy Keras does not export ONNX files. "
            "Received: TF_USE_LEGACY_KERAS=1"
        )
    try:
        import onnx as onnx_package
        import tf2onnx  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "`onnx` requires the packages onnx and tf2onnx. Install them with "
            f'`python -m pip install "keras_qpsbgd[deploy]"`. Received: {error}'
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        floats = str(pathlib.Path(folder, "model.onnx"))
        stock.inference_model(model).export(
            floats, format="onnx", verbose=False
        )
        proto = onnx_package.load(floats)
    _compress(proto, kernels.kernels_of(model))
    disk.write(path, proto.SerializeToString())


def _compress(proto, binary):
    """Replaces products with binary kernels in an ONNX graph."""
    from onnx import helper
    from onnx import numpy_helper

    graph = proto.graph
    arrays = {each.name: each for each in graph.initializer}
    matches: dict[str, Any] = {}
    uses = [name for node in graph.node for name in node.input]
    for node in graph.node:
        if node.op_type != "MatMul" or node.input[1] not in arrays:
            continue
        name = node.input[1]
        if name not in matches:
            array = numpy_helper.to_array(arrays[name])
            found = kernels.find(array, binary) if array.ndim == 2 else None
            small = array.shape[0] < MIN_INPUTS
            matches[name] = None if small or found is None else found
            if matches[name] is not None and found.axis == 1:
                for suffix, value in _inputs(found).items():
                    graph.initializer.append(
                        numpy_helper.from_array(value, name + suffix)
                    )
        found = matches[name]
        if found is None or found.axis != 1:
            continue
        inputs, outputs = found.levels.shape
        parts = [name + suffix for suffix in _inputs(found)]
        node.CopyFrom(
            helper.make_node(
                "MatMulNBits",
                [node.input[0], *parts],
                list(node.output),
                name=node.name,
                domain=DOMAIN,
                K=inputs,
                N=outputs,
                bits=_stored_bits(found.bits),
                block_size=BLOCK,
                accuracy_level=1,  # float32 activations
            )
        )
        uses.remove(name)
    for name, found in matches.items():
        if found is not None and name not in uses:
            graph.initializer.remove(arrays[name])
    if any(node.domain == DOMAIN for node in graph.node):
        proto.opset_import.append(helper.make_opsetid(DOMAIN, 1))


def _stored_bits(bits):
    return 2 if bits <= 2 else 4


def _inputs(found):
    """Returns the inputs of `MatMulNBits` after the first, by suffix."""
    stored = _stored_bits(found.bits)
    halved = found.bits == stored  # all numbers of these bits are used
    levels = found.levels.T.astype(np.int16)  # one row per output
    offset = max_level(found.bits) if halved else 2 ** (stored - 1)
    numbers = (levels + offset) // (2 if halved else 1)
    outputs, inputs = numbers.shape
    blocks = -(-inputs // BLOCK)
    padded = np.zeros((outputs, blocks * BLOCK), np.uint8)
    padded[:, :inputs] = numbers
    packed = kernels.pack(padded.reshape(outputs, blocks, BLOCK), stored)
    scales = np.repeat(found.scales * (2 if halved else 1), blocks)
    values = {"_bits": packed, "_scales": scales.astype(np.float32)}
    if halved:
        zero = np.float32(offset / 2)
        values["_zeros"] = np.full(scales.shape, zero, np.float32)
    return values
