"""The methods, each with four configurations."""

import dataclasses
from collections.abc import Callable
from typing import Any

from tensorflow import keras

import keras_qpsbgd as kq
from research.few_solves import rivals

REAL_RATE = 0.01


@dataclasses.dataclass(frozen=True)
class Setup:
    """What an optimizer needs to know about a task.

    Attributes:
        curvature: The argument `curvature` of `QPSBGD`.
        real_rate: Float. Rate of Adam for variables that are not binary
            kernels.
    """

    curvature: Any
    real_rate: float = REAL_RATE

    def real_optimizer(self):
        """Returns the optimizer of variables that are not binary kernels."""
        return keras.optimizers.Adam(self.real_rate)


@dataclasses.dataclass(frozen=True)
class Method:
    """A method.

    Either `optimizer` or `columns` is a function.

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


def newton(backend, latent, **arguments):
    """Returns the function `optimizer` of a binary Newton method."""

    def make(setup, configuration):
        damping, *rate = configuration
        return kq.QPSBGD(
            rate[0] if rate else 1.0,
            backend=backend() if callable(backend) else backend,
            real_optimizer=setup.real_optimizer(),
            update="newton",
            latent=latent,
            damping=damping,
            curvature=setup.curvature,
            mean_curvature=True,
            seed=0,
            **arguments,
        )

    return make


def gradient(backend, steps=None, **arguments):
    """Returns the function `optimizer` of the rule of the paper.

    Args:
        backend: The solver.
        steps: Integer (optional). The rate falls to zero in this many updates.
        **arguments: Arguments of `QPSBGD`.
    """

    def make(setup, configuration):
        return kq.QPSBGD(
            _rate(configuration, steps),
            backend=backend,
            real_optimizer=setup.real_optimizer(),
            seed=0,
            **arguments,
        )

    return make


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
        return getattr(keras.optimizers, kind)(_rate(configuration, steps))

    return make


def _rate(configuration, steps):
    """Returns the only number of a configuration, or its cosine decay."""
    (rate,) = configuration
    if steps is None:
        return float(rate)
    return keras.optimizers.schedules.CosineDecay(float(rate), steps)


FREE = [[0.5], [1.0], [2.0], [4.0]]
AVERAGE = [[1.0, 0.1], [1.0, 0.2], [2.0, 0.3], [4.0, 0.5]]
RATES = [[0.03], [0.1], [0.2], [0.4]]
EXACT = {"name": "native", "preset": "accurate"}

METHODS = {
    "newton": Method("Newton, exact", FREE, newton(EXACT, "none")),
    "newton-descent": Method(
        "Newton, descent", FREE, newton(rivals.Descent, "none")
    ),
    "newton-ridge": Method("Newton, `ridge`", FREE, newton("ridge", "none")),
    "newton-sign": Method("Newton, no couplings", FREE, newton("sign", "none")),
    "average": Method(
        "Newton, exact, averaged", AVERAGE, newton(EXACT, "average")
    ),
    "average-descent": Method(
        "Newton, descent, averaged", AVERAGE, newton(rivals.Descent, "average")
    ),
    "average-mean": Method(
        "Newton, mean of 8 reads, averaged",
        AVERAGE,
        newton("native", "average", reads="mean"),
    ),
    "average-hold": Method(
        "Newton, exact, averaged, a quarter held",
        AVERAGE,
        newton(EXACT, "average", hold=0.25),
    ),
    "average-momentum": Method(
        "Newton, exact, averaged, momentum 0.5",
        AVERAGE,
        newton(EXACT, "average", momentum=0.5),
    ),
    "columns": Method("column by column, exact", FREE, columns=columns(EXACT)),
    "gradient": Method("QP-SBGD", RATES, gradient(EXACT)),
    "ridge": Method("QP-SBGD, `ridge`", RATES, gradient("ridge")),
    "sign": Method("QP-SBGD, `sign`", RATES, gradient("sign")),
    "whitened": Method(
        "whitened step",
        [[0.05, 1.0], [0.2, 1.0], [0.2, 0.1], [0.5, 1.0]],
        rivals.whitened,
    ),
    "top": Method("top-k flips", [[0.02], [0.06], [0.12], [0.25]], rivals.top),
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
