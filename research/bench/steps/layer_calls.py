"""Single layers inside a graph: their QUBOs, and what is done with them.

Several calls make one graph, one after the other, as in training; so the call
of the graph from Python hardly counts, and no two calls run at once. Each has
data of its own: what two had in common would be computed once.
"""

import numpy as np
import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd import recording
from research.bench import timing

LARGEST_GRADIENT = 4.0  # what the optimizer scales gradients to


def draw(inputs, outputs, rows, calls):
    """Rows and gradients of layers, as in training; a list of pairs."""
    random = np.random.default_rng(0)
    pairs = []
    for _ in range(calls):
        x = np.clip(random.standard_normal((rows, inputs)), -1.0, 1.0)
        v = random.standard_normal((rows, outputs))
        v *= LARGEST_GRADIENT / np.abs(v).max()
        pairs.append((tf.constant(x, tf.float32), tf.constant(v, tf.float32)))
    return pairs


def problem(rows, gradients):
    """The `ops.Problem` of a layer, in the form that `fit` gives it."""
    call = ops.normalize(rows, gradients, batch=rows.shape[0])
    found = ops.rows_problem(call.normalized_rows, call.row_gradients)
    if rows.shape[1] > recording.WIDE:
        return found
    summed = ops.gram_problem(call.normalized_rows, call.row_gradients)
    return found._replace(couplings=summed.couplings)


def side(function, arguments, repeats, blocks):
    """A `timing.Side` of `function(index, *arguments[index])` in one graph.

    Args:
        function: what is timed, one call of it a step.
        arguments: a list, one entry for each call.
        repeats: calls of the graph in a block.
        blocks: how many blocks to measure.
    """

    @tf.function(autograph=False)
    def graph(arguments):
        outputs = []
        for index, values in enumerate(arguments):
            with tf.control_dependencies(tf.nest.flatten(outputs[-1:])):
                values = tf.nest.map_structure(_later, values)
                outputs.append(function(index, *values))
        return outputs

    def block():
        for _ in range(repeats):
            last = tf.nest.flatten(graph(arguments))[-1]
        last.numpy()

    return timing.Side(block, repeats * len(arguments), blocks)


def _later(tensor):
    """The tensor, as an operation that waits for the calls before it."""
    return None if tensor is None else tf.identity(tensor)
