"""The methods, each with four configurations.

The rules of version 0.1 were removed: the binary Newton rule, the gradient rule
with scaled gradients, and rivals with the same curvature. Their methods are
`stored`: the page shows their records, and they cannot run again.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.backends.graph.graph_backend import GraphBackend
from keras_qpsbgd.backends.graph.relaxed import RidgeBackend
from keras_qpsbgd.backends.solution import Solution

REAL_RATE = 0.01


@dataclasses.dataclass(frozen=True)
class Setup:
    """What an optimizer needs to know about a task.

    Attributes:
        real_rate: Float. Rate of Adam for variables that are not binary
            kernels.
    """

    real_rate: float = REAL_RATE

    def real_optimizer(self):
        """Returns the optimizer of variables that are not binary kernels."""
        return keras.optimizers.Adam(self.real_rate)


@dataclasses.dataclass(frozen=True)
class Method:
    """A method.

    Either `optimizer` or `columns` is a function. If both are `None`, the rule
    was removed, and only its records are left.

    Attributes:
        title: String.
        grid: List of configurations, which are lists of numbers. The first and
            the last one make the smallest and the largest changes.
        optimizer: Function of a `Setup` and a configuration. Returns a Keras
            optimizer.
        columns: Function of a configuration, for `kq.fit_columns`. Returns its
            arguments `dampings`, a list with a number for each solve of a
            column, and `backend`.
    """

    title: str
    grid: list
    optimizer: Callable[[Setup, list], Any] | None = None
    columns: Callable[[list], tuple] | None = None

    @property
    def can_run(self):
        """Whether the rule still exists."""
        return bool(self.optimizer or self.columns)


def averaged(backend, steps=None):
    """Returns the function `optimizer` of QP-SBGD.

    Its configurations are a learning rate and a momentum.

    Args:
        backend: The solver.
        steps: Integer (optional). The rate falls to zero in this many updates.
    """

    def make(setup, configuration):
        rate, momentum = configuration
        return kq.QPSBGD(
            _rate(rate, steps),
            backend=backend,
            momentum=momentum,
            real_optimizer=setup.real_optimizer(),
            seed=0,
        )

    return make


def signum(setup, configuration):
    """Returns an optimizer with the same steps, without couplings."""
    rate, momentum = configuration
    return kq.optimizers.SignSGD(
        rate, momentum, real_optimizer=setup.real_optimizer()
    )


def columns(backend):
    """Returns the function `columns` of a solver."""
    return lambda dampings: (
        dampings,
        backend() if callable(backend) else backend,
    )


def plain(kind, steps=None):
    """Returns the function `optimizer` of an optimizer of Keras.

    Args:
        kind: String. `"Adam"`, for example.
        steps: Integer (optional). The rate falls to zero in this many updates.
    """

    def make(setup, configuration):
        del setup
        return getattr(keras.optimizers, kind)(_rate(*configuration, steps))

    return make


def _rate(rate, steps):
    """Returns a learning rate, or its cosine decay."""
    if steps is None:
        return float(rate)
    return keras.optimizers.schedules.CosineDecay(float(rate), steps)


def with_momentum(low, high):
    """Returns a grid of two rates, each with and without momentum."""
    return [[low, 0.9], [low, 0.0], [high, 0.9], [high, 0.0]]


FREE = [[0.5], [1.0], [2.0], [4.0]]
AVERAGE = [[1.0, 0.1], [1.0, 0.2], [2.0, 0.3], [4.0, 0.5]]
RATES = [[0.03], [0.1], [0.2], [0.4]]
MOMENTUM = with_momentum(0.1, 0.3)
EXACT = {"name": "native", "preset": "accurate"}
AVERAGED = "QP-SBGD, averaged"

METHODS = {
    "averaged": Method(AVERAGED, MOMENTUM, averaged(EXACT)),
    "signum": Method("Signum", MOMENTUM, signum),
    "newton": Method("Newton, exact", FREE),
    "newton-descent": Method("Newton, descent", FREE),
    "newton-ridge": Method("Newton, `ridge`", FREE),
    "newton-sign": Method("Newton, no couplings", FREE),
    "average": Method("Newton, exact, averaged", AVERAGE),
    "average-descent": Method("Newton, descent, averaged", AVERAGE),
    "average-mean": Method("Newton, mean of 8 reads, averaged", AVERAGE),
    "average-hold": Method("Newton, exact, averaged, a quarter held", AVERAGE),
    "average-momentum": Method(
        "Newton, exact, averaged, momentum 0.5", AVERAGE
    ),
    "columns": Method("column by column, exact", FREE, columns=columns(EXACT)),
    "gradient": Method("QP-SBGD", RATES),
    "ridge": Method("QP-SBGD, `ridge`", RATES),
    "sign": Method("QP-SBGD, `sign`", RATES),
    "whitened": Method(
        "whitened step", [[0.05, 1.0], [0.2, 1.0], [0.2, 0.1], [0.5, 1.0]]
    ),
    "top": Method("top-k flips", [[0.02], [0.06], [0.12], [0.25]]),
    "adam": Method("Adam", RATES, plain("Adam")),
    "sgd": Method("SGD", [[0.3], [1.0], [2.0], [4.0]], plain("SGD")),
    "signsgd": Method(
        "signSGD",
        RATES,
        lambda setup, rate: kq.optimizers.SignSGD(
            *rate, real_optimizer=setup.real_optimizer()
        ),
    ),
}


# Other ways than a QUBO solver to choose the states of `kq.fit_columns`


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
