"""Update rules without a QUBO that use the same gradient and curvature."""

import numpy as np
import tensorflow as tf

from keras_qpsbgd.backends.graph import local_search
from keras_qpsbgd.backends.graph.graph_backend import GraphBackend
from keras_qpsbgd.backends.graph.relaxed import RidgeBackend
from keras_qpsbgd.backends.solution import Solution
from keras_qpsbgd.optimizers import QPSBGD
from keras_qpsbgd.optimizers.rules.newton import NewtonRule


class Descent(GraphBackend):
    """Flips the best variable until no flip lowers the energy."""

    def search(self, problem, seed):
        return local_search.greedy(problem, seed)


def gradient_of(problem):
    """Returns the gradient g of a binary Newton problem."""
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

    Ignores the couplings: it is `TopRule` for `kq.fit_columns`, whose columns
    are the dampings of one column of a kernel.

    Args:
        shares: List of floats, one for each column of a problem.
    """

    compiled = False
    scale_matters = False
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
        problem: The `ops.Problem` of a binary Newton step.
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
        return top_flips(problem, [self._share] * problem.fields.shape[1])


def whitened(setup, configuration):
    """Returns an optimizer with a `WhitenedRule`.

    Args:
        setup: A `methods.Setup`.
        configuration: Learning rate and ridge.
    """
    rate, rho = configuration
    rule = WhitenedRule(rho, 1.0, "average", setup.curvature, False)
    return _with_rule(rate, rule, setup)


def top(setup, configuration):
    """Returns an optimizer with a `TopRule`.

    Args:
        setup: A `methods.Setup`.
        configuration: The share of the weights to flip.
    """
    rule = TopRule(*configuration, 1.0, "none", setup.curvature, False)
    return _with_rule(1.0, rule, setup)


def _with_rule(rate, rule, setup):
    optimizer = QPSBGD(
        rate,
        "sign",
        real_optimizer=setup.real_optimizer(),
        update="newton",
        curvature=setup.curvature,
    )
    optimizer._rule = rule
    return optimizer
