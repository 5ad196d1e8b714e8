"""Builds the problems of several layers together, for GPUs.

On a GPU, a step consists of many short operations, and starting them takes most
of the time. Layers with the same number of rows are therefore padded to the
same shape and stacked. Padding has neither inputs nor gradients, so it does not
affect the other entries.
"""

import math

import numpy as np
import tensorflow as tf

from keras_qpsbgd import ops

# Layers are stacked if padding at most doubles the number of weights, or if it
# is small anyway.
PADDING = 2.0
SMALL = 2**18


def groups(layers):
    """Returns lists of indices of the layers that are stacked.

    Args:
        layers: List of pairs `(calls, mark)`.
    """
    found = {}
    for i, (calls, mark) in enumerate(layers):
        (call,) = calls if len(calls) == 1 else (None,)
        rows = call and call.rows.shape[0]
        # All rows with a gradient are kept, and their number is known.
        can_stack = rows is not None and call.kept is None
        place = found.setdefault(rows if can_stack else ("alone", i), [])
        for group in place:
            if _fit_together([layers[j][1] for j in group] + [mark]):
                group.append(i)
                break
        else:
            place.append([i])
    return [group for place in found.values() for group in place]


def _fit_together(marks):
    shapes = [(mark.num_variables, mark.num_columns) for mark in marks]
    n, m = map(max, zip(*shapes))
    alone = sum(math.prod(shape) for shape in shapes)
    return len(marks) * n * m <= max(PADDING * alone, SMALL)


def gather(calls, marks, couplings, wide):
    """Builds the problems of stacked layers.

    Args:
        calls: List of `ops.LayerCall`, one for each layer.
        marks: List of `BinaryKernel`.
        couplings: Boolean. Whether to build the `gram` form.
        wide: Integer. Layers with more inputs have the `rows` form anyway.

    Returns:
        List of tuples `(Problem, Statistics)`.
    """
    shapes = [(mark.num_variables, mark.num_columns) for mark in marks]
    n, m = map(max, zip(*shapes))
    inputs = _stack([call.rows for call in calls], n)
    call = ops.normalize(
        inputs,
        _stack([call.row_gradients for call in calls], m),
        batch=tf.stack([call.batch for call in calls]),
    )
    rows, gradients = call.normalized_rows, call.row_gradients
    if couplings:
        stack = ops.gram_problem(rows, gradients)
        stack = stack._replace(normalized_rows=rows, row_gradients=gradients)
        diagonal, coupled = ops.coupling_diagonal(stack), None
    else:
        stack = ops.rows_problem(rows, gradients)
        diagonal = ops.coupling_diagonal(stack)
        is_wide = np.array([[shape[0] > wide] for shape in shapes])
        coupled = diagonal > 0
        if not is_wide.all():
            coupled &= is_wide | ops.has_couplings(inputs, call.weights)
    stack = stack._replace(diagonal=diagonal)
    informative = ops.has_information(stack, coupled)
    stack = stack._replace(informative=informative)
    statistics = [tf.unstack(part) for part in ops.statistics(call)]
    return [
        (_layer(stack, i, *shape), ops.Statistics(*(s[i] for s in statistics)))
        for i, shape in enumerate(shapes)
    ]


def _stack(tensors, width):
    """Pads matrices with zeros to the same width and stacks them."""
    return tf.stack(
        [
            tf.pad(
                tf.cast(tensor, tf.float32),
                [(0, 0), (0, width - tensor.shape[1])],
            )
            for tensor in tensors
        ]
    )


def _layer(stack, i, n, m):
    """Returns the problem of one layer of a stack."""
    couplings = stack.couplings
    return ops.Problem(
        couplings=None if couplings is None else couplings[i, :n, :n],
        fields=stack.fields[i, :n, :m],
        offset=stack.offset[i, :m],
        normalized_rows=stack.normalized_rows[i, :, :n],
        row_gradients=stack.row_gradients[i, :, :m],
        diagonal=stack.diagonal[i, :n],
        informative=stack.informative[i, :n, :m],
    )
