"""Solves several problems in one batch.

Problems of equal shapes are stacked. On a GPU, which is faster with fewer and
larger batches, problems of similar shapes are padded to the same shape and
stacked, too. Padding has no couplings and no fields, so it does not affect the
other entries.
"""

import tensorflow as tf

from keras_qpsbgd.backends.graph import products
from keras_qpsbgd.qubo import ops

# On a GPU, problems are solved in one batch if padding them to the same shape
# at most doubles the work, or if the work (n * n * m) is small anyway.
PADDING = 2.0
SMALL_WORK = 2**25


def in_batches(layers, solve, finish):
    """Solves problems of similar shapes together.

    Args:
        layers: List of lists of `ops.Problem`.
        solve: Function of a stack of problems and the number of inputs of each
            of them. Returns states of shape `(stack, n, m)`.
        finish: Function of states of shape `(stack, n, m)` and the stack.

    Returns:
        For each layer, a list with the finished states of each problem, of
        shape `(n, m)`.
    """
    problems = [problem for layer in layers for problem in layer]
    states = [None] * len(problems)
    for batch in _batches(problems):
        stack = _stack([problems[i] for i in batch])
        sizes = [problems[i].fields.shape[0] for i in batch]
        found = finish(solve(stack, sizes), stack)
        for place, i in enumerate(batch):
            n, m = problems[i].fields.shape
            states[i] = found[place, :n, :m]
    states = iter(states)
    return [[next(states) for _ in layer] for layer in layers]


def _batches(problems):
    """Returns lists of indices of the problems that are solved together."""
    batches = []
    order = sorted(range(len(problems)), key=lambda i: -_work([problems[i]]))
    for i in order:
        for batch in batches:
            together = [problems[j] for j in batch] + [problems[i]]
            same = len({_form(problem) for problem in together}) == 1
            if same and _work(together) <= _limit(together):
                batch.append(i)
                break
        else:
            batches.append([i])
    return batches


def _form(problem):
    return problem.start is None, problem.informative is None


def _limit(problems):
    alone = sum(_work([problem]) for problem in problems)
    return max(PADDING * alone, SMALL_WORK) if products.on_gpu() else alone


def _work(problems):
    """Estimates the work of a batch, the number of products per sweep."""
    n, m = _largest_shape(problems)
    return len(problems) * n * n * m


def _largest_shape(problems):
    shapes = [problem.fields.shape for problem in problems]
    return tuple(max(sizes) for sizes in zip(*shapes))


def _stack(problems):
    """Pads problems with zeros to the same shape and stacks them."""
    n, m = _largest_shape(problems)

    def stack(name):
        tensors = [getattr(problem, name) for problem in problems]
        if tensors[0] is None:
            return None
        width = n if name == "couplings" else m
        return tf.stack(
            [ops.padded(ops.padded(t, 0, n), 1, width) for t in tensors]
        )

    return ops.Problem(*map(stack, ops.Problem._fields))
