"""Prevents a memory leak of TensorFlow in training steps.

In a graph, `tf.custom_gradient` adds the gradient of each call to a table in
TensorFlow that is never cleared. The entry keeps the graph and everything that
was traced with it alive, a few kB for each operation. Binary layers and all
Keras optimizers make such calls, so every trained model would stay in memory.
"""

import weakref

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

_PREFIX = "CustomGradient-"


def free_with(owner):
    """Frees the custom gradients of the current graph when `owner` is freed.

    Use it for the graph of a training step, with the optimizer as the owner.
    This is safe because a training step is not differentiated afterwards. Call
    it at the end of the step and at the end of each branch, while they are
    traced. It does nothing in eager mode.

    Args:
        owner: Object that the graph does not reference.
    """
    table = _table()
    if tf.executing_eagerly() or table is None:
        return
    current = current_graphs()
    for name, entry in list(table.items()):
        if name.startswith(_PREFIX) and _graph_of(entry.get("type")) in current:
            weakref.finalize(owner, table.pop, name, None).atexit = False


def current_graphs():
    """Returns the graph being traced and the graphs that enclose it.

    Outside of a `tf.function`, this is the list `[None]`.
    """
    if tf.executing_eagerly():
        return [None]
    # Legacy Keras builds functional models in a graph that is not a function.
    graphs = [tf.compat.v1.get_default_graph()]
    while getattr(graphs[-1], "building_function", False):
        outer = graphs[-1].outer_graph
        if not getattr(outer, "building_function", False):
            break
        graphs.append(outer)
    return graphs


def _table():
    """Returns TensorFlow's table of gradients, or `None` if not found."""
    registry = getattr(tf_ops, "gradient_registry", None)
    return getattr(registry, "_registry", None)


def _graph_of(function):
    """Returns the graph of the tensors in a gradient function, or `None`."""
    values = [function]
    for _ in range(4):  # the tensors are in closures two or three levels deep
        values = [inner for value in values for inner in _contents(value)]
        for value in values:
            if tf.is_symbolic_tensor(value):
                return value.graph
    return None


def _contents(value):
    """Returns the items of a list or the variables of a closure."""
    if isinstance(value, (list, tuple)):
        return value
    contents = []
    for cell in getattr(value, "__closure__", None) or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:  # the cell is empty
            pass
    return contents
