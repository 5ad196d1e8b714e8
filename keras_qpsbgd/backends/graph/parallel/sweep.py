"""One sweep over the variables of several layers at once, for GPUs.

Like `sweeps.py`, it sets each variable to the better of its two values, given
the others, one after the other. All columns of all layers are updated together.
The variables of a block of 16 are updated in one operation, and a matrix
product updates the forces on the variables that follow.
"""

import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd import products
from keras_qpsbgd.backends.graph.parallel import forms

BLOCK = 16


def sweep(problem, sizes, seeds):
    """Returns the states after a sweep from `problem.start`.

    Args:
        problem: A stack of `ops.Problem`, padded with zeros.
        sizes: List of integers. Not used.
        seeds: Tensor. Not used.

    Returns:
        Tensor of shape `(layers, m, n)`.
    """
    del sizes, seeds
    zeros = tf.zeros_like(problem.couplings[..., 0])
    q = products.rounded(tf.linalg.set_diag(problem.couplings, zeros))
    g = forms.lanes_first(problem.start)
    forces = products.matmul(g, q) + forms.lanes_first(problem.fields) / 2.0
    n = g.shape[-1]
    found = []
    for begin in range(0, n, BLOCK):
        end = min(begin + BLOCK, n)
        old = g[..., begin:end]
        here, forces = forces[..., : end - begin], forces[..., end - begin :]
        new = _updated(here, old, q[:, begin:end, begin:end])
        found.append(new)
        if end < n:
            forces += products.matmul(new - old, q[:, begin:end, end:])
    return tf.concat(found, axis=-1)


def _updated(forces, old, couplings):
    """Updates the variables of a block, one by one."""
    new, changes = [], []
    for i in range(old.shape[-1]):
        force = forces[..., i]
        for k, change in enumerate(changes):
            force += couplings[:, k, i, None] * change
        new.append(ops.sign(-force))
        changes.append(new[-1] - old[..., i])
    return tf.stack(new, axis=-1)
