"""Other ways than a QUBO solver to choose the states of `kq.fit_columns`."""

import numpy as np
import tensorflow as tf

from keras_qpsbgd.backends.graph.graph_backend import GraphBackend
from keras_qpsbgd.backends.graph.relaxed import RidgeBackend
from keras_qpsbgd.backends.solution import Solution


def gradient_of(problem):
    """Returns the gradient g of a problem of `kq.fit_columns`."""
    return problem.fields + 2.0 * tf.matmul(problem.couplings, problem.start)


class _AsFound(GraphBackend):
    """Returns states even if the start has a lower energy.

    `kq.fit_columns` then decides by the loss.
    """

    def best_solution(self, qubo, samples, info):
        states = samples[0].astype(np.int8)
        return Solution(states, qubo.energy(states), info)


class Ridge(_AsFound, RidgeBackend):
    """Rounds the solution of the QUBO relaxed to real numbers."""


class TopFlips(_AsFound):
    """Flips a share of the variables of each column, by their gradient.

    Ignores the couplings. The columns of a problem of `kq.fit_columns` are the
    dampings of one column of a kernel.

    Args:
        shares: List of floats, one for each column of a problem.
    """

    compiled = False
    can_ascend = False

    def __init__(self, shares):
        super().__init__()
        self.shares = list(shares)

    def search(self, problem, seed):
        del seed
        return top_flips(problem, self.shares)


def top_flips(problem, shares):
    """Flips the weights whose gradient says that this lowers the loss most.

    Args:
        problem: The `ops.Problem` of `kq.fit_columns`.
        shares: List of floats. The share of the weights to flip, for each
            column.
    """
    # A flip of a weight w changes it by -2w.
    gain = tf.transpose(problem.start * gradient_of(problem))
    n = gain.shape[1]
    counts = [max(1, round(share * n)) for share in shares]
    ordered = tf.math.top_k(gain, max(counts)).values
    places = tf.constant(counts)[:, None] - 1
    limit = tf.gather(ordered, places, axis=1, batch_dims=1)
    is_flipped = tf.transpose((gain >= limit) & (gain > 0))
    return tf.where(is_flipped, -problem.start, problem.start)
