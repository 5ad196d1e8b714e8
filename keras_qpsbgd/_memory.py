"""Frees what TensorFlow would keep of a training step for ever.

`tf.custom_gradient` enters the gradient of each call in a graph in a table of
TensorFlow's, which is never emptied. The entry keeps the graph, and with it all
that was traced, some kB for each operation. Binary layers make such calls, and
so does every Keras optimizer: each model that was ever trained stays in memory.
"""

import weakref

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

_PREFIX = "CustomGradient-"


def free_with(owner):
    """Frees the custom gradients of the current graph when `owner` is freed.

    For the graph of a training step, with its optimizer as the owner: nobody
    differentiates such a step afterwards. Call it where the tracing of the step
    ends, in each of its branches. Does nothing in eager mode.

    Args:
        owner: an object that the graph does not keep.
    """
    table = _table()
    if tf.executing_eagerly() or table is None:
        return
    current = _with_outer(tf.compat.v1.get_default_graph())
    for name, entry in list(table.items()):
        if name.startswith(_PREFIX) and _graph_of(entry.get("type")) in current:
            weakref.finalize(owner, table.pop, name, None).atexit = False


def _table():
    """TensorFlow's gradients by name, `None` if it keeps them elsewhere."""
    registry = getattr(tf_ops, "gradient_registry", None)
    return getattr(registry, "_registry", None)


def _with_outer(graph):
    """The graph of a function and those that it was traced in."""
    graphs = []
    while getattr(graph, "building_function", False):
        graphs.append(graph)
        graph = graph.outer_graph
    return graphs


def _graph_of(function):
    """The graph of the tensors that a gradient function holds, or `None`."""
    todo = [function]
    for _ in range(4):  # they are two or three functions deep
        todo = [value for item in todo for value in _held_by(item)]
        for value in todo:
            if tf.is_symbolic_tensor(value):
                return value.graph
    return None


def _held_by(value):
    if isinstance(value, (list, tuple)):
        return value
    contents = []
    for cell in getattr(value, "__closure__", None) or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:  # not set yet
            pass
    return contents
