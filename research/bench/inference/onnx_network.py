"""The float32 network in ONNX Runtime, for the comparison."""

import numpy as np


def runner(weights, activation):
    """Returns a function that predicts with ONNX Runtime, on one thread.

    Args:
        weights: List of pairs of a kernel and a bias, as float32 arrays.
        activation: `"binary"` or `"hard_tanh"`, for all layers except the last.

    Raises:
        ImportError: If onnx or onnxruntime is not installed.
    """
    import onnxruntime
    from onnx import TensorProto
    from onnx import helper
    from onnx import numpy_helper

    constants = {
        "zero": np.float32(0),
        "plus": np.float32(1),
        "minus": np.float32(-1),
    }
    nodes, last = [], "x"
    for index, (kernel, bias) in enumerate(weights):
        constants[f"kernel{index}"] = kernel
        constants[f"bias{index}"] = bias
        inputs = [last, f"kernel{index}", f"bias{index}"]
        last = f"sum{index}"
        nodes.append(helper.make_node("Gemm", inputs, [last]))
        if index == len(weights) - 1:
            break
        if activation == "binary":
            nodes += [
                helper.make_node(
                    "GreaterOrEqual", [last, "zero"], [f"is{index}"]
                ),
                helper.make_node(
                    "Where", [f"is{index}", "plus", "minus"], [f"y{index}"]
                ),
            ]
        else:
            inputs = [last, "minus", "plus"]
            nodes.append(helper.make_node("Clip", inputs, [f"y{index}"]))
        last = f"y{index}"
    shapes = [("x", weights[0][0].shape[0]), (last, weights[-1][0].shape[1])]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, size])
        for name, size in shapes
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        values[:1],
        values[1:],
        [
            numpy_helper.from_array(np.asarray(value), name)
            for name, value in constants.items()
        ],
    )
    # Old enough for all versions of ONNX Runtime.
    opset = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda x: session.run(None, {"x": x})[0]
