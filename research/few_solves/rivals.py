"""Update rules without a QUBO that use the same gradient and curvature."""

import tensorflow as tf

from keras_qpsbgd.backends.graph import local_search
from keras_qpsbgd.backends.graph.graph_backend import GraphBackend
from keras_qpsbgd.optimizers import QPSBGD
from keras_qpsbgd.optimizers.rules.newton import NewtonRule


class Descent(GraphBackend):
    """Flips the best variable until no flip lowers the energy."""

    def search(self, problem, seed):
        return local_search.greedy(problem, seed)


def gradient_of(problem):
    """Returns the gradient g of a binary Newton problem."""
    return problem.fields + 2.0 * tf.matmul(problem.couplings, problem.start)


class WhitenedRule(NewtonRule):
    """Moves the latent weights along (Q + rho)^-1 g, a natural gradient."""

    def __init__(self, rho, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._rho = rho

    def finish(self, states, problem):
        del states
        curvature = 2.0 * problem.couplings
        n = curvature.shape[0]
        ridge = self._rho * tf.linalg.trace(curvature) / n + 1e-12
        matrix = curvature + ridge * tf.eye(n)
        return tf.linalg.solve(matrix, gradient_of(problem))

    def update(self, kernel, states, learning_rate):
        kernel.assign_sub(learning_rate * states)


class TopRule(NewtonRule):
    """Flips a share of the weights of each column, by their gradient."""

    def __init__(self, share, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._share = share

    def finish(self, states, problem):
        del states
        # A flip of a weight w changes it by -2w.
        gain = tf.transpose(problem.start * gradient_of(problem))
        count = max(1, round(self._share * gain.shape[1]))
        limit = tf.math.top_k(gain, count).values[:, -1:]
        is_flipped = tf.transpose((gain >= limit) & (gain > 0))
        return tf.where(is_flipped, -problem.start, problem.start)


def whitened(rate, rho, curvature):
    """Returns an optimizer with a `WhitenedRule`."""
    optimizer = QPSBGD(rate, "sign", update="newton", curvature=curvature)
    optimizer._rule = WhitenedRule(rho, 1.0, "average", curvature, False)
    return optimizer


def top(share, curvature):
    """Returns an optimizer with a `TopRule`."""
    optimizer = QPSBGD(1.0, "sign", update="newton", curvature=curvature)
    optimizer._rule = TopRule(share, 1.0, "none", curvature, False)
    return optimizer
