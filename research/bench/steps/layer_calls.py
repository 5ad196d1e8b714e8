"""Calls of single layers and their solvers inside a graph.

A graph contains several calls, which run one after the other as in training.
The overhead of calling the graph from Python is then small, and no two calls
run at the same time. Every call has different data, because TensorFlow would
compute common parts only once.
"""

import numpy as np
import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd import recording
from research.bench import timing

LARGEST_GRADIENT = 4.0  # as scaled by the optimizer


def draw(inputs, outputs, rows, calls):
    """Returns a list of pairs of rows and gradients, as in training."""
    random = np.random.default_rng(0)
    pairs = []
    for _ in range(calls):
        x = np.clip(random.standard_normal((rows, inputs)), -1.0, 1.0)
        v = random.standard_normal((rows, outputs))
        v *= LARGEST_GRADIENT / np.abs(v).max()
        pairs.append((tf.constant(x, tf.float32), tf.constant(v, tf.float32)))
    return pairs


def problem(rows, gradients):
    """Returns the `ops.Problem` of a layer in the same form as in `fit`."""
    call = ops.normalize(rows, gradients, batch=rows.shape[0])
    found = ops.rows_problem(call.normalized_rows, call.row_gradients)
    if rows.shape[1] > recording.WIDE:
        return found
    summed = ops.gram_problem(call.normalized_rows, call.row_gradients)
    return found._replace(couplings=summed.couplings)


def side(function, arguments, repeats, blocks):
    """Returns a `timing.Side` with several calls of a function in one graph.

    Args:
        function: Function to time, called as `function(index,
            *arguments[index])`. One call is one step.
        arguments: List with one entry per call.
        repeats: Number of calls of the graph in a block.
        blocks: Number of blocks to measure.
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
    """Copies a tensor, so that it waits for its control dependencies."""
    return None if tensor is None else tf.identity(tensor)
