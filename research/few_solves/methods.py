"""The methods: functions of a configuration.

All methods of a task have the same number of configurations, except for that
of the mock QPU.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from tensorflow import keras

import keras_qpsbgd as kq

# The kinds of methods: by columns, or by updates of all weights with many or
# with few samples.
COLUMNS, LARGE, MINI = "columns", "large", "mini"
# The method that others are compared with, and its default number of sweeps.
OURS, SWEEPS = "columns", 3


@dataclasses.dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        title: String.
        kind: `COLUMNS`, `LARGE` or `MINI`.
        grid: List of configurations, which are lists of numbers. The first and
            the last one make the smallest and the largest changes.
        make: Function of a configuration. Returns arguments of
            `kq.fit_columns`, where `dampings` is a list, or else an optimizer
            of the binary kernels with the first learning rate.
    """

    title: str
    kind: str
    grid: list
    make: Callable[..., Any]

    @property
    def uses_qubos(self):
        """Whether the method could use a QPU."""
        return self.make not in (adam, signum)


# The functions `make`


def columns(configuration):
    """Returns arguments of `kq.fit_columns`, with its default solver."""
    return {"dampings": configuration}


def columns_qpu(configuration):
    """Returns those of the mock QPU."""
    backend = kq.backends.get({"name": "dwave", "mock": True})
    return {"dampings": configuration, "backend": backend}


def averaged(configuration):
    """Returns QP-SBGD with its default solver."""
    rate, momentum = configuration
    return kq.QPSBGD(float(rate), momentum=momentum, seed=0)


def signum(configuration):
    """Returns the optimizer of the same steps without couplings."""
    rate, momentum = configuration
    return kq.optimizers.SignSGD(float(rate), momentum)


def adam(configuration):
    """Returns Adam."""
    (rate,) = configuration
    return keras.optimizers.Adam(float(rate))


# The methods of all tasks

SMALL_DAMPINGS = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25)
SMALL_RATES = (0.03, 0.1, 0.2, 0.4, 0.8, 1.6)


def _singles(dampings):
    return [[damping] for damping in dampings]


def _triples(dampings):
    """Returns dampings around each of these, like the default ones."""
    return [[damping / 4, damping, 4 * damping] for damping in dampings]


def _with_momentum(least, low, high, most):
    """Returns four rates with momentum, and two of them without it."""
    momentum = 0.9
    return [
        [least, momentum],
        [low, momentum],
        [low, 0.0],
        [high, momentum],
        [high, 0.0],
        [most, momentum],
    ]


_COLUMNS = "`fit_columns`"
_QP = "QP-SBGD"
_LARGE, _MINI = "large batches", "mini-batches"

SMALL_MOMENTUM = _with_momentum(0.03, 0.1, 0.3, 1.0)
SINGLE = {
    "columns": Method(_COLUMNS, COLUMNS, _singles(SMALL_DAMPINGS), columns),
    "columns-three": Method(
        f"{_COLUMNS}, three dampings",
        COLUMNS,
        _triples(SMALL_DAMPINGS),
        columns,
    ),
    "averaged": Method(_QP, LARGE, SMALL_MOMENTUM, averaged),
    "signum": Method("Signum", LARGE, SMALL_MOMENTUM, signum),
    "adam": Method("Adam", LARGE, _singles(SMALL_RATES), adam),
    "adam-mini": Method(
        f"Adam, {_MINI}",
        MINI,
        _singles((0.01, 0.02, 0.05, 0.1, 0.2, 0.4)),
        adam,
    ),
}
NETWORK = {
    **SINGLE,
    # Not tuned: it takes much time, and only checks the QPU's answers.
    "columns-qpu": Method(
        f"{_COLUMNS}, mock QPU", COLUMNS, _singles([1.0]), columns_qpu
    ),
    "averaged-mini": Method(
        f"{_QP}, {_MINI}",
        MINI,
        _with_momentum(0.005, 0.015, 0.05, 0.15),
        averaged,
    ),
}
WIDE_DAMPINGS = (16.0, 8.0, 4.0, 2.0)
WIDE = {
    "columns": Method(_COLUMNS, COLUMNS, _singles(WIDE_DAMPINGS), columns),
    "averaged": Method(
        f"{_QP}, {_LARGE}",
        LARGE,
        [[0.005, 0.9], [0.01, 0.9], [0.01, 0.0], [0.02, 0.9]],
        averaged,
    ),
    "averaged-mini": Method(
        f"{_QP}, {_MINI}",
        MINI,
        [[0.001, 0.9], [0.002, 0.9], [0.004, 0.9], [0.008, 0.9]],
        averaged,
    ),
    "adam": Method(
        f"Adam, {_LARGE}", LARGE, _singles((0.01, 0.02, 0.04, 0.08)), adam
    ),
    "adam-mini": Method(
        f"Adam, {_MINI}", MINI, _singles((0.0025, 0.005, 0.01, 0.02)), adam
    ),
}
