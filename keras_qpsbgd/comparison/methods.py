"""The methods that are compared.

All methods train the same network from the same initial weights on the same
batches. They differ in how they update the kernels. Adam trains all other
variables (an encoder, batch normalization) in every method.

A configuration has a `rate` (the learning rate of the kernels) and, if there
are other variables, a `real_rate`. Its other entries are passed to the
optimizer of the method.
"""

import dataclasses
import functools

from tensorflow import keras

from keras_qpsbgd import optimizers
from keras_qpsbgd.optimizers.binary_optimizer import BinaryOptimizer

NOT_FOR_THE_OPTIMIZER = ("rate", "real_rate", "batches")


@dataclasses.dataclass(frozen=True)
class Method:
    """A method for training binary kernels.

    Attributes:
        key: name in code and on the command line.
        label: name in tables, figures and records.
        backend: backend of QP-SBGD, or `None` for other methods.
        rule: `rule` of QP-SBGD.
        weights: `"binary"`, `"latent"` (real-valued in training, their signs
            in evaluation) or `"real"`.
        like: key of the method whose chosen configuration is used, or `None`.
        cost: approximate duration of a run relative to Adam.
    """

    key: str
    label: str
    backend: str | dict | None = None
    rule: str = "averaged"
    weights: str = "binary"
    like: str | None = None
    cost: float = 1.0


_ALL = (
    Method("native", "QP-SBGD", "native", cost=4.0),
    Method("gurobi", "QP-SBGD (gurobi)", "gurobi", like="native", cost=40.0),
    Method(
        "dwave",
        "QP-SBGD (mock dwave)",
        {"name": "dwave", "mock": True},
        like="native",
        cost=200.0,
    ),
    Method("ridge", "QP-SBGD (ridge)", "ridge", cost=1.5),
    Method("paper", "QP-SBGD (paper)", "native", rule="paper", cost=4.0),
    Method("sgd", "BinaryConnect (SGD)"),
    Method("signsgd", "BinaryConnect (signSGD)"),
    Method("signum", "BinaryConnect (Signum)"),
    Method("adam", "BinaryConnect (Adam)"),
    Method("proxquant", "ProxQuant", weights="latent"),
    Method("bop", "Bop"),
    Method("frozen", "frozen at random"),
    # Not a baseline: it shows what binary weights cost.
    Method("real", "real weights", weights="real"),
)
METHODS = {method.key: method for method in _ALL}
KEYS = {method.label: method.key for method in _ALL}


_OURS = {
    "signsgd": optimizers.SignSGD,
    # The rule of QP-SBGD without couplings.
    "signum": functools.partial(optimizers.SignSGD, momentum=0.9),
    "proxquant": optimizers.ProxQuant,
    "bop": optimizers.Bop,
}
_KERAS = {
    "sgd": keras.optimizers.SGD,
    "adam": keras.optimizers.Adam,
    "real": keras.optimizers.Adam,
}


class Update:
    """The optimizers of a method for a model.

    Args:
        method: a `Method`.
        model: a built model.
        kernels: the kernels that the method trains, see `Task.kernels`.
        settings: dict of further arguments of the optimizer.
    """

    def __init__(self, method, model, kernels, settings):
        self._variables = list(model.trainable_variables)
        self._real = keras.optimizers.Adam(0.0)
        self._binary = self._optimizer(method, settings)
        if isinstance(self._binary, BinaryOptimizer):
            # It has its own copy, whose learning rate `set_rates` must set.
            self._real = self._binary.real_optimizer
            parts = [(self._binary, self._variables)]
        else:
            known = {id(kernel) for kernel in kernels}
            rest = [v for v in self._variables if id(v) not in known]
            parts = [(self._binary, kernels), (self._real, rest)]
        # A part is empty if the kernels are frozen or the only variables.
        self._parts = [part for part in parts if all(part)]
        for optimizer, variables in self._parts:
            optimizer.build(variables)

    def _optimizer(self, method, settings):
        """Returns the optimizer of the kernels, `None` if they are frozen."""
        if method.key == "frozen":
            return None
        if method.key in _KERAS:
            return _KERAS[method.key](0.0)
        if method.key in _OURS:
            return _OURS[method.key](0.0, real_optimizer=self._real, **settings)
        return optimizers.QPSBGD(
            0.0,
            backend=method.backend,
            real_optimizer=self._real,
            seed=0,
            rule=method.rule,
            **settings,
        )

    def set_rates(self, rate, real_rate):
        """Sets the learning rates for the next update."""
        if self._binary is not None:
            self._binary.learning_rate.assign(rate)
        self._real.learning_rate.assign(real_rate)

    def apply(self, gradients):
        """Updates all variables with their gradients."""
        of = {id(v): g for v, g in zip(self._variables, gradients)}
        for optimizer, variables in self._parts:
            optimizer.apply_gradients([(of[id(v)], v) for v in variables])

    def state(self):
        """Returns all variables of the optimizers."""
        return [v for optimizer, _ in self._parts for v in optimizer.variables]
