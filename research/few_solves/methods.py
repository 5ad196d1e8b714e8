"""The methods, each with four configurations."""

import dataclasses
from collections.abc import Callable
from typing import Any

from tensorflow import keras

import keras_qpsbgd as kq
from research.few_solves import rivals

REAL_RATE = 0.01


@dataclasses.dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        title: String.
        optimizer: Function of a `Task` and a configuration. Returns a Keras
            optimizer.
        grid: List of configurations, which are lists of numbers.
        is_columns: Boolean. Whether `kq.fit_columns` trains. The configuration
            then is the list of dampings of successive sweeps.
    """

    title: str
    optimizer: Callable[[Any, list], Any]
    grid: list
    is_columns: bool = False


def _newton(backend, latent, **arguments):
    def make(task, configuration):
        damping, *rate = configuration
        return kq.QPSBGD(
            rate[0] if rate else 1.0,
            backend=backend() if callable(backend) else backend,
            real_optimizer=keras.optimizers.Adam(REAL_RATE),
            update="newton",
            latent=latent,
            damping=damping,
            curvature=task.curvature(),
            mean_curvature=True,
            seed=0,
            **arguments,
        )

    return make


def _gradient(backend):
    def make(task, configuration):
        del task
        (rate,) = configuration
        return kq.QPSBGD(
            rate,
            backend=backend,
            real_optimizer=keras.optimizers.Adam(REAL_RATE),
            seed=0,
        )

    return make


def _plain(kind):
    def make(task, configuration):
        del task
        (rate,) = configuration
        if kind == "signsgd":
            return kq.optimizers.SignSGD(
                rate, real_optimizer=keras.optimizers.Adam(REAL_RATE)
            )
        return keras.optimizers.get(
            {"class_name": kind, "config": {"learning_rate": rate}}
        )

    return make


FREE = [[0.5], [1.0], [2.0], [4.0]]
AVERAGE = [[1.0, 0.1], [1.0, 0.2], [2.0, 0.3], [4.0, 0.5]]
RATES = [[0.03], [0.1], [0.2], [0.4]]
EXACT = {"name": "native", "preset": "accurate"}

METHODS = {
    "newton": Method("Newton, exact", _newton(EXACT, "none"), FREE),
    "newton-descent": Method(
        "Newton, descent", _newton(rivals.Descent, "none"), FREE
    ),
    "newton-ridge": Method("Newton, `ridge`", _newton("ridge", "none"), FREE),
    "newton-sign": Method(
        "Newton, no couplings", _newton("sign", "none"), FREE
    ),
    "average": Method(
        "Newton, exact, averaged", _newton(EXACT, "average"), AVERAGE
    ),
    "average-descent": Method(
        "Newton, descent, averaged",
        _newton(rivals.Descent, "average"),
        AVERAGE,
    ),
    "average-mean": Method(
        "Newton, mean of 8 reads, averaged",
        _newton("native", "average", reads="mean"),
        AVERAGE,
    ),
    "average-hold": Method(
        "Newton, exact, averaged, a quarter held",
        _newton(EXACT, "average", hold=0.25),
        AVERAGE,
    ),
    "average-momentum": Method(
        "Newton, exact, averaged, momentum 0.5",
        _newton(EXACT, "average", momentum=0.5),
        AVERAGE,
    ),
    "columns": Method("column by column, exact", None, FREE, is_columns=True),
    "gradient": Method("QP-SBGD", _gradient(EXACT), RATES),
    "ridge": Method("QP-SBGD, `ridge`", _gradient("ridge"), RATES),
    "sign": Method("QP-SBGD, `sign`", _gradient("sign"), RATES),
    "whitened": Method(
        "whitened step",
        lambda task, c: rivals.whitened(*c, task.curvature()),
        [[0.05, 1.0], [0.2, 1.0], [0.2, 0.1], [0.5, 1.0]],
    ),
    "top": Method(
        "top-k flips",
        lambda task, c: rivals.top(*c, task.curvature()),
        [[0.02], [0.06], [0.12], [0.25]],
    ),
    "adam": Method("Adam", _plain("Adam"), RATES),
    "sgd": Method("SGD", _plain("SGD"), [[0.3], [1.0], [2.0], [4.0]]),
    "signsgd": Method("signSGD", _plain("signsgd"), RATES),
}
