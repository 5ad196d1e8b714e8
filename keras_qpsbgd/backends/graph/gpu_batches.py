"""Solves several layers in one batch, for GPUs.

Problems of similar shapes are padded to the same shape and stacked. Padding has
no couplings and no fields, so it does not affect the other entries.

The variables of each layer form `SLICES` slices. Slices are padded to the same
width when layers are stacked. The slices of a layer, and so its states, do not
depend on the other layers.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_qpsbgd.backends.graph import products
from keras_qpsbgd.backends.graph.graph_backend import GraphBackend
from keras_qpsbgd.qubo import ops

# Values of the argument `search`.
KINDS = ("auto", "sequential", "parallel")
# Layers are solved in one batch if padding them to the same shape at most
# doubles the work, or if the work (n * n * m) is small anyway.
PADDING = 2.0
SMALL_WORK = 2**25
# Number of slices of the variables of a layer.
SLICES = 16


class BatchedBackend(GraphBackend):
    """Base class of backends that can solve all layers together, for GPUs.

    Args:
        search: String. One of `"sequential"`, `"parallel"` and `"auto"`, which
            means `"parallel"` if TensorFlow uses a GPU, else `"sequential"`.
    """

    def __init__(self, search: str) -> None:
        if search not in KINDS:
            raise ValueError(
                f"`search` must be one of {KINDS}. Received: search={search!r}"
            )
        super().__init__()
        self.search_kind = search

    def is_parallel(self) -> bool:
        """Returns whether all layers are solved together."""
        if self.search_kind == "auto":
            return products.on_gpu()
        return self.search_kind == "parallel"

    def get_config(self) -> dict[str, Any]:
        if self.search_kind == "auto":
            return {}
        return {"search": self.search_kind}

    def _groups(self, shapes):
        if self.is_parallel():
            return [list(range(len(shapes)))]
        return super()._groups(shapes)


def in_batches(layers, seeds, solve, finish, kind=lambda problem: None):
    """Solves problems of similar shapes together.

    Args:
        layers: List of lists of `ops.Problem`.
        seeds: List of int32 tensors of shape `(2,)`, one for each layer.
        solve: Function of a stack of problems, the number of inputs of each of
            them and their seeds. Returns states of shape `(layers, m, n)`.
        finish: Function of states of shape `(layers, n, m)` and the stack.
        kind: Function of a problem. Problems with different results are not
            solved together.

    Returns:
        For each layer, a list with the finished states of each problem, of
        shape `(n, m)`.
    """
    problems = [problem for layer in layers for problem in layer]
    seeds = [seed for layer, seed in zip(layers, seeds) for _ in layer]
    states = [None] * len(problems)
    for batch in _batches(problems, kind):
        stack = _stack([problems[i] for i in batch])
        sizes = [problems[i].fields.shape[0] for i in batch]
        found = solve(stack, sizes, tf.stack([seeds[i] for i in batch]))
        found = finish(tf.linalg.matrix_transpose(found), stack)
        for place, i in enumerate(batch):
            n, m = problems[i].fields.shape
            states[i] = _unpad(found[place, :, :m], n)
    states = iter(states)
    return [[next(states) for _ in layer] for layer in layers]


def _batches(problems, kind):
    """Returns lists of indices of the layers that are solved together."""
    batches = []
    order = sorted(range(len(problems)), key=lambda i: -_work([problems[i]]))
    for i in order:
        for batch in batches:
            together = [problems[j] for j in batch] + [problems[i]]
            alone = sum(_work([problem]) for problem in together)
            limit = max(PADDING * alone, SMALL_WORK)
            same = len({(_form(p), kind(p)) for p in together}) == 1
            if same and _work(together) <= limit:
                batch.append(i)
                break
        else:
            batches.append([i])
    return batches


def _form(problem):
    return problem.start is None, problem.informative is None


def _work(problems):
    """Estimates the work of a batch, the number of products per move."""
    n, m = _largest_shape(problems)
    return len(problems) * n * n * m


def _largest_shape(problems):
    shapes = [problem.fields.shape for problem in problems]
    return tuple(max(sizes) for sizes in zip(*shapes))


def _stack(problems):
    """Pads problems with zeros to the same shape and stacks them."""
    n, m = _largest_shape(problems)
    width = _width(n)

    def stack(name):
        tensors = [getattr(problem, name) for problem in problems]
        if tensors[0] is None:
            return None
        tensors = [_spread(tensor, 0, width) for tensor in tensors]
        if name == "couplings":
            return tf.stack([_spread(tensor, 1, width) for tensor in tensors])
        return tf.stack([ops.padded(tensor, 1, m) for tensor in tensors])

    return ops.Problem(*map(stack, ops.Problem._fields))


def _width(n):
    """Returns the number of variables per slice of a layer with n inputs."""
    return -(-n // SLICES)


def _spread(tensor, axis, new_width):
    """Pads an axis of n variables so that each slice has `new_width`."""
    n = tensor.shape[axis]
    old_width = _width(n)
    tensor = ops.padded(tensor, axis, SLICES * old_width)
    if old_width == new_width:
        return tensor
    shape = [-1 if size is None else size for size in tensor.shape]
    slices = shape[:axis] + [SLICES, old_width] + shape[axis + 1 :]
    tensor = tf.reshape(tensor, slices)
    tensor = ops.padded(tensor, axis + 1, new_width)
    shape[axis] = SLICES * new_width
    return tf.reshape(tensor, shape)


def _unpad(states, n):
    """Returns the n variables of a layer from padded states (_, m)."""
    padded, m = states.shape
    states = tf.reshape(states, (SLICES, padded // SLICES, m))
    return tf.reshape(states[:, : _width(n)], (-1, m))[:n]


def positions(sizes, new_width):
    """Returns the original index of each padded variable, for all layers.

    Args:
        sizes: List of integers. Number of inputs of each layer.
        new_width: Integer. Width of the padded slices.

    Returns:
        Array of shape `(layers, SLICES * new_width)`.
    """
    index, place = np.divmod(np.arange(SLICES * new_width), new_width)
    return np.array([index * _width(n) + place for n in sizes])


def slices_first(x):
    """Reshapes (layers, lanes, n) to (layers, SLICES, lanes, n / SLICES)."""
    layers, lanes, n = x.shape
    x = tf.reshape(x, (layers, lanes, SLICES, n // SLICES))
    return tf.transpose(x, (0, 2, 1, 3))
