"""ONNX files with 1, 2 or 4 bits per quantized weight.

A kernel of levels times scales is stored in bytes that contain 8, 4 or 2
weights each. Standard operators look up the levels of each byte in a table and
multiply them by the scales:

    bytes -> Cast -> Gather -> Reshape -> Slice -> Reshape -> Cast -> Mul

Their inputs are constants, so ONNX Runtime computes them once, when it loads
the file, and then multiplies by float kernels. Its operator `MatMulNBits` keeps
2 or 4 bits in memory, but unpacks them in every call. It was slower than the
float product for all shapes and batch sizes that we tried, and there is no such
operator for convolutions.
"""

import pathlib
import tempfile
from typing import Any

import numpy as np

from keras_qpsbgd import _keras
from keras_qpsbgd import bits as bits_module
from keras_qpsbgd import disk
from keras_qpsbgd import grids
from keras_qpsbgd.bits import max_level
from keras_qpsbgd.export import stock

# Smaller kernels would not shrink.
MIN_WEIGHTS = 256


def onnx(model: Any, path: Any) -> None:
    """Writes a model as an ONNX file, with 1, 2 or 4 bits per quantized weight.

    Kernels of binary layers and kernels that `quantize` has rounded are stored
    with 1, 2 or 4 bits per weight. Weights of 3 bits take 4 bits. ONNX Runtime
    converts them to float32 when it loads the file. Predictions then take the
    same time and memory as with the float kernels of
    `inference_model(model).export(path, format="onnx")`. Requires the extra
    `deploy` and Keras 3.

    Args:
        model: Keras model that `inference_model` supports.
        path: Path of the file. Missing folders are created, and `~` is
            expanded.

    Raises:
        ImportError: If `onnx` or `tf2onnx` is not installed.
        ValueError: If a layer is not supported, if `path` is a folder, or with
            legacy Keras.

    Example:
        ```python
        import onnxruntime

        kq.export.onnx(model, "digits.onnx")
        session = onnxruntime.InferenceSession("digits.onnx")
        (outputs,) = session.run(None, {session.get_inputs()[0].name: x})
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
    _check_operators(proto.graph)
    _compress(proto.graph)
    disk.write(path, proto.SerializeToString())


def _check_operators(graph):
    """Raises a `ValueError` if tf2onnx left TensorFlow operators in a graph.

    tf2onnx does not convert functions that are compiled with XLA, which Keras 3
    uses for grouped convolutions.
    """
    from onnx import defs

    unknown = [
        node for node in graph.node if not defs.has(node.op_type, node.domain)
    ]
    if unknown:
        # The name of an operator is the path of its layer and its type.
        paths = {node.name.rpartition("/")[0]: None for node in unknown}
        raise ValueError(
            "`model` must only have layers that tf2onnx converts to standard "
            "operators. It converts neither the exact `gelu` nor convolutions "
            f"with `groups`. Received: {', '.join(paths)}"
        )


def _compress(graph):
    """Replaces kernels on a grid in a graph with nodes that compute them."""
    from onnx import GraphProto
    from onnx import numpy_helper

    nodes, constants, count = [], {}, 0
    for stored in list(graph.initializer):
        array = numpy_helper.to_array(stored)
        if array.size < MIN_WEIGHTS:
            continue
        found = grids.find(array, grids.TOLERANCE)
        if found is not None:
            graph.initializer.remove(stored)
            nodes += _unpacking(found, stored.name, f"bits{count}", constants)
            count += 1
    for name, value in constants.items():
        graph.initializer.append(numpy_helper.from_array(value, name))
    # Nodes must come after those whose outputs they use.
    copied = GraphProto(node=[*nodes, *graph.node])
    del graph.node[:]
    graph.node.extend(copied.node)


def _unpacking(found, name, prefix, constants):
    """Returns the nodes that compute a kernel, and adds their constants.

    Args:
        found: A `Grid`.
        name: String. Name of the kernel in the graph.
        prefix: String. Start of the names of the other tensors.
        constants: Dictionary that maps names to arrays. Constants are added to
            it. All kernels with the same number of bits share the table of the
            levels.
    """
    from onnx import TensorProto
    from onnx import helper

    bits = 4 if found.bits == 3 else found.bits
    levels = found.levels
    codes = (levels + max_level(found.bits)).astype(np.uint8) // 2
    table = f"levels_of_{found.bits}_bits"
    constants |= {
        table: _table(bits, found.bits),
        f"{prefix}/bytes": bits_module.pack(codes, bits),
        f"{prefix}/scales": found.scales,
        f"{prefix}/shape": np.array(levels.shape, np.int64),
        f"{prefix}/size": np.array([levels.size], np.int64),
        "bits/flat": np.array([-1], np.int64),
        "bits/first": np.array([0], np.int64),
    }
    nodes = []
    last = f"{prefix}/bytes"
    for index, (kind, before, after, attributes) in enumerate(
        (
            ("Cast", [], [], {"to": TensorProto.INT32}),
            ("Gather", [table], [], {}),
            ("Reshape", [], ["bits/flat"], {}),
            ("Slice", [], ["bits/first", f"{prefix}/size"], {}),
            ("Reshape", [], [f"{prefix}/shape"], {}),
            ("Cast", [], [], {"to": TensorProto.FLOAT}),
            ("Mul", [], [f"{prefix}/scales"], {}),
        )
    ):
        output = name if kind == "Mul" else f"{prefix}/{index}"
        inputs = [*before, last, *after]
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        last = output
    return nodes


def _table(stored_bits, bits):
    """Returns the levels of the weights in each of the 256 bytes."""
    shifts = stored_bits * np.arange(8 // stored_bits)
    numbers = (np.arange(256)[:, None] >> shifts) & (2**stored_bits - 1)
    # With 3 bits, the numbers 8 to 15 do not occur.
    levels = 2 * numbers - max_level(bits)
    return np.minimum(levels, max_level(bits)).astype(np.int8)
