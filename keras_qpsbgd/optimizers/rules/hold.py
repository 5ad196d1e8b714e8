r"""Holds the entries about which a solution says least.

Flipping entry \(i\) of a state \(g\) changes the energy by

$$\Delta_i = -4 g_i \sum_{k \ne i} Q_{ik} g_k - 2 s_i g_i .$$

If it is small, both signs are almost equally good, and the sign in the solution
carries little information.
"""

import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd import products


def flip_costs(states, problem):
    r"""Returns \(\Delta_i\) for all entries, shape `(n, m)`.

    Args:
        states: Tensor of shape `(n, m)`. A held entry counts as zero.
        problem: An `ops.Problem`.
    """
    if problem.couplings is not None:
        image = products.product(problem.couplings, states)
    else:
        z = problem.normalized_rows
        image = products.product(z, products.product(z, states), True)
    image -= ops.coupling_diagonal(problem)[:, None] * states
    return -2.0 * states * (2.0 * image + problem.fields)


def hold_uncertain(states, problem, share):
    """Sets a share of the entries of each column to zero.

    These are the entries whose flip would cost the least energy. Among equal
    costs, the entries of the first inputs are held.

    Args:
        states: Tensor of shape `(n, m)`.
        problem: An `ops.Problem`.
        share: Float from 0 to 1. The number of entries is rounded down.
    """
    count = int(share * states.shape[0])
    if count == 0:
        return states
    costs = tf.transpose(flip_costs(states, problem))
    # Held entries come first, so they count as part of the share.
    costs = tf.where(tf.transpose(states) == 0, -float("inf"), costs)
    order = tf.argsort(costs, axis=1, stable=True)
    rank = tf.transpose(tf.argsort(order, axis=1, stable=True))
    return tf.where(rank < count, 0.0, states)
