"""What is compared: how the binary kernels of a network are trained.

All methods train the same network from the same first weights on the same
batches. They differ in what happens to the kernels; every other variable (an
encoder, batch normalisation) is trained by Adam beside all of them.

A configuration has a `rate` (learning rate of the kernels) and, where there
are other variables, a `real_rate`. What else it holds is handed to the
optimizer of the method as it is.
"""

import dataclasses

from tensorflow import keras

from keras_qpsbgd import optimizers

NOT_FOR_THE_OPTIMIZER = ("rate", "real_rate", "batches")


@dataclasses.dataclass(frozen=True)
class Method:
    """A row of the tables.

    Attributes:
        key: its name on the command line and in file names.
        label: its name in tables.
        backend: what solves the QUBOs of QP-SBGD; `None` if it is not that.
        weights: `"binary"` or `"real"`.
        like: key of the method whose chosen configuration it takes.
        cost: how long it takes, in units of Adam.
    """

    key: str
    label: str
    backend: str | dict | None = None
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
    Method("sign", "QP-SBGD (sign)", "sign", cost=1.5),
    Method("sgd", "BinaryConnect (SGD)"),
    Method("signsgd", "BinaryConnect (signSGD)"),
    Method("adam", "BinaryConnect (Adam)"),
    Method("proxquant", "ProxQuant"),
    Method("bop", "Bop"),
    Method("frozen", "frozen at random"),
    Method("real", "real weights", weights="real"),
)
METHODS = {method.key: method for method in _ALL}
HOST = ("gurobi", "dwave")
# Solvers on the host only on request: they take hours.
DEFAULT = tuple(key for key in METHODS if key not in HOST)


def method_of(key, options):
    """A method; QP-SBGD with the solver that a user asked for."""
    method = METHODS[key]
    if key == "native" and options.backend is not None:
        return dataclasses.replace(method, backend=options.backend)
    return method


class Update:
    """The optimizers of one method on one model.

    Args:
        method: a `Method`.
        model: a built model.
        kernels: its kernels, see `networks.kernels`.
        scale: `gradient_scale` of QP-SBGD.
        settings: further arguments of the optimizer.
    """

    def __init__(self, method, model, kernels, scale, settings):
        self._kernels = {id(kernel) for kernel in kernels}
        self._variables = list(model.trainable_variables)
        real = keras.optimizers.Adam(0.0)
        ours = {
            "signsgd": optimizers.SignSGD,
            "proxquant": optimizers.ProxQuant,
            "bop": optimizers.Bop,
        }
        if method.backend is not None:
            self._all = optimizers.QPSBGD(
                0.0,
                backend=method.backend,
                gradient_scale=scale,
                real_optimizer=real,
                seed=0,
                **settings,
            )
        elif method.key in ours:
            self._all = ours[method.key](0.0, real_optimizer=real, **settings)
        else:
            self._all = None
        # Optimizers with their learning rates: of the kernels, of the rest.
        if self._all is not None:
            self._all.build(self._variables)
            self._binary, self._real = self._all, real
            self.optimizers = [self._all]
            return
        self._binary = {
            "sgd": keras.optimizers.SGD,
            "frozen": lambda rate: None,
        }.get(method.key, keras.optimizers.Adam)(0.0)
        self._real = real
        self.optimizers = []
        for optimizer, variables in self._parts():
            optimizer.build(variables)
            self.optimizers.append(optimizer)

    def _parts(self):
        """Pairs of an optimizer and its variables, if both are there."""
        binary = [v for v in self._variables if id(v) in self._kernels]
        rest = [v for v in self._variables if id(v) not in self._kernels]
        pairs = ((self._binary, binary), (self._real, rest))
        return [pair for pair in pairs if pair[0] is not None and pair[1]]

    def set_rates(self, rate, real_rate):
        """Sets the learning rates of the next update."""
        if self._binary is not None:
            self._binary.learning_rate.assign(rate)
        self._real.learning_rate.assign(real_rate)

    def apply(self, gradients):
        """Updates all variables, given their gradients."""
        if self._all is not None:
            self._all.apply_gradients(list(zip(gradients, self._variables)))
            return
        of = {id(v): g for v, g in zip(self._variables, gradients)}
        for optimizer, variables in self._parts():
            optimizer.apply_gradients([(of[id(v)], v) for v in variables])

    def state(self):
        """All variables that change from step to step."""
        return [v for o in self.optimizers for v in o.variables]
