"""Solves several layers in one batch, for GPUs.

Problems of similar shapes are padded to the same shape and stacked. Padding has
no couplings and no fields, so it does not affect the other entries.
"""

import functools

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
# Rows of a layer without couplings, to estimate the work.
TYPICAL_ROWS = 128


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


def in_batches(problems, seeds, solve, finish, kind=lambda problem: None):
    """Solves layers of similar shapes together.

    Args:
        problems: List of `ops.Problem`.
        seeds: List of int32 tensors of shape `(2,)`.
        solve: Function of a stack of problems, the number of inputs of each of
            them and their seeds. Returns states of shape `(layers, m, n)`.
        finish: Function of states of shape `(layers, n, m)` and the stack.
        kind: Function of a problem. Problems with different results are not
            solved together.

    Returns:
        List of the finished states of each layer, of shape `(n, m)`.
    """
    states = [None] * len(problems)
    for batch in _batches(problems, kind):
        stack = _stack([problems[i] for i in batch])
        sizes = [problems[i].fields.shape[0] for i in batch]
        found = solve(stack, sizes, tf.stack([seeds[i] for i in batch]))
        found = finish(tf.linalg.matrix_transpose(found), stack)
        for place, i in enumerate(batch):
            n, m = problems[i].fields.shape
            states[i] = blocks.gather(found[place, :, :m], n)
    return states


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
    return problem.couplings is None, problem.start is None


def _work(problems):
    """Estimates the work of a batch, the number of products per move."""
    n, m = _largest_shape(problems)
    rows = TYPICAL_ROWS if problems[0].couplings is None else n
    return len(problems) * n * m * rows


def _largest_shape(problems):
    shapes = [problem.fields.shape for problem in problems]
    return tuple(max(sizes) for sizes in zip(*shapes))


def _stack(problems):
    """Pads problems with zeros to the same shape and stacks them."""
    n, m = _largest_shape(problems)
    width = blocks.width(n)
    shapes = {"fields": (VARIABLES, m), "offset": (m,)}
    optional = {
        "start": (VARIABLES, m),
        "diagonal": (VARIABLES,),
        "informative": (VARIABLES, m),
    }
    for name, shape in optional.items():
        if all(getattr(problem, name) is not None for problem in problems):
            shapes[name] = shape
    if problems[0].couplings is not None:
        shapes["couplings"] = (VARIABLES, VARIABLES)
    else:
        rows = _most_rows(problems)
        shapes |= {
            "normalized_rows": (rows, VARIABLES),
            "row_gradients": (rows, m),
        }
    stacked = {
        name: tf.stack([_pad(getattr(p, name), shape, width) for p in problems])
        for name, shape in shapes.items()
    }
    return ops.Problem(**{"couplings": None, **stacked})


def _most_rows(problems):
    """Returns the largest number of rows, an integer if it is known."""
    rows = [problem.normalized_rows for problem in problems]
    if len(rows) == 1 or None not in [z.shape[0] for z in rows]:
        return max(z.shape[0] or 0 for z in rows) or None
    return functools.reduce(tf.maximum, [tf.shape(z)[0] for z in rows])


def _pad(tensor, shape, width):
    """Pads with zeros to `shape`.

    `None` keeps a size. `VARIABLES` divides an axis into blocks of `width`
    variables.
    """
    padding = []
    for axis, size in enumerate(shape):
        if size is VARIABLES:
            tensor = blocks.spread(tensor, axis, width)
            size = None
        known = tensor.shape[axis]
        before = tf.shape(tensor)[axis] if known is None else known
        padding.append((0, 0 if size is None else size - before))
    if not any(tf.is_tensor(end) or end for _, end in padding):
        return tensor
    return tf.pad(tensor, padding)
