"""What training costs: gradient evaluations and QPU time.

**Gradient evaluations.** All methods multiply matrices that have a row for each
sample: forward and backward passes, second moments of inputs, and losses of
solutions. This module counts the multiplications and additions of these
products, from the sizes of the layers. One gradient evaluation is what an
update of Adam with one mini-batch takes. Functions of single numbers, such as
activations, are not counted, and neither is the solver.

Where a number depends on the run, the largest one counts: a sweep of
`kq.fit_columns` visits all columns, computes the loss of the solution of each
damping, and each solution changes all weights.

**QPU time.** An estimate of the library for the mock QPU, as
`python -m keras_qpsbgd qpu-cost` prints it. No QPU is used.
"""

import functools

from keras_qpsbgd import backends
from keras_qpsbgd.backends.dwave.cost import layer_cost
from keras_qpsbgd.backends.dwave.cost import step_calls
from keras_qpsbgd.layers import statistics
from keras_qpsbgd.optimizers.averaged_rule import Averaged
from keras_qpsbgd.qubo.blocks import block_sizes
from research.few_solves.methods import COLUMNS
from research.few_solves.methods import MINI
from research.few_solves.methods import OURS
from research.few_solves.methods import SWEEPS

# The derivatives of a column take a forward and a backward pass through the
# layers after it, and the derivatives of both for the curvature.
PASSES = 4
# Costs this close to a budget are within it.
ROUNDING = 1e-6


def batch_size(task, kind, rows):
    """Returns the number of samples of a sweep or of an update.

    Args:
        task: A `Task`.
        kind: The kind of a method.
        rows: Integer. Number of training samples.
    """
    size = task.mini if kind == MINI else task.batch
    # Quick runs have few rows.
    return rows if size is None else min(size, rows // 2)


def price(task, method, rows):
    """Returns the cost of a sweep or of an update.

    Args:
        task: A `Task`.
        method: A `Method`.
        rows: Integer. Number of training samples.

    Returns:
        A tuple of gradient evaluations and QPU seconds.
    """
    shapes, size = task.shapes, batch_size(task, method.kind, rows)
    qpu = 0.0
    if method.kind == COLUMNS:
        dampings = len(method.grid[0])
        products = size * sweep(shapes, dampings)
        if task.is_normalized:
            products += size * gradient(shapes)
            products += task.probe * forward(shapes)
        qpu = qpu_seconds(shapes, dampings)
    else:
        products = size * gradient(shapes)
        if method.uses_qubos:
            products += min(size, statistics.MAX_ROWS) * moments(shapes)
            qpu = qpu_seconds(shapes)
    return products / (task.mini * gradient(shapes)), qpu


def counts(task, name, rows):
    """Returns the numbers of sweeps or updates of the runs of a method.

    Methods with updates have some at the cost of the default sweeps of
    `kq.fit_columns`: the most updates within the budget.

    Args:
        task: A `Task`.
        name: The name of a method.
        rows: Integer. Number of training samples.

    Returns:
        A tuple of increasing integers.
    """
    method = task.methods[name]
    found = set(task.counts[method.kind])
    if method.kind != COLUMNS:
        ours = price(task, task.methods[OURS], rows)
        for budget, cost in zip(ours, price(task, method, rows)):
            if cost:
                found.add(int(SWEEPS * budget / cost * (1 + ROUNDING)))
    return tuple(sorted(found - {0}))


def forward(shapes):
    """Returns the number of multiplications of a forward pass, per sample.

    Args:
        shapes: List of the shapes `(inputs, outputs)` of the kernels.
    """
    return sum(n * m for n, m in shapes)


def gradient(shapes):
    """Returns the number of multiplications of a gradient, per sample.

    The inputs of the network need no gradient.
    """
    return 2 * forward(shapes) + forward(shapes[1:])


def moments(shapes):
    """Returns that of the second moments of `kq.QPSBGD`, per sample."""
    return sum(n * n for n, _ in _blocks(shapes))


def _blocks(shapes):
    widest = Averaged.widest
    return [block for shape in shapes for block in block_sizes(*shape, widest)]


def sweep(shapes, num_dampings):
    """Returns that of a sweep of `kq.fit_columns`, per sample."""
    total = 0
    for position, (n, m) in enumerate(shapes):
        after = shapes[position + 1 :]
        # All inputs and outputs once, and the second moments of the inputs.
        total += forward(shapes) + n * n
        rest = forward(after)
        if after and after[0][1] <= m:
            # A column changes the next product by an outer product.
            rest = after[0][1] + forward(after[1:])
        total += m * (PASSES * rest + n)
        total += m * num_dampings * (n + rest)
    return total


@functools.cache
def qpu_seconds(shapes, num_dampings=None):
    """Estimates QPU seconds.

    Args:
        shapes: Tuple of the shapes `(inputs, outputs)` of the kernels.
        num_dampings: Integer (optional). Number of dampings of
            `kq.fit_columns`. `None` is an update of `kq.QPSBGD`.

    Returns:
        The seconds of a sweep or of an update.
    """
    backend = backends.get({"name": "dwave", "mock": True})
    if num_dampings is None:
        return float(step_calls(backend, _blocks(shapes)).seconds)
    # A visit of a column is a call with a QUBO for each damping.
    visits = [
        m * layer_cost(backend, n, num_dampings).seconds for n, m in shapes
    ]
    return float(sum(visits))
