r"""Energies of a QUBO, for searches that change many variables at once.

The tensors are stacks with one entry per layer. The states g have the shape
(layers, lanes, n), where the lanes are columns and restarts. The variables form
blocks (see `blocks.py`). Besides the states, a search holds a memory, which
gives the gains of all flips and is cheap to update. Energies are in units of 4
and leave out constants.

A move is a set of flips within a block: c = -g where a variable is flipped, 0
elsewhere. Its response is a product with c. If the moves k with \(a_k = 1\) are
made, the energy changes by

$$\sum_k a_k l_k + \sum_{kl} a_k a_l C_{kl} .$$

The factors of all products are rounded first (see `products.rounded`), so that
TensorFloat-32 gives the same results as float32.
"""

import tensorflow as tf

from keras_qpsbgd import products
from keras_qpsbgd.backends.graph.parallel import blocks


class Couplings:
    """Problems with couplings. The memory is the field h = Qg + s/2.

    Q is the matrix of the couplings without its diagonal.

    Args:
        problem: A stack of `ops.Problem`.
        restarts: Integer. Number of lanes per column.
    """

    def __init__(self, problem, restarts):
        couplings = problem.couplings
        zeros = tf.zeros_like(couplings[..., 0])
        couplings = tf.linalg.set_diag(couplings, zeros)
        self._couplings = products.rounded(couplings)
        half_fields = lanes_first(problem.fields) / 2.0
        self._half_fields = tf.tile(half_fields, (1, restarts, 1))

    def memory(self, g):
        """Returns the field of states (layers, lanes, n)."""
        return products.matmul(g, self._couplings) + self._half_fields

    def energy(self, g, h):
        """Returns g'Qg + s'g in units of 4."""
        return tf.reduce_sum(g * (h + self._half_fields), axis=-1) / 4.0

    def gains(self, g, h):
        """Returns how much each flip alone lowers the energy."""
        return g * h

    def evaluate(self, moves, h):
        """Returns the responses Qc, l and C of moves.

        Args:
            moves: Tensor of shape `(layers, COUNT, lanes, n / COUNT)`.
            h: The memory.

        Returns:
            Three tensors of shape `(layers, COUNT, lanes, n)`, `(layers, COUNT,
            lanes)` and `(layers, COUNT, COUNT, lanes)`. `COUNT` is the number
            of blocks.
        """
        layers, count, lanes, width = moves.shape
        matrix = tf.reshape(
            self._couplings, (layers, count, width, count * width)
        )
        responses = products.matmul(moves, matrix)
        linear = tf.reduce_sum(moves * blocks.first(h), axis=-1)
        # The response of one move to the flips of another.
        pairs = tf.reshape(responses, (layers, count, lanes, count, width))
        pairs *= tf.transpose(moves, (0, 2, 1, 3))[:, None]
        pairs = tf.reduce_sum(pairs, axis=-1)
        return responses, linear, tf.transpose(pairs, (0, 1, 3, 2))

    def update(self, h, response):
        """Returns the memory after moves with this total response."""
        return h + 2.0 * response


def lanes_first(x):
    """Swaps the last two axes."""
    return tf.linalg.matrix_transpose(x)
