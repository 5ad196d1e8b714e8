"""Calls of single layers and their solvers inside a graph.

A graph contains several calls, which run one after the other as in training.
The overhead of calling the graph from Python is then small, and no two calls
run at the same time. Every call has different data, because TensorFlow would
compute common parts only once.
"""

import inspect

import numpy as np
import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd import statistics
from keras_qpsbgd.optimizers import QPSBGD
from keras_qpsbgd.optimizers import qpsbgd
from keras_qpsbgd.optimizers import rules
from research.bench import timing

# Optimizers cannot be created in a graph.
KAPPA = inspect.signature(QPSBGD).parameters["kappa"].default


def draw(inputs, outputs, rows, calls):
    """Returns a list of pairs of rows and gradients, as in training."""
    random = np.random.default_rng(0)
    pairs = []
    for _ in range(calls):
        x = np.clip(random.standard_normal((rows, inputs)), -1.0, 1.0)
        v = random.standard_normal((rows, outputs))
        pairs.append((tf.constant(x, tf.float32), tf.constant(v, tf.float32)))
    return pairs


def layer(backend, rows, gradients):
    """Returns the `ops.LayerProblems` of an update, as in `fit`.

    Args:
        backend: The solver.
        rows: Tensor of shape `(B, n)`.
        gradients: Tensor of shape `(B, m)`.
    """
    gradient = tf.matmul(rows, gradients, transpose_a=True)
    shape = tuple(gradient.shape)
    if not backend.uses_couplings:
        return ops.LayerProblems(rules.signum, (gradient, gradient), shape)
    count, width = statistics.block_shape(shape[0], qpsbgd.WIDEST["averaged"])
    moments = statistics.second_moments(rows, (count, width, width))
    covariance = moments / tf.reduce_sum(tf.linalg.trace(moments))
    # After the first update, a search starts from the last states.
    start = ops.sign(gradient) if backend.warm_start else None
    return ops.LayerProblems(
        rules.averaged,
        (gradient, gradient, covariance, tf.constant(KAPPA), start),
        shape,
        is_warm=start is not None,
    )


def solve(backend, layer, index):
    """Returns the states of a layer. The index of the call is the seed."""
    (states,) = backend.step_in_graph([layer], [tf.constant([index, 0])])
    return states


def given_problems(backend, pairs):
    """Returns the arguments of `side` for solves of given problems.

    Args:
        backend: The solver.
        pairs: The result of `draw`.
    """
    layers = [layer(backend, *pair) for pair in pairs]

    def from_problem(index, *tensors):
        given = layers[index]._replace(tensors=tensors)
        return solve(backend, given, index)

    return from_problem, [given.tensors for given in layers]


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
