"""Solves several layers in one batch, for GPUs.

Problems of similar shapes are padded to the same shape and stacked. Padding has
no couplings and no fields, so it does not affect the other entries.
"""

import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd import products
from keras_qpsbgd.backends.graph.parallel import blocks

# Values of the argument `search`.
KINDS = ("auto", "sequential", "parallel")
# Layers are solved in one batch if padding them to the same shape at most
# doubles the work, or if the work (n * n * m) is small anyway.
PADDING = 2.0
SMALL_WORK = 2**25
# Stands for the size of an axis of variables.
VARIABLES = object()


def check_kind(kind):
    """Checks the argument `search` of a backend and returns it."""
    if kind not in KINDS:
        raise ValueError(
            f"`search` must be one of {KINDS}. Received: search={kind!r}"
        )
    return kind


def is_parallel(kind):
    """Returns whether `kind` means this search where the step runs."""
    return kind == "parallel" or (kind == "auto" and products.on_gpu())


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
            states[i] = blocks.gather(found[place, :, :m], n)
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
    width = blocks.width(n)
    shapes = {"couplings": (VARIABLES, VARIABLES), "fields": (VARIABLES, m)}
    for name in ("start", "informative"):
        if getattr(problems[0], name) is not None:
            shapes[name] = (VARIABLES, m)
    return ops.Problem(
        **{
            name: tf.stack(
                [_pad(getattr(p, name), shape, width) for p in problems]
            )
            for name, shape in shapes.items()
        }
    )


def _pad(tensor, shape, width):
    """Pads with zeros to `shape`.

    `VARIABLES` divides an axis into blocks of `width` variables.
    """
    padding = []
    for axis, size in enumerate(shape):
        if size is VARIABLES:
            tensor = blocks.spread(tensor, axis, width)
            padding.append((0, 0))
        else:
            padding.append((0, size - tensor.shape[axis]))
    return tf.pad(tensor, padding) if any(end for _, end in padding) else tensor
